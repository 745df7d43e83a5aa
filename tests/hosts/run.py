#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""RDMA programs on two hosts: network namespaces joined by veth, an unprivileged process in each. Prints TAP."""

import argparse
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, replace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'programs'))
sys.dont_write_bytecode = True

import hosts  # noqa: E402
import judge  # noqa: E402
import matrix  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402
from matrix import perftest, pingpong  # noqa: E402

MTUS = {1024: 1500, 4096: 4300}  # path MTU → of the cable


@dataclass(frozen=True)
class Way:
    mtu: int = 1024
    gid: int = 0  # index: 0 is IPv4, 1 is IPv6
    netem: tuple = ()
    plain: bool = False  # SOFTHCA_UDP=plain
    loss: int = 0  # SOFTHCA_UDP_LOSS: as netem's, where there is none

    @property
    def name(self):
        words = [f'MTU {self.mtu}', 'IPv6' if self.gid else 'IPv4', *self.netem]
        return ' '.join(words + (['plain'] if self.plain else []) + ([f'{self.loss} % lost'] if self.loss else []))


def xrc():
    return [matrix.Case('ibv_xsrq_pingpong')] + [perftest(p, iters=200, args=('-c', 'XRC')) for p in
                                                 ('ib_send_bw', 'ib_write_lat', 'ib_read_bw', 'ib_atomic_lat')]


def some(mtu):
    """What every change must pass."""
    out = [pingpong(p, mtu, args=('-c',)) for p in matrix.PINGPONGS]
    out += [pingpong(p, mtu, args=('-e', '-c')) for p in ('ibv_rc_pingpong', 'ibv_ud_pingpong')]
    out.append(pingpong('ibv_rc_pingpong', mtu, size=1 << 20, iters=50, args=('-c',)))
    out += [perftest(p, iters=200) for p in matrix.BW + matrix.LAT]
    # One datagram at a time: what a stream of them overruns is lost, and perftest waits for it.
    out += [perftest(p, iters=200, args=('-c', 'UC')) for p in ('ib_send_lat', 'ib_write_lat')]
    out.append(perftest('ib_send_lat', size=1024, iters=200, args=('-c', 'UD')))
    out += [perftest(p, args=('-a',), sizes=matrix.ALL_SIZES, iters=5) for p in ('ib_write_bw', 'ib_read_bw')]
    out += [perftest('ib_send_bw', iters=100, qps=16, args=('-e',)), perftest('ib_write_bw', iters=200, args=('-b',))]
    return out + xrc()


def is_stream_of_datagrams(case):
    return case.program == 'ib_send_bw' and ('UC' in case.args or 'UD' in case.args)


def all_of(mtu):
    sizes = (1, 2, 63, 1023, 1025, 4095, 4097, 65537, 1 << 20)
    cases = matrix.pingpongs(mtu, sizes) + matrix.transports(mtu) + matrix.options(mtu) + matrix.xrc()
    return [c for c in cases if not is_stream_of_datagrams(c)]


def few(mtu):
    """What shows that a way works at all."""
    return [pingpong('ibv_rc_pingpong', mtu, args=('-c',)), pingpong('ibv_ud_pingpong', mtu, args=('-c',)),
            perftest('ib_write_bw', iters=200), perftest('ib_send_lat', iters=200)]


def lossy(mtu):
    """RC has to make good what the cable does; UC and UD may lose. ibv_*_pingpong have no way to be sure of their last
    message: one ends when it has come, and if its acknowledgement is lost nobody is there to acknowledge it again."""
    out = [perftest(p, iters=200) for p in matrix.BW + matrix.LAT]
    out += [perftest('ib_write_bw', iters=50, qps=16), perftest('ib_send_bw', size=1 << 20, iters=20)]
    return out + xrc()[1:]


def disturbed(mtu):
    return [pingpong('ibv_rc_pingpong', mtu, args=('-c',)), pingpong('ibv_srq_pingpong', mtu, args=('-c',)), *lossy(mtu)]


