#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the programs that connect through rdma_cm, as packaged, against the libraries; prints TAP.

As root it becomes an ordinary user. --namespace runs them in a network namespace of their own, with one interface beside lo.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import judge
import pairs
import tap

PS = {'tcp': 0x106, 'udp': 0x111, 'ipoib': 0x2, 'ib': 0x13f}
NAMESPACE_ADDRESS = '10.77.0.1', 'fd77::1'


@dataclass
class Case:
    name: str
    server: list
    client: list
    ready: tuple = ('tcp', 0)  # port space and port, or 'tcp socket' or 'udp socket' and a port of the kernel's
    persistent: bool = False   # the server goes on: it is ended when the client is done
    says: tuple = ()           # expressions that the client's output must hold
    server_says: tuple = ()
    check: object = None       # function of both outputs
    env: dict = field(default_factory=dict)
    launch: str = 'lib'
    limit: int = 120
    mended: tuple = (0, '')    # the release of rdma-core from which on its program can do this, and why not before


def rdma_core():
    """The release whose library the distribution has: libibverbs.so.1.14.44.0 is of 44."""
    libraries = [os.path.basename(path) for path in glob.glob('/usr/lib*/libibverbs.so.1.*') + glob.glob('/usr/lib/*/libibverbs.so.1.*')]
    return max((int(name.split('.')[4]) for name in libraries), default=0)


# --- when a server is ready

def holds(port_space, port, sockets='/proc/net/unix'):
    """Somebody holds the port: its name is in the kernel's list (engine/cm/services.h)."""
    name = f'@softhca/2/cm/{PS[port_space] << 16 | port:016x}/'
    with open(sockets, encoding='ascii', errors='replace') as lines:
        return any(name in line for line in lines)


def has_udp_port(port):
    for name in '/proc/net/udp', '/proc/net/udp6':
        if os.path.exists(name):
            with open(name, encoding='ascii') as sockets:
                if any(line.split()[1].endswith(f':{port:04X}') for line in sockets):
                    return True
    return False


def is_ready(case, server):
    kind, port = case.ready
    if kind == 'tcp socket':
        return pairs.listening(port)
    if kind == 'udp socket':
        return has_udp_port(port)
    if kind == 'group':
        return 'joined' in server.text()
    return holds(kind, port)


def run_case(host, case, far=()):
    """far: in front of the client."""
    deadline = time.monotonic() + case.limit
    sides = []
    try:
        server = pairs.Side(host, case.server, env=case.env, launch=case.launch)
        sides.append(server)
        while not is_ready(case, server):
            if server.p.poll() is not None:
                raise pairs.Failure(f'server ended before it was ready, status {server.p.returncode}')
            if time.monotonic() > deadline:
                raise pairs.Failure(f'server was not ready within {case.limit} s')
            time.sleep(pairs.POLL_S)
        client = pairs.Side(host, case.client, env=case.env, launch=case.launch, prefix=far)
        sides.append(client)
        status = client.wait(deadline)
        if status != 0:
            raise pairs.Failure(f'client exit status {status}' if status is not None
                                else f'client not done within {case.limit} s')
        if case.persistent:
            server.kill()
        elif (status := server.wait(deadline)) != 0:
            raise pairs.Failure(f'server exit status {status}' if status is not None
                                else f'server not done within {case.limit} s')
        judge_case(case, server.text(), client.text())
    except pairs.Failure as e:
        for side in sides:
            side.kill()
        for side, name in zip(sides, ('server', 'client')):
            e.note(f'{name}: ' + ' '.join(map(str, side.p.args)))
            e.note(side.text())
        raise
    finally:
        for side in sides:
            side.kill()
            side.out.close()


def judge_case(case, server, client):
    for name, text in ('server', server), ('client', client):
        if bad := judge.trouble(text):
            raise pairs.Failure(f'{name}: {bad}')
    for name, text, wanted in ('client', client, case.says), ('server', server, case.server_says):
        for expression in wanted:
            if not re.search(expression, text, re.M):
                raise pairs.Failure(f'{name} does not say {expression!r}')
    if case.check:
        case.check(server, client)


# --- the table

def any_of(address):
    return '::' if ':' in address else '0.0.0.0'


