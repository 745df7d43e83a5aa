#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""RDMA programs between this adapter and the kernel's Soft-RoCE, in a guest of QEMU (lab.py). Prints TAP."""

import argparse
import os
import re
import sys
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'programs')]
sys.dont_write_bytecode = True

import connect  # noqa: E402
import guest  # noqa: E402
import judge  # noqa: E402
import lab  # noqa: E402
import matrix  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402
from matrix import perftest, pingpong  # noqa: E402

SMOKE_LIMIT, LONG_LIMIT = 900, 7200


@dataclass(frozen=True)
class Way:
    we_serve: bool = False
    mtu: int = 1024
    ipv6: bool = False
    netem: tuple = ()

    @property
    def name(self):
        words = ['rxe to us' if self.we_serve else 'us to rxe', f'MTU {self.mtu}', 'IPv6' if self.ipv6 else 'IPv4']
        return ' '.join([*words, *self.netem])


def smoke():
    """One of each kind; the emulated processor is slow."""
    def both(mtu, ipv6, cases):
        return [(Way(we_serve, mtu, ipv6), c) for we_serve in (False, True) for c in cases]

    out = both(1024, False, [pingpong(p, 1024, iters=50, args=('-c',)) for p in matrix.PINGPONGS])
    out += both(4096, True, [perftest('ib_send_bw', size=65536, iters=20, args=('-e',)),
                             perftest('ib_write_bw', size=65536, iters=20, qps=2),
                             perftest('ib_read_bw', size=65536, iters=20), perftest('ib_atomic_bw', iters=20)])
    return out + [(Way(we_serve), c) for we_serve in (False, True) for c in connect.few(we_serve)]