def plan(suite):
    if suite == 'hosts':
        return [(Way(), some(1024)), (Way(4096, 1), few(4096)), (Way(plain=True), few(1024)),
                (Way(netem=('loss', '1%')), few(1024)[2:]),
                (Way(4096, loss=3), [perftest(p, iters=200) for p in ('ib_write_bw', 'ib_read_bw', 'ib_atomic_lat')] + xrc()[1:])]
    ways = [Way(mtu, gid, plain=plain) for mtu in MTUS for gid in (0, 1) for plain in (False, True)]
    out = [(w, all_of(w.mtu) if not w.plain else some(w.mtu)) for w in ways]
    for netem in (('delay', '1ms', '1ms', 'reorder', '10%'), ('duplicate', '5%')):
        out += [(Way(4096, gid, netem), disturbed(4096)) for gid in (0, 1)]
    for netem in (('loss', '1%'), ('loss', '5%'), ('corrupt', '1%')):
        out += [(Way(4096, gid, netem), lossy(4096)) for gid in (0, 1)]
    out += [(Way(mtu, loss=loss), lossy(mtu)) for mtu in MTUS for loss in (1, 5)]
    return out


def command(case, way, port):
    # A datagram is as large as the interface lets it be.
    mtu = [] if 'ibv_ud' in case.program else ['-m', str(way.mtu)]
    args = [*case.args, *mtu, '-g' if case.kind == 'pingpong' else '-x', str(way.gid)]
    if case.kind == 'perftest':
        args.append('-F')
    head = [case.program, '-p', str(port), *args]
    return head, head + [hosts.NEAR[0]]


def run(host, two, case, way):
    port = pairs.free_port()
    server, client = command(case, way, port)
    env = dict(case.env, **({'SOFTHCA_UDP': 'plain'} if way.plain else {}),
               **({'SOFTHCA_UDP_LOSS': str(way.loss)} if way.loss else {}))
    if 'XRC' in case.args:
        pairs.forget_xrc_files()
    s, c = pairs.run_pair(host, server, client, port=port, limit=case.limit, env=env, far=two.there())
    judge.pair(case, (server, s), (client, c))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True, help='directory of libibverbs.so.1')
    ap.add_argument('--suite', choices=('hosts', 'long'), default='hosts')
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    ap.add_argument('--part', default='1/1', metavar='I/N', help='the I-th of N shares of the cases')
    ap.add_argument('--list', action='store_true', help='print names, run nothing')
    opt = ap.parse_args()
    opt.lib = os.path.abspath(opt.lib)

    todo = [(f'{way.name}: {case.name}', way, replace(case, local='auto')) for way, cases in plan(opt.suite)
            for case in cases]
    todo = [t for t in todo if re.search(opt.filter, t[0])]
    share, shares = map(int, opt.part.split('/'))
    todo = todo[share - 1::shares]
    if opt.list:
        print('\n'.join(name for name, _, _ in todo))
        return 0
    two = hosts.entered(1500)
    if not two:
        return 0
    two.close()

    print(f'1..{len(todo)}', flush=True)
    host = pairs.Host(opt.lib, users=hosts.has_users())
    failed, two, now = 0, None, None
    try:
        for number, (name, way, case) in enumerate(todo, 1):
            began = time.monotonic()
            if shutil.which(case.program) is None:
                tap.result(number, name, began, skip=f'{case.program} is not installed')
                continue
            try:
                if now != way:
                    if two:
                        two.close()
                    two, now = hosts.Hosts(MTUS[way.mtu]), way
                    two.disturb(*way.netem)
                run(host, two, case, way)
                tap.result(number, name, began)
            except hosts.Unable as e:
                now = None
                tap.result(number, name, began, skip=str(e))
            except pairs.Skip as e:
                tap.result(number, name, began, skip=str(e))
            except pairs.Failure as e:
                failed += 1
                tap.result(number, name, began, failure=e)
    finally:
        if two:
            two.close()
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
