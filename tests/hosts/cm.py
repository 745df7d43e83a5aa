#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Programs that connect through rdma_cm, from one host to another: network namespaces joined by veth. Prints TAP."""

import argparse
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


def listener(host, port, user):
    side = pairs.Side(host, ['rping', '-s', '-P', '-a', '0.0.0.0', '-p', str(port)], user=user)
    deadline = time.monotonic() + 60
    while not programs.holds('tcp', port):
        if side.p.poll() is not None or time.monotonic() > deadline:
            text = side.text()
            side.kill()
            raise pairs.Failure('a listener does not listen: ' + text)
        time.sleep(pairs.POLL_S)
    return side


def call(host, port, far):
    side = pairs.Side(host, ['rping', '-c', '-a', hosts.NEAR[0], '-p', str(port), '-v', '-C', '2'], prefix=far)
    try:
        if (status := side.wait(time.monotonic() + 60)) != 0 or 'rdma-ping-1:' not in side.text():
            raise pairs.Failure(f'port {port}: status {status}: {side.text()}')
    finally:
        side.kill()
        side.out.close()


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


def run_all(host, opt):
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-cm-') as work:
        os.chmod(work, 0o755)
        todo = [c for c in build(work) + build_lossy() if re.search(opt.filter, c.name)]
        last = re.search(opt.filter, NEIGHBOURS)
        print(f'1..{len(todo) + bool(last)}', flush=True)
        two = hosts.Hosts(1500)
        try:
            for number, case in enumerate(todo, 1):
                if not shutil.which(case.client[0]):
                    print(f'ok {number} - {case.name} # SKIP {case.client[0]} is not installed', flush=True)
                    continue
                began = time.monotonic()
                try:
                    programs.run_case(host, case, two.there())
                    tap.result(number, case.name, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(number, case.name, began, e)
            if last:
                began = time.monotonic()
                try:
                    neighbours(host, two.there())
                    tap.result(len(todo) + 1, NEIGHBOURS, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(len(todo) + 1, NEIGHBOURS, began, e)
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
