# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The programs that are not a pair, and what can only be seen while a pair runs."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import judge
import matrix
from pairs import Failure, Side, Skip, free_port, run_pair

# Signals that no thread can block, and the two that libc keeps for itself and never lets a mask hold.
UNBLOCKABLE = {int(signal.SIGKILL), int(signal.SIGSTOP), 32, 33}


def output(host, argv, *, launch='lib', env=None, limit=20):
    side = Side(host, argv, launch=launch, env=env)
    try:
        status = side.wait(time.monotonic() + limit)
        text = side.text()
        if status != 0:
            e = Failure(f'{argv[0]}: ' + (f'not done within {limit} s' if status is None else f'exit status {status}'))
            e.note(text)
            raise e
        return text
    finally:
        side.kill()
        side.out.close()


def devices(host):
    return judge.devinfo(output(host, ['ibv_devinfo', '-v']))


def addresses():
    """Interface name → addresses, of interfaces that are up."""
    text = subprocess.run(['ip', '-j', 'addr', 'show'], check=True, capture_output=True, text=True).stdout
    return {i['ifname']: [a['local'] for a in i['addr_info']] for i in json.loads(text)
            if 'UP' in i['flags'] and i['addr_info']}


def check_devices(host):
    text = output(host, ['ibv_devices'])
    rows = [line.split() for line in text.splitlines() if re.match(r'\s+\S+\s+[0-9a-f]{16}\s*$', line)]
    if not rows:
        raise Failure(f'no device in: {text!r}')
    guids = [g for _, g in rows]
    if len(set(guids)) != len(guids) or '0' * 16 in guids:
        raise Failure(f'node GUIDs not distinct or zero: {guids}')
    if [n for n, _ in rows] != [f'softhca{i}' for i in range(len(rows))]:
        raise Failure(f'device names {[n for n, _ in rows]}')
    if text != output(host, ['ibv_devices']):
        raise Failure('a second process sees other devices or GUIDs')


def check_devinfo(host):
    found = devices(host)
    by_address = {a: name for name, addrs in addresses().items() for a in addrs}
    for name, d in found.items():
        want = {'state': 'PORT_ACTIVE (4)', 'phys_state': 'LINK_UP (5)', 'link_layer': 'Ethernet',
                'transport': 'InfiniBand (0)', 'phys_port_cnt': '1'}
        for key, value in want.items():
            if d.get(key) != value:
                raise Failure(f'{name}: {key} is {d.get(key)}, not {value}')
        if d['mtu'] not in (256, 512, 1024, 2048, 4096):
            raise Failure(f'{name}: active_mtu {d["mtu"]}')
        if set(d['node_guid']) <= set('0:'):
            raise Failure(f'{name}: node GUID zero')
        if not d['gids']:
            raise Failure(f'{name}: no GID')
        if int(d['gid_tbl_len']) not in range(8, 17) or d['pkey_tbl_len'] != '1':
            raise Failure(f'{name}: {d["gid_tbl_len"]} GIDs, {d["pkey_tbl_len"]} P_Keys')
        links = set()
        for index, (gid, kind) in d['gids'].items():
            address = gid.removeprefix('::ffff:') if '.' in gid else gid
            if kind != 'RoCE v2':
                raise Failure(f'{name}: GID {index} is {kind}')
            if address not in by_address:
                raise Failure(f'{name}: GID {index} {gid} is no address of this host')
            links.add(by_address[address])
        if len(links) != 1:
            raise Failure(f'{name}: GIDs of several interfaces, {links}')
        if 0 not in d['gids']:
            raise Failure(f'{name}: GID 0 empty')
    first = next(iter(found.values()))['gids'][0][0]
    real = {n for n, addrs in addresses().items() if n != 'lo' and any('.' in a for a in addrs)}
    if real and (not first.startswith('::ffff:') or by_address[first.removeprefix('::ffff:')] == 'lo'):
        raise Failure(f'GID 0 of the first device is {first}, not an IPv4 address of one of {real}')


