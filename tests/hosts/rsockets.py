#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Programs that speak rsockets, from one host to another: network namespaces joined by veth. Prints TAP."""

import argparse
import functools
import importlib.util
import os
import re
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'programs'))
sys.dont_write_bytecode = True

import cm  # noqa: E402
import hosts  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402

# Of the same name as this file.
spec = importlib.util.spec_from_file_location('programs_rsockets', os.path.join(HERE, '..', 'programs', 'rsockets.py'))
programs = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = programs
spec.loader.exec_module(programs)

LOSS = {'SOFTHCA_UDP_LOSS': '2'}  # at either end


def build(work, suite):
    """Streams make good what is lost; of datagrams udpong bears it."""
    address = hosts.NEAR[0]
    if suite == 'hosts':
        return programs.build(list(hosts.NEAR), work)
    cases = programs.rstreams(list(hosts.NEAR)) + [programs.rcopy(address, work), programs.udpong(address)]
    if os.path.exists(programs.PRELOAD):
        cases += [programs.iperf3(address), programs.iperf3(address, '-R'), programs.curl(address, work)]
    for case in cases:
        case.name += ' (2 % loss)'
        case.env = case.env | LOSS
    return cases


def run_all(host, opt):
    failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-rsockets-') as work:
        os.chmod(work, 0o777)
        todo = [c for c in build(work, opt.suite) if re.search(opt.filter, c.name)]
        print(f'1..{len(todo)}', flush=True)
        two = hosts.Hosts(1500)
        try:
            for number, case in enumerate(todo, 1):
                missing = [p for p in (case.server[0], case.client[0]) if not shutil.which(p)]
                if missing:
                    print(f'ok {number} - {case.name} # SKIP {missing[0]} is not installed', flush=True)
                    continue
                failed += pairs.report(number, case.name, functools.partial(cm.run_case, host, case, two.there()))
        finally:
            two.close()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lib', required=True, help='directory of our libraries')
    parser.add_argument('--suite', choices=('hosts', 'long'), default='hosts', help='long: a cable that loses packets')
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
