#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the programs that speak rsockets, as packaged, against the libraries; prints TAP.

As root it becomes an ordinary user. Ordinary TCP programs come in through Debian's librspreload.so; that a server's port is a
name of rdma_cm, and no TCP port, is what shows that they do not talk TCP.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time

import cm
import pairs
import tap

PRELOAD = '/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so.1'
FEW = ['-I', '10', '-C', '50']


def rstream(address, *options, env=None, program='rstream', server=(), client=()):
    port = pairs.free_port()
    common = ['-p', str(port), *options]
    if '-S' not in options:
        common += ['-S', '5000']
    if '-I' not in options:
        common += FEW
    name = ' '.join([program, *options, *server, *client, address] + [f'{k}={v}' for k, v in (env or {}).items()])
    bound = ['-b', address] if ':' in address else []
    return cm.Case(name, [program, *common, *bound, *server], [program, *common, '-s', address, *client], ('tcp', port),
                   env=env or {}, says=(r'^(custom|\w+_(lat|bw)) ',), server_says=(r'^(custom|\w+_(lat|bw)) ',))


def rstreams(addresses):
    address = addresses[0]
    cases = [rstream(a, '-T', 'v') for a in addresses]
    cases += [rstream(address, '-T', o, '-T', 'v') for o in 'abn']
    cases += [rstream(address, '-T', 'r'), rstream(address, '-f', 'ip', '-T', 'v'),
              rstream(address, '-k', '1', '-T', 'v'), rstream(address, '-B', '4096', '-T', 'v'),
              rstream(address, '-S', 'all', '-I', '2', '-C', '5', '-T', 'v')]
    gid = '::ffff:' + address
    cases.append(rstream(gid, '-f', 'gid', '-T', 'v'))
    cases += [rstream(address, '-T', o, '-S', '5000', '-I', '3', '-C', '10', program='riostream') for o in 'abnv']
    return cases


def udpong(address, *options, env=None):
    """It ends by itself at the client only. Datagrams get lost: that most come back is enough."""
    port = pairs.free_port()
    common = ['-p', str(port), '-S', '1000']
    return cm.Case(' '.join(['udpong', *options, address] + [f'{k}={v}' for k, v in (env or {}).items()]),
                   ['udpong', *common, '-b', address], ['udpong', *common, '-s', address, '-C', '200', *options],
                   ('udp socket', port), persistent=True, env=env or {}, says=(r'^custom +1000 ',))


def differ(one, other):
    with open(one, 'rb') as a, open(other, 'rb') as b:
        return a.read() != b.read()


def same_files(one, other):
    def check(_server, _client):
        if differ(one, other):
            raise pairs.Failure(f'{other} is not what {one} is')
    return check


def random_file(work, size):
    path = os.path.join(work, f'random-{size}')
    if not os.path.exists(path):
        with open(path, 'wb') as f:
            f.write(os.urandom(size))
        os.chmod(path, 0o644)
    return path


def rcopy(address, work):
    port, source, to = pairs.free_port(), random_file(work, 5000000), os.path.join(work, 'copied')
    return cm.Case('rcopy', ['rcopy', '-p', str(port)], ['rcopy', source, f'{address}:{to}', '-p', str(port)],
                   ('tcp', port), persistent=True, says=('^.*done',), check=same_files(source, to))


# --- through librspreload.so

def iperf3(address, *options):
    port = pairs.free_port()
    # By bytes in reverse, iperf3 3.9 (Debian 11) does not end, over TCP neither.
    amount = ['-t', '2'] if '-R' in options else ['-n', '30M']
    return cm.Case(f'iperf3 {" ".join(options)} with librspreload.so', ['iperf3', '-s', '-1', '-p', str(port)],
                   ['iperf3', '-c', address, '-p', str(port), *amount, *options], ('tcp', port),
                   env={'LD_PRELOAD': PRELOAD}, says=('^iperf Done.$', r' [MG]Bytes .* receiver$'))


def curl(address, work):
    """What the server says is a file that begins with the header of an answer."""
    port, body = pairs.free_port(), random_file(work, 3000000)
    answer, got = os.path.join(work, 'answer'), os.path.join(work, 'fetched')
    with open(answer, 'wb') as to, open(body, 'rb') as data:
        to.write(b'HTTP/1.0 200 OK\r\nContent-Length: 3000000\r\n\r\n' + data.read())
    os.chmod(answer, 0o644)
    return cm.Case('curl from socat with librspreload.so',
                   ['socat', '-U', f'TCP-LISTEN:{port},bind={address}', f'OPEN:{answer},rdonly'],
                   ['curl', '-sS', '-o', got, f'http://{address}:{port}/'], ('tcp', port),
                   env={'LD_PRELOAD': PRELOAD}, check=same_files(body, got))


def forking(address):
    """librspreload.so takes a connection by TCP first, and the forked child by an rsocket then."""
    port = pairs.free_port()
    common = ['rstream', '-T', 'f', '-p', str(port), '-S', '4096', *FEW]
    return cm.Case('rstream -T f with librspreload.so, fork server', common, [*common, '-s', address], ('tcp socket', port),
                   persistent=True, env={'LD_PRELOAD': PRELOAD, 'RDMAV_FORK_SAFE': '1'}, says=('^custom ',))


def can_take_the_fork_semaphore():
    """librspreload.so's fork servers take turns by a semaphore of this name, which is left behind and its maker's alone. Where
    its holder was killed it stays taken, so that of an earlier test is removed."""
    path = '/dev/shm/sem.rsocket_fork'
    try:
        if os.stat(path).st_uid not in (os.geteuid(), pairs.USERS['a']):
            return False
        os.unlink(path)
    except FileNotFoundError:
        pass
    except PermissionError:
        return False
    return True


def build(addresses, work):
    address = addresses[0]
    cases = rstreams(addresses) + [rcopy(address, work)]
    cases += [udpong(a) for a in addresses] + [udpong(address, '-T', o) for o in 'abne']
    if os.path.exists(PRELOAD):
        cases += [iperf3(address), iperf3(address, '-R'), iperf3(address, '-P', '3'), curl(address, work)]
        cases += [forking(address)] if can_take_the_fork_semaphore() else []
    return cases


def build_on_wire(address):
    return [rstream(address, '-T', 'v', env={'SOFTHCA_PATH': 'wire'}), udpong(address, env={'SOFTHCA_PATH': 'wire'})]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(parser)
    parser.add_argument('--filter', default='', help='only cases whose name matches this expression')
    parser.add_argument('--times', type=int, default=1, help='repeat every case')
    options = parser.parse_args()

    host = pairs.host_of(options)
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-rsockets-') as work:
        os.chmod(work, 0o777)
        try:
            addresses = cm.addresses_to_test()
            cases = [c for _ in range(options.times) for c in build(addresses, work) + build_on_wire(addresses[0])
                     if re.search(options.filter, c.name)]
            print(f'1..{len(cases)}', flush=True)
            for number, case in enumerate(cases, 1):
                missing = [p for p in (case.server[0], case.client[0]) if not shutil.which(p)]
                if missing:
                    print(f'ok {number} - {case.name} # SKIP {missing[0]} is not installed', flush=True)
                    continue
                began = time.monotonic()
                try:
                    cm.run_case(host, case)
                    tap.result(number, case.name, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(number, case.name, began, e)
        finally:
            host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
