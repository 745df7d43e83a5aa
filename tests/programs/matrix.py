# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The table: which programs with which options, and what each must report.

A case is one server and one client of a program. `programs` is what every change must pass; `long` multiplies it out.
"""

from dataclasses import dataclass, replace

ALL_SIZES = tuple(1 << i for i in range(1, 24))  # perftest's -a
PINGPONGS = ('ibv_rc_pingpong', 'ibv_uc_pingpong', 'ibv_ud_pingpong', 'ibv_srq_pingpong')
BW = ('ib_send_bw', 'ib_write_bw', 'ib_read_bw', 'ib_atomic_bw')
LAT = ('ib_send_lat', 'ib_write_lat', 'ib_read_lat', 'ib_atomic_lat')
# perftest offers inlining only to adapters whose part it knows; this is the number of one it knows.
KNOWN_PART = '4119'


@dataclass(frozen=True)
class Case:
    program: str
    args: tuple = ()
    sizes: tuple = ()
    iters: int = 0  # 0: the clock ends the test
    server: tuple = ()  # what only one end is given
    client: tuple = ()
    local: str = 'auto'  # SOFTHCA_LOCAL
    users: tuple = ('a', 'a')
    signals: tuple = (None, None)
    launch: str = 'lib'
    env: tuple = ()
    limit: int = 180
    label: str = ''

    @property
    def kind(self):
        return 'pingpong' if 'pingpong' in self.program else 'perftest'

    @property
    def name(self):
        words = [self.local, self.program, *self.args]
        if self.server or self.client:
            words.append(f'[{" ".join(self.server)} | {" ".join(self.client)}]')
        if self.label:
            words.append(f'({self.label})')
        return ' '.join(words)


def over(cases, *paths):
    return [replace(c, local=p) for p in paths for c in cases]


def mtu_bound(size, mtu):
    return min(size, mtu)


def pingpong(program, mtu, *, size=None, iters=None, args=(), **kw):
    default = 1024 if 'ud' in program else 4096
    a = tuple(args)
    if size is not None:
        a += ('-s', str(size))
    if iters is not None:
        a += ('-n', str(iters))
    return Case(program, a, sizes=(size or default,), iters=iters or 1000, **kw)


def perftest(program, *, size=None, iters=None, args=(), qps=1, sizes=None, duration=False, **kw):
    """Without a size the program's own: 64 KiB for bandwidth, 2 for latency, 8 for atomics."""
    if sizes is None:
        default = 8 if 'atomic' in program else 65536 if program.endswith('bw') else 2
        sizes = (size or default,)
    a = tuple(args)
    if size is not None:
        a += ('-s', str(size))
    if qps > 1:
        a += ('-q', str(qps))
    if iters is not None:
        a += ('-n', str(iters))
    count = iters or (5000 if program == 'ib_write_bw' else 1000)
    return Case(program, a, sizes=sizes, iters=0 if duration else count * qps, **kw)


def ud_sizes(mtu):
    return tuple(s for s in ALL_SIZES if s <= mtu)


def pingpongs(mtu, sizes):
    out = []
    for p in PINGPONGS:
        out += [pingpong(p, mtu), pingpong(p, mtu, args=('-e',)), pingpong(p, mtu, args=('-c',)),
                pingpong(p, mtu, args=('-e', '-c'))]
        for s in sizes:
            if 'ud' in p and s > mtu:
                continue
            out.append(pingpong(p, mtu, size=s, iters=200 if s > 65536 else None, args=('-c',)))
        if 'ud' in p and mtu not in sizes:
            out.append(pingpong(p, mtu, size=mtu, args=('-c',)))
    out.append(pingpong('ibv_rc_pingpong', mtu, args=('-N', '-c')))
    out.append(pingpong('ibv_srq_pingpong', mtu, args=('-q', '64', '-c')))
    return out


def transports(mtu):
    """Every tool for every service it has, as called without options."""
    out = [perftest(p) for p in BW + LAT]
    out += [perftest(p, args=('-A', 'CMP_AND_SWAP')) for p in ('ib_atomic_bw', 'ib_atomic_lat')]
    out += [perftest(p, args=('-c', 'UC')) for p in ('ib_send_bw', 'ib_send_lat', 'ib_write_bw', 'ib_write_lat')]
    out += [perftest('ib_send_bw', args=('-c', 'UD'), sizes=(mtu_bound(65536, mtu),)),
            perftest('ib_send_lat', args=('-c', 'UD'))]
    return out


