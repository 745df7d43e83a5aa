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
import run  # noqa: E402

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


def run_all(host, opt):
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-cm-') as work:
        os.chmod(work, 0o755)
        todo = [c for c in build(work) + build_lossy() if re.search(opt.filter, c.name)]
        print(f'1..{len(todo)}', flush=True)
        two = hosts.Hosts(1500)
        try:
            for number, case in enumerate(todo, 1):
                if not shutil.which(case.client[0]):
                    print(f'ok {number} - {case.name} # SKIP {case.client[0]} is not installed', flush=True)
                    continue
                began = time.monotonic()
                try:
                    programs.run_case(host, case, two.there())
                    run.tap(number, case.name, began)
                except pairs.Failure as e:
                    failed += 1
                    run.tap(number, case.name, began, e)
        finally:
            two.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True, help='directory of our libraries')
    parser.add_argument('--filter', default='', help='only cases whose name matches this expression')
    opt = parser.parse_args()
    opt.lib = os.path.abspath(opt.lib)
    try:
        hosts.enter()
        hosts.Hosts(1500).close()
    except hosts.Unable as e:
        print(f'1..0 # SKIP {e}')
        return 0
    host = pairs.Host(opt.lib, users=hosts.has_users())
    try:
        return 1 if run_all(host, opt) else 0
    finally:
        host.close()


if __name__ == '__main__':
    sys.exit(main())