def rping(address, *options, server=(), count=10, name='', persistent=False):
    port = pairs.free_port()
    common = ['-p', str(port), '-v', '-V', '-C', str(count), *options]
    lines = tuple(rf'^ping data: rdma-ping-{i}: ' for i in range(count))
    mended = (40, 'it posts a receive to a QP in RESET, which IBA refuses') if '-q' in options else (0, '')
    return Case(f'rping {" ".join(options)} {name}{address}',
                ['rping', '-s', '-a', any_of(address), *common, *server],
                ['rping', '-c', '-a', address, *common], ('tcp', port), says=lines, persistent=persistent,
                mended=mended)


def rpings(addresses):
    cases = [rping(a) for a in addresses]
    cases += [rping(addresses[0], '-q'), rping(addresses[-1], '-q'), rping(addresses[0], '-S', '60000', count=20)]
    cases.append(rping(addresses[0], server=['-P'], name='(persistent server) ', persistent=True))
    return cases


def pair_of_examples(program, address, ps, *options, bind=None):
    port = pairs.free_port()
    common = ['-p', str(port), *options] if program == 'ucmatose' else list(options)
    if program == 'udaddy':
        port = 7174  # its own; -p is the port space
    server = [program, *common] + (['-b', bind] if bind else ['-b', any_of(address)])
    return Case(f'{program} {" ".join(options)} {address}', server, [program, *common, '-s', address], (ps, port),
                says=(r'^test complete$', r'^return status 0$'), server_says=(r'^data transfers complete$',))


def cmtime(address):
    """Until rdma-core 56 the client names its server, from 59 on both sides name an address of their own and meet at a controller,
    which is the server here, by TCP."""
    port = pairs.free_port()
    usage = subprocess.run(['cmtime', '-h'], capture_output=True, text=True).stdout if shutil.which('cmtime') else ''
    # The server of rdma-core 56 has room for 100 connections if it is not told, and crashes; it ends by itself.
    common = ['cmtime', '-c', '1000', '-p', str(port)]
    if 'controller_address' in usage:
        common += ['-b', address, '-C', address]
        return Case('cmtime -c 1000', [*common, '-L'], common, ('tcp socket', port),
                    says=(r'^cm connect +\d', r'^disconnect +\d'))
    return Case('cmtime -c 1000', common, [*common, '-s', address], ('tcp', port), persistent=True,
                says=(r'^(connect +:|cm connect +\d)', r'^disconnect +[:\d]'))


def examples(addresses):
    cases = [pair_of_examples('ucmatose', a, 'tcp') for a in addresses]
    cases += [pair_of_examples('ucmatose', addresses[0], 'tcp', *o) for o in
              (['-c', '10', '-C', '20', '-S', '4096'], ['-m', '-c', '3'], ['-t', '8', '-a', '20'])]
    cases.append(pair_of_examples('ucmatose', addresses[0], 'ib', '-P', 'ib'))
    gid = '::ffff:' + addresses[0]
    cases.append(pair_of_examples('ucmatose', gid, 'tcp', '-f', 'gid', bind=gid))
    cases += [pair_of_examples('udaddy', a, 'udp') for a in addresses]
    cases.append(pair_of_examples('udaddy', addresses[0], 'udp', '-c', '5', '-C', '10', '-S', '1000'))
    cases.append(pair_of_examples('udaddy', addresses[0], 'ipoib', '-P', 'ipoib'))
    port = pairs.free_port()
    cases.append(Case('rdma_client, rdma_server', ['rdma_server', '-p', str(port)],
                      ['rdma_client', '-s', addresses[0], '-p', str(port)], ('tcp', port),
                      says=('^rdma_client: end 0$',), server_says=('^rdma_server: end 0$',)))
    for kind, port_space in ('r', 'tcp'), ('x', 'ib'):
        port = pairs.free_port()
        cases.append(Case(f'rdma_xclient, rdma_xserver -c {kind}', ['rdma_xserver', '-p', str(port), '-c', kind],
                          ['rdma_xclient', '-s', addresses[0], '-p', str(port), '-c', kind], (port_space, port),
                          says=('^rdma_xclient: end 0$',), server_says=('^rdma_xserver: end 0$',)))
    cases.append(cmtime(addresses[0]))
    return cases


def mckey(group, *options, sender=()):
    """What the receiver says must be seen before it ends: the sender comes when it has joined."""
    common = ['mckey', '-m', group, '-C', '5', '-S', '500', *options]
    return Case(f'mckey {" ".join(options)} {group}' + (' (send-only)' if sender else ''), ['stdbuf', '-oL', *common],
                common + ['-s', *sender], ('group', 0), server_says=('^data transfers complete$',),
                says=('^data transfers complete$', r'^mckey: joined dgid: \S*'))