def xrc():
    """Over the two halves of XRC, its SRQs of one number for each receiver."""
    out = [Case('ibv_xsrq_pingpong'), Case('ibv_xsrq_pingpong', ('-n', '100', '-s', '65536'))]
    out += [perftest(p, args=('-c', 'XRC')) for p in BW + LAT]
    out += [perftest(p, args=('-c', 'XRC'), qps=8, iters=100) for p in ('ib_send_bw', 'ib_write_bw')]
    return out


def capabilities(mtu):
    """What ibv_rc_pingpong asks the device for: memory of its own, paging on demand, time stamps, ibv_wr_*."""
    return [pingpong('ibv_rc_pingpong', mtu, args=args) for args in
            (('-j', '-c'), ('-o', '-c'), ('-o', '-O', '-c'), ('-t',), ('-t', '-c'), ('-j', '-N', '-c'))]


def options(mtu):
    out = []
    for p in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw'):
        out.append(perftest(p, args=('-a',), sizes=ALL_SIZES, iters=40, limit=120))
    # In cycles: for microseconds both ends spin for as long again, to measure the processor's clock at each size anew.
    for p in ('ib_send_lat', 'ib_write_lat', 'ib_read_lat'):
        out.append(perftest(p, args=('-a', '-C'), sizes=ALL_SIZES, iters=20, limit=120))
    for p in ('ib_send_bw', 'ib_write_bw'):
        out.append(perftest(p, args=('-a', '-c', 'UC'), sizes=ALL_SIZES, iters=20, limit=120))
    for p, cycles in ('ib_send_bw', ()), ('ib_send_lat', ('-C',)):
        out.append(perftest(p, args=('-a', *cycles, '-c', 'UD'), sizes=ud_sizes(mtu), iters=100))
    for p in BW:
        out.append(perftest(p, args=('-b',)))
        out.append(perftest(p, qps=16, iters=200))
        out.append(perftest(p, args=('-b',), qps=16, iters=100))
    # perftest itself refuses -e for WRITE.
    for p in BW + LAT:
        if 'write' not in p:
            out.append(perftest(p, args=('-e',)))
    out.append(perftest('ib_send_bw', args=('-e', '-b')))
    out.append(perftest('ib_send_bw', args=('-e', '-c', 'UD'), sizes=(mtu_bound(65536, mtu),)))
    for p in ('ib_send_bw', 'ib_send_lat'):
        out.append(perftest(p, args=('--use-srq',)))
    out.append(perftest('ib_send_bw', args=('--use-srq',), qps=16, iters=100))
    out.append(perftest('ib_send_bw', args=('--use-srq', '-b', '-e')))
    for p in ('ib_send_bw', 'ib_send_lat', 'ib_write_bw', 'ib_write_lat'):
        out.append(perftest(p, size=32, args=('-I', '64')))
        out.append(perftest(p, size=32, args=('-I', '64'), env=(('SOFTHCA_PART_ID', KNOWN_PART),),
                            label='known part'))
    for p in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw', 'ib_send_lat', 'ib_atomic_bw'):
        out.append(perftest(p, size=None if 'atomic' in p else 64,
                            env=(('SOFTHCA_PART_ID', KNOWN_PART),), label='known part'))
    for t in (1, 16, 1024):
        out.append(perftest('ib_write_bw', args=('-t', str(t))))
        out.append(perftest('ib_send_bw', args=('-t', str(t), '-r', str(max(2, t // 2)))))
    out.append(perftest('ib_send_bw', args=('-r', '16')))
    out.append(perftest('ib_send_lat', args=('-r', '2048')))
    out.append(perftest('ib_write_bw', args=('-l', '8', '-t', '64')))
    return out


def of_other_sizes(cases):
    """Those that differ from others by the sizes of their messages or the number of their QPs: what a path makes different.
    The other options are the same work on each path between processes. All sizes, one after the other, with RC only, and
    without the tools that wait for each answer: those take the longest."""
    return [c for c in cases if {'-s', '-q'} & {*c.args} or ('-a' in c.args and '-c' not in c.args and c.program in BW)]


def one_sided():
    """What an initiator executes itself in mapped memory, in all sizes and side by side."""
    out = [perftest(p, args=args, sizes=ALL_SIZES, iters=20, limit=120)
           for p, args in (('ib_write_bw', ('-a',)), ('ib_read_lat', ('-a', '-C')))]
    return out + [perftest(p, qps=16, iters=200) for p in ('ib_write_bw', 'ib_read_bw', 'ib_atomic_bw')]


def durations(programs, seconds):
    """-D counts on SIGALRM; the end that gets no other signal must neither need one nor lose that one."""
    out = []
    for p, signals in programs:
        out.append(perftest(p, args=('-D', str(seconds)), duration=True, signals=signals, limit=60 + seconds,
                            label=' | '.join(s or 'all signals' for s in signals) if any(signals) else ''))
    return out


def gid_pairs(devices, everywhere):
    """-x of each GID with each of its kind: of one device, and of two where the host has two. An IPv4 GID and an IPv6 one
    are no path: perftest says so itself, and RTR is EINVAL."""
    ends = [(d, i, '.' in gid) for d, info in devices.items() for i, (gid, _) in sorted(info['gids'].items())]
    out = []
    for sd, si, s4 in ends:
        for cd, ci, c4 in ends:
            if s4 != c4:
                continue
            # Both ends settle on the smaller path MTU, so devices may differ.
            s, c = ('-d', sd, '-x', str(si)), ('-d', cd, '-x', str(ci))
            out.append(perftest('ib_write_bw', iters=100, server=s, client=c))
            if everywhere:
                out += [perftest(p, iters=100, server=s, client=c)
                        for p in ('ib_send_bw', 'ib_read_lat', 'ib_atomic_lat')]
                out.append(perftest('ib_send_lat', iters=100, args=('-c', 'UD'), server=s, client=c))
            s, c = ('-d', sd, '-g', str(si)), ('-d', cd, '-g', str(ci))
            for program in PINGPONGS if everywhere else PINGPONGS[:1]:
                out.append(pingpong(program, 1024, args=('-c',), server=s, client=c))
    return out


def two_users():
    """CMA is refused between users, so every setting must come down to the ring."""
    out = []
    for local in ('auto', 'cma', 'ring'):
        for users in (('nobody', 'a'), ('b', 'a')):
            cases = [pingpong('ibv_rc_pingpong', 1024, size=65536, args=('-c',)),
                     pingpong('ibv_ud_pingpong', 1024, args=('-c', '-e')),
                     perftest('ib_send_bw', size=1 << 20, iters=100),
                     perftest('ib_write_bw', size=1 << 20, iters=100),
                     perftest('ib_read_lat', size=65536, iters=100), perftest('ib_atomic_lat', iters=100)]
            out += [replace(c, local=local, users=users, label=' and '.join(users)) for c in cases]
    return out


def build(devices, suite):
    mtu = next(iter(devices.values()))['mtu']
    some = (1, 2, 63, 4095, 65537, 1 << 20)
    paths = ('ring', 'cma')
    if suite == 'programs':
        cases = over(pingpongs(mtu, some) + transports(mtu) + options(mtu), 'ring')
        cases += over(of_other_sizes(pingpongs(mtu, some) + options(mtu)), 'cma')
        cases += over(transports(mtu), 'cma', 'auto')
        cases += over(transports(mtu) + one_sided(), 'mapped')
        cases += over(xrc() + capabilities(mtu), 'ring', 'mapped')
        cases += over(durations([('ib_send_bw', ('blocked', None)), ('ib_write_bw', (None, 'blocked')),
                                 ('ib_read_lat', ('ignored', None)), ('ib_write_lat', (None, None))], 1), 'auto')
        cases += [pingpong(p, mtu, iters=5000, limit=120) for p in PINGPONGS]
        cases += gid_pairs(devices, False)
        cases += two_users()
        cases += [replace(c, launch='run', label='softhca run') for c in
                  (pingpong('ibv_rc_pingpong', mtu, args=('-c',)), perftest('ib_write_bw'), perftest('ib_send_lat'))]
        return cases
    every = tuple(s for i in range(0, 21) for s in {(1 << i) - 1, 1 << i, (1 << i) + 1} if 0 < s <= 1 << 20)
    paths += ('auto',)
    cases = over(pingpongs(mtu, sorted(set(every))), *paths)
    cases += over(options(mtu) + xrc() + capabilities(mtu), 'cma', 'auto')
    both = [(p, s) for p in BW + LAT for s in (('blocked', None), (None, 'ignored'))]
    cases += over(durations(both, 3), *paths)
    cases += over([pingpong(p, mtu, iters=100000, args=a, limit=240) for p in PINGPONGS
                   for a in ((), ('-e',), ('-c',))], *paths)
    cases += gid_pairs(devices, True)
    return cases
