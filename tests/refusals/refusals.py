#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Refuses every allocation and every system call of the adapter's libraries, one in each run: for each place that calls, each
error that the call can give, and its first, second and last occurrence, in the first of the programs that gets there. A run
is good if it ends, by itself or with its partner, and not by a signal. Prints TAP.

What a program waits for, and which side comes first, differs from run to run. So places are looked for in each of MODES,
and a call that does not come again is tried for TRIES times: in the mode that it was found in, and in the others; the last
occurrence is then that of the run before. What is still not reached, a later program may reach."""

import argparse
import collections
import concurrent.futures
import ctypes
import errno
import itertools
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

PLACE = struct.Struct('<QII24si3I')
PLACES = 4096
LIMIT_S = 20  # of a run, in which nothing waits; three times as long before it counts as one that hangs
TRIES = 10  # to reach a place again
GOOD_SIGNALS = (0, signal.SIGKILL, signal.SIGTERM)

# name, what waits, what begins; None: one process
PROGRAMS = [
    ('ibv_devinfo', None, ['ibv_devinfo', '-v']),
    ('ibv_rc_pingpong', ['ibv_rc_pingpong', '-g', '0', '-c', '-n', '50', '-e'],
     ['ibv_rc_pingpong', '-g', '0', '-c', '-n', '50', '-e', '127.0.0.1']),
    ('ibv_ud_pingpong', ['ibv_ud_pingpong', '-g', '0', '-n', '50'], ['ibv_ud_pingpong', '-g', '0', '-n', '50', '127.0.0.1']),
    ('ibv_srq_pingpong', ['ibv_srq_pingpong', '-g', '0', '-c', '-n', '50', '-q', '4'],
     ['ibv_srq_pingpong', '-g', '0', '-c', '-n', '50', '-q', '4', '127.0.0.1']),
    ('ib_write_bw', ['ib_write_bw', '-n', '50'], ['ib_write_bw', '-n', '50', '127.0.0.1']),
    ('ib_send_bw', ['ib_send_bw', '-n', '50'], ['ib_send_bw', '-n', '50', '127.0.0.1']),
    ('ib_read_bw', ['ib_read_bw', '-n', '50'], ['ib_read_bw', '-n', '50', '127.0.0.1']),
    ('rping', ['rping', '-s', '-C', '5', '-V'], ['rping', '-c', '-a', '127.0.0.1', '-C', '5', '-V']),
    ('cmtime', ['cmtime'], ['cmtime', '-s', '127.0.0.1', '-c', '4']),
    ('rstream', ['rstream', '-b', '127.0.0.1', '-S', '1000', '-C', '10', '-T', 'a'],
     ['rstream', '-s', '127.0.0.1', '-S', '1000', '-C', '10', '-T', 'a']),
]

# On how many processors a run takes place (0: all); do the sides run by turns, while the other one is stopped; and what is
# refused besides: with that, a link is made at the second attempt.
Mode = collections.namedtuple('Mode', 'processors turns also', defaults=[0, False, None])
MODES = [Mode(), Mode(processors=1), Mode(turns=True), Mode(also='sendmsg'), Mode(also='connect')]
TURN_S = 0.01

# What the manual pages have, of calls that the libraries make. By name, or by number of syscall(). A write to an eventfd is
# not there: it neither sleeps nor fails, but for a counter that is full.
E = errno
NEW_FD = [E.EMFILE, E.ENOMEM]
FUNCTIONS = {
    'socket': [E.EMFILE, E.EPERM], 'socketpair': [E.EMFILE], 'bind': [E.ENOMEM], 'connect': [E.EAGAIN, E.EPERM], 'listen': [E.ENOMEM],
    'accept4': [E.EMFILE, E.EAGAIN], 'getsockname': [E.ENOMEM], 'getpeername': [E.ENOMEM], 'setsockopt': [E.ENOMEM, E.EPERM],
    'getsockopt': [E.ENOMEM], 'open64': [E.EMFILE, E.EPERM], 'fcntl64': [E.EMFILE], 'dup3': [E.EMFILE], 'fstat64': [E.ENOMEM],
    'ftruncate64': [E.ENOMEM, E.EINTR], 'epoll_create1': NEW_FD, 'epoll_ctl': [E.ENOMEM], 'epoll_wait': [E.EINTR],
    'eventfd': NEW_FD, 'timerfd_create': NEW_FD, 'read': [E.EINTR], 'pread64': [E.EINTR], 'readlink': [E.ENOMEM],
    'recv': [E.EINTR, E.EAGAIN], 'recvmsg': [E.EINTR, E.EAGAIN, E.ENOMEM], 'sendmsg': [E.EAGAIN, E.ENOMEM, E.EPERM],
    'sendto': [E.EAGAIN, E.EINTR, E.ENOMEM], 'recvfrom': [E.EINTR, E.EAGAIN], 'pthread_create': [E.EAGAIN],
}
SYSCALLS = {  # x86-64
    9: [E.ENOMEM, E.EPERM], 10: [E.ENOMEM], 11: [E.ENOMEM], 16: [E.EPERM], 17: [E.EINTR],
    18: [E.EINTR], 25: [E.ENOMEM], 28: [E.ENOMEM, E.EAGAIN], 41: [E.EMFILE, E.EPERM], 44: [E.EAGAIN, E.ENOMEM], 46: [E.EAGAIN, E.ENOMEM, E.EPERM],
    47: [E.EAGAIN, E.EINTR, E.ENOMEM], 125: [E.EPERM], 202: [E.EAGAIN, E.EINTR], 232: [E.EINTR], 257: [E.EMFILE, E.EPERM], 271: [E.EINTR, E.ENOMEM],
    281: [E.EINTR], 285: [E.ENOSYS, E.EINTR, E.ENOMEM], 299: [E.EAGAIN, E.EINTR], 307: [E.EAGAIN, E.ENOMEM], 310: [E.EPERM, E.ENOSYS, E.ENOMEM],
    311: [E.EPERM, E.ENOSYS, E.ENOMEM], 318: [E.ENOSYS, E.EINTR], 319: [E.EMFILE, E.ENOSYS, E.ENOMEM], 324: [E.ENOSYS, E.EPERM],
    325: [E.ENOMEM, E.EPERM], 434: [E.EMFILE, E.ENOSYS, E.EPERM], 441: [E.ENOSYS, E.EINTR],
}

# What a program does by itself when a call fails, with another adapter as well: the function that was refused, or one that
# called it ('': any), and the words with which the run is told from others.
OWN_FAULTS = [
    # A datagram is lost, which the program does not send again. Without memory for copies, or where a link cannot be had.
    ('ibv_ud_pingpong', 'datagram_copies_begin', 'both hang'),
    ('ibv_ud_pingpong', 'create_link', 'both hang'), ('ibv_ud_pingpong', 'link_memory_create', 'both hang'),
    # It says that the call failed, ends the thread that called, and waits for it to tell of completions.
    ('rping', 'ibv_get_cq_event', 'Failed to get cq event'),
    # It uses an id that rdma_create_id() has refused, and the context of an id that it has not set.
    ('cmtime', 'id_new', 'SIGSEGV'), ('cmtime', 'id_create', 'SIGSEGV'), ('cmtime', 'rdma_create_id', 'SIGSEGV'),
    ('cmtime', 'resolve_name', 'SIGSEGV'), ('cmtime', 'rdma_getaddrinfo', 'SIGSEGV'), ('cmtime', '', 'bind address failed'),
]

Place = collections.namedtuple('Place', 'key count refused call number frames')


def errors_of(place):
    if place.number >= 0:
        return SYSCALLS.get(place.number, [])
    return FUNCTIONS.get(place.call, [E.ENOMEM] if 'alloc' in place.call or place.call == 'strdup' else [])


class Table:
    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix='softhca-refusals-')
        os.chmod(self.file.name, 0o666)
        self.clear()

    def clear(self):
        self.file.truncate(0)
        self.file.truncate(PLACES * PLACE.size)

    def places(self):
        with mmap.mmap(self.file.fileno(), PLACES * PLACE.size, prot=mmap.PROT_READ) as table:
            for i in range(PLACES):
                key, count, refused, call, number, *frames = PLACE.unpack_from(table, i * PLACE.size)
                if key:
                    yield Place(key, count, refused, call.rstrip(b'\0').decode(), number, tuple(frames))


class Symbols:
    """Names of the places, where there is addr2line."""

    def __init__(self, lib):
        self.lib, self.known = lib, {}

    def name(self, frame):
        if frame not in self.known:
            file = os.path.join(self.lib, ('libibverbs.so.1', 'librdmacm.so.1')[frame >> 28])
            self.known[frame] = f'{os.path.basename(file)}+0x{frame & 0xfffffff:x}'
            try:
                out = subprocess.run(['addr2line', '-f', '-e', file, hex((frame & 0xfffffff) - 1)], capture_output=True, text=True)
            except OSError:
                return self.known[frame]
            function, line = (out.stdout.splitlines() + ['??', '??'])[:2]
            if function != '??':
                self.known[frame] = f'{function}@{os.path.basename(line)}'
        return self.known[frame]

    def names(self, place):
        return ' '.join(self.name(f) for f in place.frames if f)


def own_fault(program, names, wrong):
    return any(program == p and (not function or f'{function}@' in names) and words in wrong for p, function, words in OWN_FAULTS)


class Runner:
    def __init__(self, lib, preload):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(('SOFTHCA_', 'LD_', 'REFUSE_'))}
        self.env.update(LD_LIBRARY_PATH=lib, SOFTHCA_RAW='host', LC_ALL='C')
        self.preload = preload
        self.table = Table()
        self.processors = os.sched_getaffinity(0)

    def start(self, argv, refuse=None, also=None, looked_at=False):
        env = dict(self.env)
        if looked_at:
            env.update(LD_PRELOAD=self.preload, REFUSE_TABLE=self.table.file.name)
            if refuse:
                env.update(REFUSE_KEY=f'{refuse[0]:x}', REFUSE_AT=str(refuse[1]), REFUSE_ERROR=str(refuse[2]))
            if also:
                env.update(REFUSE_ALSO=also)
        out = tempfile.TemporaryFile()
        p = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        p.out = out
        return p

    def listens(self, waits):
        """Until it listens, or has ended, or sleeps on something else for good: the partner then fails to find it, which is an
        end of the run like another one."""
        deadline = time.monotonic() + 3
        while waits.poll() is None and time.monotonic() < deadline:
            for name in ('/proc/net/tcp', '/proc/net/tcp6'):
                with open(name) as f:
                    if any(line.split()[3] == '0A' for line in f.readlines()[1:]):
                        return
            with open('/proc/net/unix') as f:
                if '@softhca/2/cm/' in f.read():
                    return
            time.sleep(0.005)

    def run(self, program, side, mode, refuse=None, limit=LIMIT_S):
        """(None or what is wrong, did both end with 0)"""
        _, waits, begins = program
        self.table.clear()
        os.sched_setaffinity(0, sorted(self.processors)[:mode.processors] or self.processors)
        sides = []
        try:
            if waits:
                sides.append(self.start(waits, refuse, mode.also, side == 0))
                self.listens(sides[0])
            sides.append(self.start(begins, refuse, mode.also, side == 1))
            deadline = time.monotonic() + limit
            grace = None
            turn = itertools.cycle(sides)
            while True:
                ended = [p.poll() is not None for p in sides]
                now = time.monotonic()
                if all(ended) or (grace and now > grace):
                    break
                if any(ended) and not grace:  # its partner may wait for what does not come any more, as with a dead adapter
                    grace = now + 1.5
                if now > deadline:
                    return 'both hang: ' + ' | '.join(self.text(p) for p in sides), False
                if mode.turns and waits:
                    stopped = next(turn)
                    if not any(ended):
                        stopped.send_signal(signal.SIGSTOP)
                    time.sleep(TURN_S)
                    stopped.send_signal(signal.SIGCONT)
                else:
                    time.sleep(0.005)
            for p in sides:
                if p.returncode is not None and p.returncode < 0 and -p.returncode not in GOOD_SIGNALS:
                    return f'{p.args[0]} ended by {signal.Signals(-p.returncode).name}: {self.text(p)}', False
                if 'invalid data' in self.text(p) or 'data mismatch' in self.text(p):
                    return f'wrong data: {self.text(p)}', False
            return None, sides[-1].returncode == 0  # a server may stay
        finally:
            for p in sides:
                if p.poll() is None:
                    os.killpg(p.pid, signal.SIGKILL)
                    p.wait()
                p.out.close()

    @staticmethod
    def text(p):
        return os.pread(p.out.fileno(), 1000, 0).decode(errors='replace').replace('\n', '; ')


runner = None  # of a worker


def begin_work(lib, preload, local):
    """Each worker is a host of its own, so that programs with the same ports meet their partners."""
    global runner
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), 'unshare')
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    runner = Runner(lib, preload)
    if local:
        runner.env['SOFTHCA_LOCAL'] = local


def look(program, side):
    """(what is wrong, of each place that of each mode)"""
    places = {}
    for mode in MODES:
        wrong, good = runner.run(program, side, mode)
        if mode.also and wrong and (wrong.startswith('both hang') or own_fault(program[0], '', wrong)):
            continue  # that refusal alone the program itself does not take well
        if wrong or not (good or mode.also):
            return f'{mode}: {wrong or "an end that is no success"}', []
        for place in runner.table.places():
            places.setdefault(place.key, {})[mode] = place
    return None, sorted(places.items())


def occurrences(found):
    """(Which call, the mode for it) of a place: the first, the second and the last one."""
    most = max(found, key=lambda mode: found[mode].count)
    for at in sorted({1, min(2, found[most].count), found[most].count}):
        yield at, next(mode for mode in MODES if mode in found and found[mode].count >= at)


def refuse(program, side, place, at, mode, error):
    """(what is wrong, did both end with 0, which call was refused; 0: it was not reached; -1: it is no call by itself, as the
    last one was then the first or second)"""
    last = at > 2
    modes = [mode] + [m for m in MODES if m != mode]
    most = 0
    for tries in range(TRIES):
        mode = modes[tries % len(modes)]
        wrong, good = runner.run(program, side, mode, (place.key, at, error))
        again = next((p for p in runner.table.places() if p.key == place.key), None)
        if wrong and wrong.startswith('both hang'):  # was it only slow?
            wrong, good = runner.run(program, side, mode, (place.key, at, error), 3 * LIMIT_S)
        if again and again.refused:
            return wrong, good, at
        if wrong:
            break
        if last and again:
            most = max(most, again.count)
            at = max(again.count, 3)
    return wrong, good, -1 if not wrong and 0 < most < 3 else 0


def read_journal(name):
    """Of each program what was tried, and the result."""
    earlier = collections.defaultdict(list)
    if name and os.path.exists(name):
        with open(name) as f:
            for program, *result in map(json.loads, f):
                earlier[program].append(result)
    return earlier


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True)
    ap.add_argument('--preload', required=True)
    ap.add_argument('--every', type=int, default=1, help='only every Nth refusal')
    ap.add_argument('--from', dest='first', type=int, default=0)
    ap.add_argument('--jobs', type=int, default=1, help='so many runs at a time')
    ap.add_argument('--journal', help='goes on with what this file has not')
    ap.add_argument('--local', help='SOFTHCA_LOCAL')
    ap.add_argument('programs', nargs='*')
    opt = ap.parse_args()
    pool = concurrent.futures.ProcessPoolExecutor(
        opt.jobs, initializer=begin_work, initargs=(os.path.abspath(opt.lib), os.path.abspath(opt.preload), opt.local))
    programs = [p for p in PROGRAMS if not opt.programs or p[0] in opt.programs]
    symbols = Symbols(os.path.abspath(opt.lib))
    tried, left, number, bad_cases, looked_at = set(), {}, 0, 0, 0
    earlier = read_journal(opt.journal)
    for name in set(earlier) - {p[0] for p in programs}:
        tried.update(tuple(what) for what, *_ in earlier[name])
    for program in programs:
        number += 1
        counts = collections.Counter()
        seen = False
        wrongs = []

        def take(what, text, wrong, good, hit, own):
            tried.add(what)
            left.pop(what, None)
            counts['refused'] += hit > 0
            counts['missed'] += hit == 0
            counts['good'] += hit > 0 and good
            counts['own'] += own
            if hit == 0:
                left[what] = text
            if wrong and not own:
                wrongs.append(f'{text}: {wrong}')
                print(f'# {wrongs[-1]}', flush=True)

        for what, *result in earlier[program[0]]:
            take(tuple(what), *result)
        for side in (0, 1) if program[1] else (1,):
            wrong, places = pool.submit(look, program, side).result()
            if wrong:
                wrongs.append(f'without a refusal: {wrong}')
                continue
            seen |= bool(places)
            todo = []
            for key, found in places:
                place = next(iter(found.values()))
                for error in errors_of(place):
                    for at, mode in occurrences(found):
                        what = key, error, min(at, 3)
                        if what in left or (what not in tried and (looked_at - opt.first) % opt.every == 0):
                            todo.append((what, place, at, mode, error))
                        looked_at += what not in tried
                        tried.add(what)
            for (what, place, at, mode, error), run in [(t, pool.submit(refuse, program, side, *t[1:])) for t in todo]:
                wrong, good, hit = run.result()
                names = symbols.names(place)
                text = f'side {side}, {place.call} {place.number} at {names}, call {at}, {errno.errorcode[error]}, {mode}'
                result = text, wrong, good, hit, bool(wrong) and own_fault(program[0], names, wrong)
                take(what, *result)
                if opt.journal:
                    with open(opt.journal, 'a') as f:
                        print(json.dumps([program[0], what, *result]), file=f)
        if not seen:
            wrongs.append('without a refusal: no call of ours was seen, so nothing was tested')
        bad_cases += bool(wrongs)
        print(f'{"not ok" if wrongs else "ok"} {number} - {program[0]}: {counts["refused"]} calls refused, {counts["good"]} without a difference, '
              f'{counts["missed"]} not reached, {counts["own"]} that the program itself does not take well')
        print(''.join(f'# {w}\n' for w in wrongs if w.startswith('without')), end='', flush=True)
    pool.shutdown()
    for text in left.values():
        print(f'# not reached by any program: {text}')
    print(f'1..{number}')
    return 1 if bad_cases else 0


if __name__ == '__main__':
    sys.exit(main())