def mckeys():
    return [mckey('239.77.0.1', '-b', '127.0.0.1'), mckey('239.77.0.2', '-b', '127.0.0.1', sender=('-o',))]


def perftest(program, address, *options, size=None, iterations=1000):
    port = pairs.free_port()
    common = [program, '-R', '-F', '-p', str(port), '-n', str(iterations), *options]
    common += ['-s', str(size)] if size else []
    size = size or (65536 if program.endswith('bw') else 2)
    qps = int(options[options.index('-q') + 1]) if '-q' in options else 1

    def check(server, client):
        judge.perftest(client, (size,), iterations * qps)
    # With -R perftest connects a second time for what it has to tell: the first port is the one to wait for.
    return Case(f'{program} -R {" ".join(options)} {address}', common, common + [address], ('tcp', port), check=check)


def perftests(addresses):
    addresses = [a for a in addresses if '.' in a]  # perftest looks its server up as IPv4 only
    cases = [perftest(f'ib_{what}_{how}', addresses[i % len(addresses)]) for i, (what, how) in
             enumerate((w, h) for w in ('send', 'write', 'read') for h in ('bw', 'lat'))]
    cases += [perftest('ib_send_bw', addresses[0], '-c', 'UD', size=1024),
              perftest('ib_send_lat', addresses[-1], '-c', 'UD')]
    cases.append(perftest('ib_write_bw', addresses[0], '-q', '4', '-T', '96', iterations=100))
    return cases


def check_qperf(server, client):
    results = re.findall(r'^ +(?:bw|latency|msg_rate|send_bw|recv_bw) += +([\d.]+)', client, re.M)
    if not results or any(float(r) <= 0 for r in results):
        raise pairs.Failure('no results')


def qperf(address, *tests):
    port = pairs.free_port()
    return Case(f'qperf -cm1 {" ".join(tests)}', ['qperf', '-lp', str(port)],
                ['qperf', '-lp', str(port), '-cm1', '-t', '1', address, *tests], ('tcp socket', port), persistent=True,
                says=tuple(f'^{t}:$' for t in tests), check=check_qperf)


FIO_SERVER = """
[receiver]
ioengine=rdma
port={port}
bs={block}
size={size}
rw=read
iodepth=16
{verify}
"""
FIO_CLIENT = """
[sender]
ioengine=rdma
hostname={address}
port={port}
verb={verb}
bs={block}
size={size}
rw=write
iodepth=16
{verify}
"""


def fio(work, address, verb, block, size):
    """fio asks for no retry when a receive is missing, so its SENDs are as many as the receives that it posts at first; and
    only what is sent has a receiver who can verify it."""
    port = pairs.free_port()
    sends = verb == 'send'
    paths = []
    for name, text, verify in (('server', FIO_SERVER, 'verify=crc32c'),
                               ('client', FIO_CLIENT, 'verify=crc32c\ndo_verify=0')):
        paths.append(os.path.join(work, f'{name}-{verb}.fio'))
        with open(paths[-1], 'w', encoding='ascii') as job:
            job.write(text.format(port=port, block=block, size=size, address=address, verb=verb,
                                  verify=verify if sends else ''))
    return Case(f'fio {verb}{" (verified)" if sends else ""}', ['fio', paths[0]], ['fio', paths[1]], ('tcp', port),
                says=(r'^sender: .* err= 0:',), server_says=(r'^receiver: .* err= 0:',))


def ucx(address, device):
    """io_demo is UCX's own example of client and server: connections by address, RDMA READ and WRITE, data checked."""
    port = pairs.free_port()
    env = {'UCX_TLS': 'rc_v,ud_v,self', 'UCX_SOCKADDR_TLS_PRIORITY': 'rdmacm', 'UCX_NET_DEVICES': f'{device}:1'}
    return Case('UCX io_demo with rdmacm', ['io_demo', '-p', str(port), '-q'],
                ['io_demo', '-p', str(port), '-i', '200', '-o', 'read,write', '-q', '-n', '30', address],
                ('tcp', port), persistent=True, launch='run', env=env, says=("Client exit with status 'OK'",))


