#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs libfabric's programs, as packaged, over its verbs provider over the libraries; prints TAP.

libfabric looks for connections at interfaces other than lo: as root, the programs run as an ordinary user in a network
namespace that has one, else on the machine's.
"""

import argparse
import re
import shutil
import sys
import time

import cm
import pairs
import special
import tap

ITERATIONS = 20
# Provider and kind of endpoint, as fi_info names them.
ENDPOINTS = {'msg': 'verbs', 'rdm': 'verbs;ofi_rxm', 'dgram': 'verbs'}
NEEDED = {('verbs', 'FI_EP_MSG'), ('verbs;ofi_rxm', 'FI_EP_RDM'), ('verbs', 'FI_EP_DGRAM'), ('verbs;ofi_rxd', 'FI_EP_RDM')}


def endpoints(text):
    return set(re.findall(r'^provider: (\S+)\n(?: .*\n)*?    type: (\S+)$', text, re.M))


def find(host, *options):
    """All kinds of endpoints are there, also without a name to look for."""
    found = endpoints(special.output(host, ['fi_info', '-p', 'verbs', *options]))
    if missing := NEEDED - found:
        raise pairs.Failure(f'not found: {sorted(missing)}; found: {sorted(found)}')


def find_to(host, address):
    """With a node, what connects to it."""
    found = endpoints(special.output(host, ['fi_info', '-p', 'verbs', '-t', 'FI_EP_MSG', '-n', address]))
    if found != {('verbs', 'FI_EP_MSG')}:
        raise pairs.Failure(f'found: {sorted(found)}')


def check_sizes(text):
    """Each line is a size, how often it was sent, and how often it came back unharmed."""
    lines = re.findall(r'^(\S+) +(\d+) +=(\d+) ', text, re.M)
    if len(lines) < 3 or any(int(sent) != ITERATIONS or int(back) != ITERATIONS for _, sent, back in lines):
        raise pairs.Failure(f'not all came back: {lines}')


def pingpong(address, kind, **env):
    port = pairs.free_port()
    common = ['fi_pingpong', '-p', ENDPOINTS[kind], '-e', kind, '-I', str(ITERATIONS), '-c']
    return cm.Case(f'fi_pingpong {ENDPOINTS[kind]} {kind} {" ".join(env.values())}'.rstrip(), [*common, '-B', str(port)],
                   [*common, '-P', str(port), address], ('tcp socket', port), env=env,
                   check=lambda server, client: (check_sizes(server), check_sizes(client)))


def build(host, address):
    cases = [('fi_info without a node', lambda: find(host)), ('fi_info with a node', lambda: find_to(host, address))]
    for kind in ENDPOINTS:
        for env in ({}, {'SOFTHCA_LOCAL': 'ring'}, {'SOFTHCA_PATH': 'wire'}):
            case = pingpong(address, kind, **env)
            cases.append((case.name, lambda case=case: cm.run_case(host, case)))
    return cases


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    ap.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    opt = ap.parse_args()
    if not opt.inside and (status := cm.in_namespace(__file__, [*sys.argv[1:], '--inside'])) is not None:
        return status
    address = next((a for a in cm.interface_addresses() if '.' in a), None)
    if not address:
        print('1..0 # SKIP no interface but lo has an IPv4 address')
        return 0
    if not shutil.which('fi_pingpong'):
        print('1..0 # SKIP fi_pingpong is not installed')
        return 0
    failed = 0
    host = pairs.host_of(opt)
    try:
        cases = [(name, run) for name, run in build(host, address) if re.search(opt.filter, name)]
        print(f'1..{len(cases)}', flush=True)
        for number, (name, run) in enumerate(cases, 1):
            began = time.monotonic()
            try:
                run()
                tap.result(number, name, began)
            except pairs.Failure as e:
                failed += 1
                tap.result(number, name, began, e)
    finally:
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