class Watch:
    """A program on a terminal, so that its lines leave their buffer."""

    def __init__(self, host, argv, limit=20, env=None):
        self.master, slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.side = Side(host, argv, stdout=slave, env=env)
        os.close(slave)
        self.deadline = time.monotonic() + limit
        self.text = ''

    def until(self, words):
        while words not in self.text:
            if self.side.p.poll() is not None or time.monotonic() > self.deadline:
                raise Failure(f'no {words!r} in {self.text!r}, status {self.side.p.poll()}')
            try:
                self.text += os.read(self.master, 4096).decode()
            except OSError:  # nothing yet, or the other end of a terminal closed
                time.sleep(0.005)

    def until_asleep(self):
        while _state(self.side.pid) != 'S':
            if time.monotonic() > self.deadline:
                raise Failure(f'does not sleep: state {_state(self.side.pid)}')
            time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.side.kill()
        self.side.out.close()
        os.close(self.master)


def check_asyncwatch(host):
    """It opens its device, says so, sleeps, and an ordinary signal ends it."""
    with Watch(host, ['ibv_asyncwatch']) as watch:
        watch.until('async event FD')
        watch.until_asleep()
        os.kill(watch.side.pid, signal.SIGTERM)
        status = watch.side.wait(watch.deadline)
        if status != -signal.SIGTERM:
            raise Failure(f'SIGTERM left it with status {status}')


def check_asyncwatch_event(host):
    """An address that comes is an event. In a network namespace of its own, where the user may add one."""
    inside = ['unshare', '--user', '--map-root-user', '--net']
    try:
        output(host, [*inside, 'true'])
    except Failure as e:
        raise Skip('this machine allows no user namespaces') from e
    with Watch(host, [*inside, 'sh', '-c', 'ip link set lo up && exec ibv_asyncwatch']) as watch:
        watch.until('async event FD')
        enter = ['nsenter', '--target', str(watch.side.pid), '--user', '--preserve-credentials', '--net']
        output(host, [*enter, 'ip', 'addr', 'add', '198.51.100.7/32', 'dev', 'lo'])
        watch.until('GID')