def build(addresses, devices, work):
    cases = rpings(addresses) + examples(addresses) + mckeys() + perftests(addresses)
    cases.append(qperf(addresses[0], 'rc_bw', 'rc_lat', 'rc_rdma_read_bw', 'rc_rdma_write_lat', 'rc_rdma_write_poll_lat'))
    cases += [fio(work, addresses[0], 'write', '64k', '64m'), fio(work, addresses[0], 'read', '64k', '64m'),
              fio(work, addresses[0], 'send', '64k', '1m')]
    for address in addresses:
        if address in devices:
            cases.append(ucx(address, devices[address]))
            break
    return cases


def build_namespace(addresses):
    return [rping(a) for a in addresses] + [pair_of_examples('udaddy', a, 'udp') for a in addresses[:3]] + [
        perftest('ib_write_bw', NAMESPACE_ADDRESS[0])]


# --- the machine

def interface_addresses():
    """Of interfaces that are up, the loopback's last; link-local ones are no GIDs unless there is nothing else."""
    text = subprocess.run(['ip', '-j', 'addr', 'show'], check=True, capture_output=True, text=True).stdout
    return [a['local'] for i in json.loads(text) if 'UP' in i['flags'] and 'LOOPBACK' not in i['flags']
            for a in i['addr_info'] if a['scope'] == 'global' and not a.get('tentative')]


def addresses_to_test():
    """127.0.0.1 first; ::1 where there is IPv6; one address of each family of an interface."""
    found = ['127.0.0.1']
    if os.path.exists('/proc/net/if_inet6') and ' lo' in open('/proc/net/if_inet6', encoding='ascii').read():
        found.append('::1')
    for wanted in '.', ':':
        found += [a for a in interface_addresses() if wanted in a][:1]
    return found


def devices_by_address(host):
    """Address → device, of GIDs as ibv_devinfo shows them."""
    text = subprocess.run(host.argv(['ibv_devinfo', '-v']), env=host.env(), capture_output=True, text=True).stdout
    found = {}
    for name, device in judge.devinfo(text).items():
        for gid, _ in device['gids'].values():
            found[gid.removeprefix('::ffff:')] = name
    return found


def in_namespace(program, arguments, why=lambda reason: None):
    """Starts a script again in a network namespace with lo and one more interface: its status. None where that cannot be,
    and why() is told."""
    if os.geteuid() != 0:
        return why('as root only: in a user namespace there is no second user to run programs as')
    script = ('ip link set lo up && ip link add test0 type veth peer name test1 && '
              f'ip addr add {NAMESPACE_ADDRESS[0]}/24 dev test0 && ip link set test1 up && '
              f'ip addr add {NAMESPACE_ADDRESS[1]}/64 nodad dev test0 2>/dev/null; ip link set test0 up && exec "$@"')
    unshare = ['unshare', '--net']
    probe = subprocess.run(unshare + ['sh', '-c', 'ip link set lo up && ip link add test0 type veth peer name test1'],
                           capture_output=True, text=True)
    if probe.returncode:
        return why('no network namespace with an interface can be made here: ' + ' '.join(probe.stderr.split()))
    return subprocess.run(unshare + ['sh', '-c', script, 'sh', sys.executable, program, *arguments]).returncode


def enter_namespace(arguments):
    return in_namespace(__file__, arguments, lambda reason: print('1..0 # SKIP ' + reason)) or 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(parser)
    parser.add_argument('--namespace', action='store_true')
    parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument('--filter', default='', help='only cases whose name matches this expression')
    parser.add_argument('--times', type=int, default=1, help='repeat every case')
    options = parser.parse_args()
    if options.namespace:
        return enter_namespace([a for a in sys.argv[1:] if a != '--namespace'] + ['--inside'])

    host = pairs.host_of(options)
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-cm-') as work:
        os.chmod(work, 0o755)
        try:
            addresses = addresses_to_test()
            cases = build_namespace(addresses) if options.inside else build(addresses, devices_by_address(host), work)
            cases = [c for c in cases if re.search(options.filter, c.name) for _ in range(options.times)]
            print(f'1..{len(cases)}', flush=True)
            release = rdma_core()
            for number, case in enumerate(cases, 1):
                since, reason = case.mended
                if 0 < release < since:
                    print(f'ok {number} - {case.name} # SKIP rdma-core {release}: {reason} (mended in {since})', flush=True)
                    continue
                if not shutil.which(case.client[0]):
                    print(f'ok {number} - {case.name} # SKIP {case.client[0]} is not installed', flush=True)
                    continue
                began = time.monotonic()
                try:
                    run_case(host, case)
                    tap.result(number, case.name, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(number, case.name, began, e)
        finally:
            host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
