# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Live migration of QEMU over RDMA: of a guest that writes to its memory meanwhile, and looks at what it wrote."""

import filecmp
import json
import os
import signal
import socket
import time

import systems
from pairs import Failure, free_port

WAYS = ('mapped', 'auto', 'cma', 'ring')
PROGRAM = 'qemu-system-x86_64'
# One of each package; the names of packages differ between releases.
OTHERS = ('qemu-system-aarch64', 'qemu-system-mips64', 'qemu-system-ppc64', 'qemu-system-riscv64', 'qemu-system-s390x', 'qemu-system-sparc')
MIB = 1 << 20
MEMORY = 64 * MIB
ROUNDS = 3
LIMIT = 120
GUEST = ('-m32', '-ffreestanding', '-fno-pic', '-fno-stack-protector', '-fno-asynchronous-unwind-tables', '-nostdlib', '-static',
         '-no-pie', '-Wl,--build-id=none', '-Wl,-N', '-Wl,--no-warn-rwx-segments', '-Wl,-Ttext=0x100000')
guest = None


def prepare(folder):
    global guest
    systems.needs(PROGRAM)
    guest = systems.compiled(folder, 'gcc', 'guest.c', *GUEST)


class Gone(Failure):
    """Nobody answers any more."""


class Machine:
    """A QEMU without devices but a serial port, driven by QMP."""

    def __init__(self, place, name, *options, program=PROGRAM):
        self.name = name
        self.serial = place.file(f'{name}.serial', b'')
        self.control = place.path(f'{name}.control')
        self.image = place.path(f'{name}.memory')
        # Of another processor it is memory alone.
        what = ['-kernel', guest, '-serial', f'file:{self.serial}'] if program == PROGRAM else ['-machine', 'none', '-S']
        self.side = place.start([program, '-accel', 'tcg', '-m', str(MEMORY // MIB), '-nodefaults', '-display', 'none', *what,
                                 '-qmp', f'unix:{self.control},server=on,wait=off', *options])
        self.socket = None

    def __enter__(self):
        self.side.__enter__()
        try:
            self.socket = systems.until(self._connect, LIMIT, 'answer of QMP', self.side)
            self.lines = self.socket.makefile()
            self.lines.readline()
            self.ask('qmp_capabilities')
        except Failure as e:
            self.__exit__(None, e, None)
            raise
        return self

    def __exit__(self, *how):
        if self.socket:
            self.socket.close()
        self.side.__exit__(*how)

    def _connect(self):
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(self.control)
            s.settimeout(LIMIT)
            return s
        except OSError:
            s.close()
            return None

    def ask(self, command, **arguments):
        try:
            self.socket.sendall(json.dumps({'execute': command, 'arguments': arguments}).encode())
            while True:
                line = self.lines.readline()
                if not line:
                    raise Gone(self.name)
                answer = json.loads(line)
                if 'error' in answer:
                    raise Failure(f'{self.name}: {command}: {answer["error"]}')
                if 'return' in answer:
                    return answer['return']
        except TimeoutError as e:
            raise Failure(f'{self.name}: {command}: no answer') from e
        except OSError as e:
            raise Gone(self.name) from e

    def rounds(self):
        with open(self.serial) as f:
            text = f.read()
        if '!' in text:
            raise Failure(f'the guest of {self.name} found its memory changed: {text!r}')
        return len(text)

    def until_rounds(self, more):
        wanted = self.rounds() + more
        systems.until(lambda: self.rounds() >= wanted, LIMIT, f'{more} rounds of the guest of {self.name}', self.side)

    def memory(self):
        self.ask('pmemsave', val=0, size=MEMORY, filename=self.image)
        return self.image

    def expect(self, state):
        if (now := self.ask('query-status')['status']) != state:
            raise Failure(f'{self.name} is {now}, not {state}')


def source(place):
    return Machine(place, 'source')


def target(place, name='target'):
    return Machine(place, name, '-S', '-incoming', 'defer')


def start(a, b, pin, **parameters):
    port = free_port()
    for machine in a, b:
        machine.ask('migrate-set-capabilities', capabilities=[{'capability': 'rdma-pin-all', 'state': pin}])
    a.ask('migrate-set-parameters', **parameters)
    b.ask('migrate-incoming', uri=f'rdma:127.0.0.1:{port}')
    a.ask('migrate', uri=f'rdma:127.0.0.1:{port}')


def ended(machine):
    """The result, when there is one."""
    result = machine.ask('query-migrate')
    return result if result.get('status') in ('completed', 'failed', 'cancelled') else None


def arrive(a, b, pin):
    """All of a's memory is b's in the end, and b's guest goes on with it."""
    start(a, b, pin, **{'downtime-limit': 10000, 'max-bandwidth': 1 << 40})
    result = systems.until(lambda: ended(a), LIMIT, 'end of the migration', a.side, b.side)
    if result['status'] != 'completed':
        raise Failure(f'the migration {result}')
    if result['ram']['transferred'] < MEMORY // 2:
        raise Failure(f'the migration took {result["ram"]["transferred"]} bytes')
    a.expect('postmigrate')
    systems.until(lambda: b.ask('query-status')['status'] == 'paused', LIMIT, 'pause of the target', b.side)
    if not filecmp.cmp(a.memory(), b.memory(), shallow=False):
        raise Failure('the memory of the target is not that of the source')
    b.ask('cont')
    b.expect('running')
    b.until_rounds(ROUNDS)


def migrate(pin):
    def check(place):
        with source(place) as a, target(place) as b:
            a.until_rounds(ROUNDS)
            arrive(a, b, pin)
    return check


def under_way(a, b):
    """Slowly enough that it is not over when somebody dies."""
    start(a, b, False, **{'downtime-limit': 1, 'max-bandwidth': 4 * MIB})
    systems.until(lambda: (a.ask('query-migrate').get('ram') or {}).get('transferred', 0) > 4 * MIB, LIMIT, 'transfer', a.side, b.side)
    if ended(a):
        raise Failure('the migration is over already')


def target_killed(place):
    with source(place) as a:
        a.until_rounds(1)
        with target(place) as b:
            under_way(a, b)
            os.kill(b.side.pid, signal.SIGKILL)
            result = systems.until(lambda: ended(a), LIMIT, 'end of the migration', a.side)
            if result['status'] != 'failed':
                raise Failure(f'the migration to a dead target {result}')
        a.expect('running')
        a.until_rounds(ROUNDS)
        with target(place, 'second') as b:
            arrive(a, b, False)


def source_killed(place):
    with target(place) as b:
        with source(place) as a:
            a.until_rounds(1)
            under_way(a, b)
            os.kill(a.side.pid, signal.SIGKILL)
        status = b.side.wait(time.monotonic() + LIMIT)
        if status is None or status <= 0:
            raise Failure('the target of a dead source ' + ('goes on waiting' if status is None else f'ends with {status}'))


def other_processor(program):
    """Without a guest, which each processor would need of its own: bytes in memory that nothing runs."""
    def check(place):
        systems.needs(program)
        filled = os.urandom(MEMORY // 2)
        content = f'loader,file={place.file("content", filled)},addr=0,force-raw=on'
        with Machine(place, 'source', '-device', content, program=program) as a, \
             Machine(place, 'target', '-incoming', 'defer', program=program) as b:
            start(a, b, False, **{'downtime-limit': 10000, 'max-bandwidth': 1 << 40})
            for machine in a, b:
                result = systems.until(lambda: ended(machine), LIMIT, 'end of the migration', a.side, b.side)
                if result['status'] != 'completed':
                    raise Failure(f'the migration {result}')
            with open(b.memory(), 'rb') as f:
                if f.read(len(filled)) != filled:
                    raise Failure('the memory of the target is not that of the source')
    return check


CHECKS = (
    ('a guest that writes goes on where it was, with all of its memory', migrate(False)),
    ('with rdma-pin-all, too', migrate(True)),
    ('the target dies: the source goes on, and migrates to another one', target_killed),
    ('the source dies: the target gives up', source_killed),
) + tuple((f'{program} of another processor', other_processor(program)) for program in OTHERS)