def check_raw_ethernet(host):
    """Frames between two processes, in a network namespace where nobody else has frames; as many as the receives that a
    server posts, since like a NIC it loses what finds none."""
    inside = ['unshare', '--user', '--map-root-user', '--net']
    try:
        output(host, [*inside, 'true'])
    except Failure as e:
        raise Skip('this machine allows no user namespaces') from e
    here, there = '02:00:00:00:00:01', '02:00:00:00:00:02'
    for program, size, iterations in (('raw_ethernet_lat', 64, 1000), ('raw_ethernet_bw', 1000, 400)):
        if not shutil.which(program):
            raise Skip(f'{program} is not installed')
        options = ['-F', '-s', str(size), '-n', str(iterations)]
        server = [program, '--server', '-B', here, '-E', there, *options]
        with Watch(host, [*inside, 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh', *server], 120) as watch:
            watch.until('#bytes')
            enter = ['nsenter', '--target', str(watch.side.pid), '--user', '--preserve-credentials', '--net']
            text = output(host, [*enter, program, '--client', '-B', there, '-E', here, *options], limit=60)
            judge.perftest(text, [size], iterations)
            status = watch.side.wait(watch.deadline)
            if status != 0:
                raise Failure(f'{program}: the server ' + ('does not end' if status is None else f'ends with {status}'))


def check_raw_interface(host):
    """From one interface to another, which is its other end: what is sent by the device of the one does not reach rules of
    the other but over the wire. Root of a user namespace may do what that takes."""
    inside = ['unshare', '--user', '--map-root-user', '--net']
    try:
        output(host, [*inside, 'sh', '-c', 'ip link add a0 type veth peer name b0'])
    except Failure as e:
        raise Skip('this machine allows no interfaces in user namespaces') from e
    if not shutil.which('raw_ethernet_lat'):
        raise Skip('raw_ethernet_lat is not installed')
    here, there = '02:00:00:00:00:01', '02:00:00:00:00:02'
    options = ['-F', '-s', '64', '-n', '200']
    script = ('ip link set lo up && ip link add a0 type veth peer name b0 && ip address add 10.78.0.1/24 dev a0 && '
              'ip address add 10.78.1.1/24 dev b0 && ip link set a0 up && ip link set b0 up && exec "$@"')
    names = {'SOFTHCA_DEVICE_NAMES': 'first,second', 'SOFTHCA_LOG': 'info'}
    server = ['raw_ethernet_lat', '--server', '-d', 'first', '-B', here, '-E', there, *options]
    with Watch(host, [*inside, 'sh', '-c', script, 'sh', *server], 120, names) as watch:
        watch.until('#bytes')
        enter = ['nsenter', '--target', str(watch.side.pid), '--user', '--preserve-credentials', '--net']
        text = output(host, [*enter, 'raw_ethernet_lat', '--client', '-d', 'second', '-B', there, '-E', here, *options],
                      env=names, limit=60)
        judge.perftest(text, [64], 200)
        status = watch.side.wait(watch.deadline)
        if status != 0:
            raise Failure('the server ' + ('does not end' if status is None else f'ends with {status}'))


def _state(pid):
    with open(f'/proc/{pid}/stat') as f:
        return f.read().rpartition(')')[2].split()[0]


def _masks(pid):
    """Thread id → blocked signals, of every thread but the first."""
    out = {}
    for tid in os.listdir(f'/proc/{pid}/task'):
        if int(tid) == pid:
            continue
        try:
            with open(f'/proc/{pid}/task/{tid}/status') as f:
                out[int(tid)] = int(re.search(r'^SigBlk:\s*([0-9a-f]+)', f.read(), re.M)[1], 16)
        except FileNotFoundError:
            pass
    return out


def check_thread_masks(host):
    """A signal for the process must find the program's thread: each of ours blocks all that can be blocked."""
    port = free_port()
    seen = {}

    def during(server, client, deadline):
        # A passive target's traffic needs the helper thread, so it is there before the client is done.
        while not seen:
            if server.p.poll() is not None or time.monotonic() > deadline:
                raise Failure('no helper thread seen')
            seen.update(_masks(server.pid))
            time.sleep(0.005)

    argv = ['ib_read_bw', '-F', '-D', '1', '-p', str(port)]
    run_pair(host, argv, argv + ['127.0.0.1'], port=port, limit=30, during=during)
    for tid, mask in seen.items():
        open_signals = [s for s in range(1, 65) if s not in UNBLOCKABLE and not mask >> (s - 1) & 1]
        if open_signals:
            raise Failure(f'thread {tid} leaves signals {open_signals} open')


def check_no_descriptors_inherited(host):
    """What a program execs inherits nothing of ours: ibv_devinfo's own open files are marked close-on-exec."""
    port = free_port()

    def during(server, client, deadline):
        leaky = []
        for fd in os.listdir(f'/proc/{client.pid}/fd'):
            try:
                target = os.readlink(f'/proc/{client.pid}/fd/{fd}')
                with open(f'/proc/{client.pid}/fdinfo/{fd}') as f:
                    flags = int(re.search(r'^flags:\s*([0-7]+)', f.read(), re.M)[1], 8)
            except FileNotFoundError:
                continue
            if 'softhca' in target and not flags & os.O_CLOEXEC:
                leaky.append(target)
        if leaky:
            raise Failure(f'open across exec: {leaky}')

    argv = ['ib_read_bw', '-F', '-D', '1', '-p', str(port)]
    run_pair(host, argv, argv + ['127.0.0.1'], port=port, limit=30, during=during)


VALGRIND = ('valgrind', '-q', '--leak-check=no')


def check_valgrind(host):
    """A program under valgrind, whose memory is not mapped, and one that is not and asks for mapped memory: either may be
    the server."""
    if not shutil.which(VALGRIND[0]):
        raise Skip('valgrind is not installed')
    args = ('-n', '200', '-s', '65536', '-c')
    for near, far in (VALGRIND, ()), ((), VALGRIND):
        port = free_port()
        case = matrix.pingpong('ibv_rc_pingpong', 1024, size=65536, iters=200, args=('-c',))
        command = ['ibv_rc_pingpong', '-p', str(port), '-g', '0', *args]
        server, client = [*near, *command], [*far, *command, '127.0.0.1']
        said = run_pair(host, server, client, port=port, limit=120, env={'SOFTHCA_LOCAL': 'mapped'})
        judge.pair(case, (server, said[0]), (client, said[1]))
        for text in said:
            if 'libibverbs' in text:
                raise Failure('valgrind complains of the library: ' + text)


CHECKS = (
    ('ibv_devices', check_devices),
    ('ibv_devinfo -v', check_devinfo),
    ('ibv_asyncwatch', check_asyncwatch),
    ('ibv_asyncwatch sees an address come', check_asyncwatch_event),
    ('raw_ethernet_lat and raw_ethernet_bw', check_raw_ethernet),
    ('raw_ethernet_lat from one interface to another', check_raw_interface),
    ('helper threads block all signals', check_thread_masks),
    ('under valgrind', check_valgrind),
    ('no descriptor survives exec', check_no_descriptors_inherited),
)
