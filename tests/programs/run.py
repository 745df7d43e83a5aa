#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs RDMA programs, as packaged, against the library; prints TAP.

As root it becomes ordinary users, with RLIMIT_MEMLOCK at 64 KiB. --system takes the machine's own libibverbs and adapter
instead of ours: the way to check the table itself.
"""

import argparse
import functools
import re
import shutil
import sys
import time

import judge
import matrix
import pairs
import special
import tap


def command(case, port, gid, system):
    """The two command lines."""
    args, server, client = list(case.args), list(case.server), list(case.client)
    index = '-g' if case.kind == 'pingpong' else '-x'
    if index not in server:
        args += [index, str(gid)]
    if case.kind == 'perftest':
        args.append('-F')
    head = [case.program, '-p', str(port)]
    return head + args + server, head + args + client + ['127.0.0.1']


def run(host, case, gid):
    port = pairs.free_port()
    server, client = command(case, port, gid, host.system)
    env = dict(case.env, SOFTHCA_LOCAL=case.local)
    if 'XRC' in case.args:
        pairs.forget_xrc_files()
    s, c = pairs.run_pair(host, server, client, port=port, limit=case.limit, users=case.users, env=env,
                          launch=case.launch, signals=case.signals)
    judge.pair(case, (server, s), (client, c), both=case.program.startswith('ib_send'))


def reason_to_skip(host, case):
    if case.users != ('a', 'a') and not host.root:
        return 'only root can become two users'
    if case.launch == 'run' and not host.softhca:
        return 'no softhca command given'
    if shutil.which(case.program) is None:
        return f'{case.program} is not installed'
    return None


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    ap.add_argument('--system', action='store_true', help="the machine's own library and adapter")
    ap.add_argument('--gid', type=int, default=0, help='GID index for cases that name none')
    ap.add_argument('--suite', choices=('programs', 'long'), default='programs')
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    ap.add_argument('--part', default='1/1', metavar='I/N', help='the I-th of N shares of the cases')
    ap.add_argument('--list', action='store_true', help='print names, run nothing')
    ap.add_argument('--times', type=int, default=1, help='repeat every case')
    opt = ap.parse_args()
    if not opt.system and not opt.lib:
        ap.error('--lib or --system')

    host = pairs.host_of(opt)
    failed = 0
    try:
        try:
            found = special.devices(host)
            if not found:
                raise pairs.Failure('ibv_devinfo shows no device')
        except pairs.Failure as e:
            print('1..1')
            tap.result(1, 'devices', time.monotonic(), e)
            return 1
        cases = matrix.build(found, opt.suite)
        if opt.system:
            cases = [c for c in cases if c.local in ('ring', 'auto') and c.users == ('a', 'a')]
        todo = [(name, None, check) for name, check in special.CHECKS if opt.suite == 'programs' and not opt.system]
        todo += [(c.name, c, None) for c in cases]
        todo = [t for t in todo if re.search(opt.filter, t[0])]
        share, shares = map(int, opt.part.split('/'))
        todo = [t for t in todo for _ in range(opt.times)][share - 1::shares]
        print(f'1..{len(todo)}', flush=True)
        for number, (name, case, check) in enumerate(todo, 1):
            if opt.list:
                print(f'ok {number} - {name} # SKIP listed')
                continue
            if case and (why := reason_to_skip(host, case)):
                print(f'ok {number} - {name} # SKIP {why}', flush=True)
                continue
            act = functools.partial(run, host, case, opt.gid) if case else functools.partial(check, host)
            failed += pairs.report(number, name, act)
    finally:
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
