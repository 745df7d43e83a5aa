#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Programs that connect through rdma_cm, from one host to another: network namespaces joined by veth. Prints TAP."""

import argparse
import functools
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'programs'))
sys.dont_write_bytecode = True

import hosts  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402

# Of the same name as this file.
spec = importlib.util.spec_from_file_location('programs_cm', os.path.join(HERE, '..', 'programs', 'cm.py'))
programs = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = programs
spec.loader.exec_module(programs)

LOSS = {'SOFTHCA_UDP_LOSS': '2'}  # at either end; what is made good must be made good in connection management, too


def mckey(near, far, group, sender=()):
    case = programs.mckey(group, sender=sender)
    case.server += ['-b', near]
    case.client += ['-b', far]
    return case


def mckeys():
    return [mckey(hosts.NEAR[0], hosts.FAR[0], '239.78.0.1'),
            mckey(hosts.NEAR[0], hosts.FAR[0], '239.78.0.2', sender=('-o',)),
            mckey(hosts.NEAR[1], hosts.FAR[1], 'ff15::78:1')]


def build(work):
    near = list(hosts.NEAR)
    cases = programs.rpings(near) + programs.examples(near) + mckeys() + programs.perftests(near)
    cases += [programs.qperf(near[0], 'rc_bw', 'rc_lat', 'rc_rdma_read_bw', 'rc_rdma_write_lat'),
              programs.fio(work, near[0], 'write', '64k', '64m'), programs.fio(work, near[0], 'read', '64k', '64m'),
              programs.fio(work, near[0], 'send', '64k', '1m')]
    return cases


def build_lossy():
    near = hosts.NEAR[0]
    cases = [programs.rping(near), programs.pair_of_examples('ucmatose', near, 'tcp', '-c', '10', '-C', '20'),
             programs.perftest('ib_write_bw', near)]
    for case in cases:
        case.name += ' (2 % loss)'
        case.env.update(LOSS)
    return cases


def listener(host, port, user, address='0.0.0.0'):
    side = pairs.Side(host, ['rping', '-s', '-P', '-a', address, '-p', str(port)], user=user)
    deadline = time.monotonic() + 60
    while not programs.holds('tcp', port):
        if side.p.poll() is not None or time.monotonic() > deadline:
            text = side.text()
            side.kill()
            raise pairs.Failure('a listener does not listen: ' + text)
        time.sleep(pairs.POLL_S)
    return side


def ask(host, port, far, address=hosts.NEAR[0]):
    """The status, None where it does not end, and what was said."""
    side = pairs.Side(host, ['rping', '-c', '-a', address, '-p', str(port), '-v', '-C', '2'], prefix=far)
    try:
        return side.wait(time.monotonic() + 60), side.text()
    finally:
        side.kill()
        side.out.close()


def call(host, port, far, address=hosts.NEAR[0]):
    status, text = ask(host, port, far, address)
    if status != 0 or 'rdma-ping-1:' not in text:
        raise pairs.Failure(f'port {port} of {address}: status {status}: {text}')


NEIGHBOURS = 'listeners of two users, and without the one that reads for all'


def neighbours(host, far):
    """The first of them has the network's port and reads QP1's messages for the others."""
    ports = [pairs.free_port() for _ in range(3)]
    listeners = []
    try:
        for port, user in zip(ports, ('a', 'b', 'a')):
            listeners.append(listener(host, port, user))
        for port in ports:
            call(host, port, far)
        listeners[0].kill()
        for port in ports[1:]:
            call(host, port, far)
        listeners[2].kill()  # now the other user is alone
        call(host, ports[1], far)
    finally:
        for side in listeners:
            side.kill()
            side.out.close()


LOOPBACK = 'a listener at a loopback address, for its own host alone'


def loopback(host, far):
    ports = [pairs.free_port() for _ in range(2)]
    listeners = []
    try:
        listeners.append(listener(host, ports[0], 'a', '127.0.0.1'))
        if programs.has_udp_port(hosts.ROCE_PORT):
            raise pairs.Failure('it has opened the port of the network')
        for address in '127.0.0.1', *hosts.NEAR[:1]:
            call(host, ports[0], (), address)
        listeners.append(listener(host, ports[1], 'a'))  # so that somebody reads what other hosts say
        call(host, ports[1], far)
        status, text = ask(host, ports[0], far)
        if not status or 'RDMA_CM_EVENT_REJECTED' not in text:
            raise pairs.Failure(f'another host was not refused: status {status}: {text}')
        call(host, ports[0], ())
    finally:
        for side in listeners:
            side.kill()
            side.out.close()


SCENES = {LOOPBACK: loopback, NEIGHBOURS: neighbours}


def run_all(host, opt):
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-cm-') as work:
        os.chmod(work, 0o755)
        todo = [c for c in build(work) + build_lossy() if re.search(opt.filter, c.name)]
        scenes = [name for name in SCENES if re.search(opt.filter, name)]
        print(f'1..{len(todo) + len(scenes)}', flush=True)
        two = hosts.Hosts(1500)
        try:
            for number, case in enumerate(todo, 1):
                if not shutil.which(case.client[0]):
                    print(f'ok {number} - {case.name} # SKIP {case.client[0]} is not installed', flush=True)
                    continue
                failed += pairs.report(number, case.name, functools.partial(programs.run_case, host, case, two.there()))
            for number, name in enumerate(scenes, len(todo) + 1):
                failed += pairs.report(number, name, functools.partial(SCENES[name], host, two.there()))
        finally:
            two.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True, help='directory of our libraries')
    parser.add_argument('--filter', default='', help='only cases whose name matches this expression')
    opt = parser.parse_args()
    opt.lib = os.path.abspath(opt.lib)
    two = hosts.entered(1500)
    if not two:
        return 0
    two.close()
    host = pairs.Host(opt.lib, users=hosts.has_users())
    try:
        return 1 if run_all(host, opt) else 0
    finally:
        host.close()


if __name__ == '__main__':
    sys.exit(main())