def full(mtu):
    """Fewer rounds than on a real processor, and no streams of datagrams: what they overrun is lost, and perftest waits."""
    out = [pingpong(p, mtu, iters=100, args=a) for p in matrix.PINGPONGS for a in (('-c',), ('-e', '-c'))]
    out += [pingpong(p, mtu, size=s, iters=20, args=('-c',)) for p in matrix.PINGPONGS for s in (1, 1023, 4097)
            if s <= mtu or 'ud' not in p]
    # Sixteen QPs, its default, with so much each take the guest longer than they wait.
    out += [pingpong('ibv_rc_pingpong', mtu, size=1 << 18, iters=20, args=('-c',)),
            pingpong('ibv_srq_pingpong', mtu, size=1 << 18, iters=20, args=('-c', '-q', '1'))]
    out += [perftest(p, iters=50) for p in matrix.BW + matrix.LAT]
    out += [perftest(p, iters=20, args=('-A', 'CMP_AND_SWAP')) for p in ('ib_atomic_bw', 'ib_atomic_lat')]
    out += [perftest(p, args=('-a',), sizes=matrix.ALL_SIZES, iters=5)
            for p in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw', 'ib_send_lat', 'ib_write_lat', 'ib_read_lat')]
    out += [perftest(p, args=('-c', 'UC'), sizes=(2,), iters=50) for p in ('ib_send_lat', 'ib_write_lat')]
    out += [perftest(p, size=s, args=('-c', 'UC'), iters=10) for p in ('ib_send_lat', 'ib_write_lat')
            for s in (1, mtu, mtu + 1, 65536)]
    out += [perftest('ib_send_lat', args=('-c', 'UD'), iters=50),
            perftest('ib_send_lat', args=('-a', '-c', 'UD'), sizes=matrix.ud_sizes(mtu), iters=10)]
    out += [perftest(p, iters=50, args=('-e',)) for p in matrix.BW + matrix.LAT if 'write' not in p]
    out += [perftest(p, size=None if 'atomic' in p else 4096, qps=16, iters=10) for p in matrix.BW]
    out += [perftest(p, iters=20, args=('-b',)) for p in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw')]
    out += [perftest(p, iters=50, args=('--use-srq',)) for p in ('ib_send_bw', 'ib_send_lat')]
    return out


def disturbed(mtu):
    """RC has to make good what the cable does; UC and UD may lose."""
    out = [pingpong('ibv_rc_pingpong', mtu, iters=200, args=('-c',)),
           pingpong('ibv_rc_pingpong', mtu, size=1 << 18, iters=20, args=('-c',)),
           pingpong('ibv_srq_pingpong', mtu, iters=200, args=('-c',))]
    out += [perftest(p, iters=100) for p in matrix.BW + matrix.LAT]
    # Its own 64 KiB, ten of each QP, are more at once than the receiver's buffer holds (docs/wire.md).
    out += [perftest('ib_write_bw', size=16384, iters=10, qps=16), perftest('ib_send_bw', size=1 << 20, iters=10)]
    return out


LOSSES = (('loss', '1%'), ('loss', '5%'), ('delay', '1ms', '1ms', 'reorder', '10%'))


def connections():
    return [(Way(we_serve), c) for we_serve in (False, True) for c in connect.full(we_serve)] + [
        (Way(we_serve, netem=('loss', '2%')), c) for we_serve in (False, True) for c in connect.disturbed(we_serve)]


def plan(suite):
    if suite == 'interop':
        return smoke()
    if suite == 'cm':
        return connections()
    out = [(way, case) for way in square() for case in full(way.mtu)]
    ways = [Way(we_serve, 4096, ipv6, netem) for number, netem in enumerate(LOSSES)
            for we_serve, ipv6 in ((False, bool(number % 2)), (True, not number % 2))]
    return out + [(way, case) for way in ways for case in disturbed(4096)]


def square():
    """Direction, path MTU and address family: each value of one meets each of another. All eight would take twice as long, and
    nothing in either adapter depends on all three at once."""
    return [Way(False, 1024, False), Way(True, 1024, True), Way(False, 4096, True), Way(True, 4096, False)]


# --- in the guest

def run(hosts, way, case):
    if isinstance(case, connect.cm.Case):
        connect.run(hosts, case, way.we_serve)
        return
    port = pairs.free_port()

    def one_end(ours):
        mtu = [] if 'ibv_ud' in case.program else ['-m', str(way.mtu)]
        gid = ['-g' if case.kind == 'pingpong' else '-x', str(hosts.index(ours, way.ipv6))]
        return [case.program, '-p', str(port), *case.args, *mtu, *gid, *([] if ours else ['-d', 'rxe0']),
                *(['-F'] if case.kind == 'perftest' else [])]

    server, client = one_end(way.we_serve), [*one_end(not way.we_serve), hosts.server_address(way.we_serve)]
    s, c = hosts.run_pair(server, client, we_serve=way.we_serve, port=port, limit=case.limit, env=dict(case.env))
    judge.pair(case, (server, s), (client, c))


def run_patiently(hosts, way, case, out):
    """On a busy machine one of the guest's processors may stand still for longer than the other end has patience: one more
    try, and a word about it."""
    try:
        run(hosts, way, case)
    except pairs.Failure as e:
        print(f'# unsteady: {way.name}: {case.name}: {e}', file=out, flush=True)
        run(hosts, way, case)


def inside(lib, todo, out):
    print(f'1..{len(todo)}', file=out, flush=True)
    failed, netem = 0, ()
    hosts = guest.Hosts(lib)
    try:
        for number, (name, way, case) in enumerate(todo, 1):
            began = time.monotonic()
            try:
                if way.netem != netem:
                    hosts.disturb(*way.netem)
                    netem = way.netem
                run_patiently(hosts, way, case, out)
                tap.result(number, name, began, out=out, slow=0)
            except pairs.Failure as e:
                failed += 1
                tap.result(number, name, began, e, out=out, slow=0)
    finally:
        hosts.close()
    return 1 if failed else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True, help='directory of libibverbs.so.1')
    ap.add_argument('--suite', choices=('interop', 'long', 'cm'), default='interop')
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    ap.add_argument('--part', default='1/1', metavar='I/N', help='the I-th of N shares of the cases')
    ap.add_argument('--list', action='store_true', help='print names, run nothing')
    ap.add_argument('--in-guest', metavar='TAP', help='used by this program itself: where the results go')
    opt = ap.parse_args()
    opt.lib = os.path.abspath(opt.lib)

    todo = [(f'{way.name}: {case.name}', way, case) for way, case in plan(opt.suite)]
    todo = [t for t in todo if re.search(opt.filter, t[0])]
    share, shares = map(int, opt.part.split('/'))
    # One way after the other: each part in a guest of its own.
    todo = todo[len(todo) * (share - 1) // shares:len(todo) * share // shares]
    if opt.list:
        print('\n'.join(name for name, _, _ in todo))
        return 0
    if opt.in_guest:
        with open(opt.in_guest, 'w', encoding='utf-8') as out:
            return inside(opt.lib, todo, out)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--lib', opt.lib, '--suite', opt.suite, '--filter', opt.filter,
                        '--part', opt.part, '--in-guest'], SMOKE_LIMIT if opt.suite == 'interop' else LONG_LIMIT)
    except lab.Unable as e:
        print(f'1..0 # SKIP {e}')
        return 0


if __name__ == '__main__':
    sys.exit(main())
