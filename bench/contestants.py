# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Who is measured, with which command, and how its output is read. Every figure is what a reader gets by typing it.

A contestant answers `latency(size)` in microseconds one way (READ: the round trip that it is), `rate(size)` in messages
per second, or None. Bandwidth is rate times size: programs disagree on what a megabyte is.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, 'tests', 'programs'))
from cm import holds  # noqa: E402
from pairs import free_port, listening  # noqa: E402

LIMIT_S = 60


class Trouble(Exception):
    pass


class Bench:
    def __init__(self, build, cpus, verbose=False):
        self.build = os.path.abspath(build)
        self.cpus = cpus  # near, far
        self.verbose = verbose

    def tool(self, name):
        return os.path.join(self.build, 'bench', name)

    def env(self, extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith(('SOFTHCA_', 'UCX_', 'LD_'))}
        env.update(LC_ALL='C', **extra)
        return env

    def softhca(self, local):
        return self.env({'LD_LIBRARY_PATH': os.path.join(self.build, 'lib'), 'SOFTHCA_LOCAL': local})

    def single(self, argv, env=None, limit=LIMIT_S):
        """One program that pins itself."""
        if self.verbose:
            print('#', ' '.join(argv), file=sys.stderr, flush=True)
        try:
            p = subprocess.run(argv, env=env or self.env({}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               timeout=limit)
        except subprocess.TimeoutExpired as e:
            raise Trouble(f'{" ".join(argv)}: not done within {limit} s') from e
        if p.returncode:
            raise Trouble(f'{" ".join(argv)}: exit status {p.returncode}\n{p.stdout}{p.stderr}')
        return p.stdout

    def pair(self, argv, env, limit=LIMIT_S):
        """Server on the far processor, client on the near one; the client's output."""
        port = str(free_port())
        near, far = (['taskset', '-c', str(c)] for c in self.cpus)
        server = subprocess.Popen(far + argv + ['-p', port], env=env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + limit
            while not listening(int(port)):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Trouble(f'{" ".join(argv)}: server does not listen')
                time.sleep(0.002)
            # UCX's server takes options from the client only.
            out = self.single(near + argv + ['-p', port, '127.0.0.1'], env, limit)
            try:
                if server.wait(limit):
                    raise Trouble(f'{" ".join(argv)}: server exit status {server.returncode}')
            except subprocess.TimeoutExpired as e:
                raise Trouble(f'{" ".join(argv)}: server not done') from e
            return out
        finally:
            server.kill()
            server.wait()


def count_for(size, volume, least, most):
    return max(least, min(most, volume // size))


class Perftest:
    """ib_OP_lat and ib_OP_bw, with as many rounds as make a run of some tenths of a second."""

    prefix = ()  # of both sides' commands
    most = 50000  # exchanges

    def __init__(self, bench, op, local, volume=1 << 31, messages=1000000, options=()):
        self.bench, self.op, self.local, self.volume = bench, op, local, volume
        self.messages, self.options = messages, list(options)  # of a rate: at most so many; further options of ib_OP_bw
        self.name = ' '.join([op, local, *options])

    def _rows(self, argv):
        text = self.bench.pair(argv, self.bench.softhca(self.local))
        for line in text.splitlines():
            if re.match(r'\s*\d+\s+\d+\s+[\d.]+', line):
                return [float(w) for w in line.split()]
        raise Trouble(f'{" ".join(argv)}: no result\n{text}')

    def latency(self, size):
        n = count_for(size, 1 << 29, 50, self.most)
        return self._rows([*self.prefix, f'ib_{self.op}_lat', '-F', '-x', '0', '-s', str(size), '-n', str(n)])[4]  # t_typical

    def rate(self, size):
        n = count_for(size, self.volume, 100, self.messages)
        row = self._rows([*self.prefix, f'ib_{self.op}_bw', '-F', '-x', '0', '-s', str(size), '-n', str(n), *self.options])
        return row[4] * 1e6


class Touched:
    """verbs_touch: what programs see that use their memory. how: 'touched', or 'malloc=BYTES'."""

    def __init__(self, bench, op, local, how, name):
        self.bench, self.op, self.local, self.how, self.name = bench, op, local, how, name
        self.mechanism = None  # of the connection, and why the region is not mapped

    def _argv(self, _metric, size):
        return [self.bench.tool('verbs_touch'), *map(str, self.bench.cpus), self.op, str(size), self.how]

    def _run(self, metric, size):
        argv = self._argv(metric, size)
        env = self.bench.softhca(self.local)
        if self.bench.verbose:
            print('#', ' '.join(argv), file=sys.stderr, flush=True)
        with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
            watch = threading.Timer(LIMIT_S, p.kill)
            watch.start()
            try:
                words = p.stdout.readline().split()
                if self.mechanism is None and words:
                    self.mechanism = self._mechanism(p.pid, env)
                p.stdin.close()
                if p.wait() or len(words) < 2:
                    raise Trouble(f'{" ".join(argv)}: exit status {p.returncode}')
            finally:
                watch.cancel()
        return dict(zip(words[::2], map(float, words[1::2])))

    def _mechanism(self, pid, env):
        """What `softhca ps` says of the program's connection and of its region."""
        text = self.bench.single([os.path.join(self.bench.build, 'softhca'), 'ps', '--json', str(pid)], env)
        objects = json.loads(text)['processes'][0]['objects']
        return ', '.join([o['path'] for o in objects if 'path' in o] +
                         [o['not_mapped_because'] for o in objects if 'not_mapped_because' in o])

    def latency(self, size):
        return self._run('latency', size)['us']

    def rate(self, size):
        return self._run('rate', size)['msgs']


class Threads(Touched):
    """verbs_threads: programs with threads that sit in system calls. how: what the target does."""

    def __init__(self, bench, prefix, op, local, how, name):
        super().__init__(bench, op, local, how, name)
        self.prefix, self.means = prefix, []

    def _argv(self, metric, size):
        return [*self.prefix, self.bench.tool('verbs_threads'), *map(str, self.bench.cpus), self.op, str(size), metric, self.how]

    def _mechanism(self, pid, env):
        try:
            return super()._mechanism(pid, env)
        except (Trouble, ValueError, LookupError) as e:
            print(f'bench: softhca ps: {e}', file=sys.stderr, flush=True)
            return 'softhca ps does not say'

    def latency(self, size):
        row = self._run('latency', size)
        self.means.append(row['mean_us'])
        return row['us']


def registration(bench, local, cpu):
    """Rows of verbs_register, and whether it found what is left behind good."""
    argv = [bench.tool('verbs_register'), str(cpu)]
    p = subprocess.run(argv, env=bench.softhca(local), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=5 * LIMIT_S)
    rows = [line.split() for line in p.stdout.splitlines()]
    if len(rows) != 5:
        raise Trouble(f'{" ".join(argv)}: exit status {p.returncode}\n{p.stdout}{p.stderr}')
    cycles, *sizes = rows
    left = {cycles[i]: (int(cycles[i + 1]), int(cycles[i + 2])) for i in range(2, len(cycles), 3)}
    return left, [dict(zip(row[::2], map(float, row[1::2]))) for row in sizes], p.returncode == 0


def registration_with_peer(bench, prefix, qps):
    """{(size, whether another thread spins): microseconds of registration and its end together}"""
    text = bench.single([*prefix, bench.tool('verbs_register'), *map(str, bench.cpus), str(qps)], bench.softhca('auto'), 3 * LIMIT_S)
    rows = [line.split() for line in text.splitlines()]
    rows = [dict(zip(row[::2], map(float, row[1::2]))) for row in rows]
    return {(int(row['size']), bool(row['spins'])): row['us'] for row in rows}


def first_accesses(bench, prefix, size):
    """WRITEs of that size to 1 MiB that nobody has accessed: what verbs_first prints."""
    row = bench.single([*prefix, bench.tool('verbs_first'), *map(str, bench.cpus), str(size)], bench.softhca('auto'), LIMIT_S).split()
    return dict(zip(row[::2], map(float, row[1::2])))


def loopback_device(bench):
    """Its packets are as large as RoCEv2 has them, whatever the machine's interfaces carry."""
    text = bench.single([os.path.join(bench.build, 'softhca'), 'devices'], bench.softhca('auto'))
    found = re.search(r'^(\S+)\s+on lo\s', text, re.M)
    if not found:
        raise Trouble(f'softhca devices: none on lo\n{text}')
    return found.group(1)


class Wire(Perftest):
    """Perftest over the network path, which for two processes of one host is loopback."""

    def __init__(self, bench, op, options=()):
        super().__init__(bench, op, 'auto', options=options)
        self.name = ' '.join([op, 'wire', *options])
        self.device = loopback_device(bench)

    def _rows(self, argv):
        text = self.bench.pair([*argv, '-d', self.device], dict(self.bench.softhca('auto'), SOFTHCA_PATH='wire'))
        for line in text.splitlines():
            if re.match(r'\s*\d+\s+\d+\s+[\d.]+', line):
                return [float(w) for w in line.split()]
        raise Trouble(f'{" ".join(argv)}: no result\n{text}')


class Explained(Perftest):
    """Perftest over the ring with explanations off, on, or not built in."""

    def __init__(self, bench, op, build, form):
        super().__init__(bench, op, 'ring')
        self.build, self.form = build, form
        self.name = f'{op} {form}'

    def _env(self):
        return dict(self.bench.softhca('ring'), SOFTHCA_EXPLAIN='off' if self.form == 'none' else self.form,
                    LD_LIBRARY_PATH=os.path.join(self.build, 'lib'))

    def _rows(self, argv):
        text = self.bench.pair(argv, self._env())
        for line in text.splitlines():
            if re.match(r'\s*\d+\s+\d+\s+[\d.]+', line):
                return [float(w) for w in line.split()]
        raise Trouble(f'{" ".join(argv)}: no result\n{text}')

    def cost(self, size):
        """Processor time of a message, in nanoseconds: the least that it took, for what comes on top is not ours."""
        argv = ['taskset', '-c', str(self.bench.cpus[0]), self.bench.tool('message_cost'), self.op]
        text = self.bench.single(argv, self._env())
        return float(re.search(r' ns ([\d.]+)', text).group(1))


class Ucx:
    """ucx_perftest; tls says which of its shared-memory transports it may use."""

    def __init__(self, bench, name, lat, bw, tls, volume=1 << 31, messages=2000000):
        self.bench, self.name, self.lat, self.bw, self.tls, self.volume = bench, name, lat, bw, tls, volume
        self.messages = messages

    def _row(self, test, size, n):
        env = self.bench.env({'UCX_TLS': self.tls, 'UCX_WARN_UNUSED_ENV_VARS': 'n'})
        warm = max(10, n // 20)
        text = self.bench.pair(['ucx_perftest', '-t', test, '-s', str(size), '-n', str(n), '-w', str(warm), '-f', '-v'],
                               env)
        header, row = [line.split(',') for line in text.splitlines() if ',' in line][-2:]
        return dict(zip(header, map(float, row)))

    def latency(self, size):
        return self._row(self.lat, size, count_for(size, 1 << 29, 50, 100000))['50.0_percentile_lat']

    def rate(self, size):
        return self._row(self.bw, size, count_for(size, self.volume, 100, self.messages))['overall_mr']


class Table:
    """A program that prints all sizes in one go: asked once per round."""

    def __init__(self, bench, name, tool, sizes, lat, rate, gbps, how=()):
        self.bench, self.name, self.tool, self.sizes, self.how = bench, name, tool, sizes, how
        self.keys = (lat, rate, gbps)
        self.rows = None

    def new_round(self):
        self.rows = None

    def _row(self, size):
        if self.rows is None:
            text = self.bench.single([self.bench.tool(self.tool), *map(str, self.bench.cpus), *self.how,
                                      *map(str, self.sizes)])
            self.rows = {}
            for line in text.splitlines():
                words = line.split()
                row = dict(zip(words[::2], map(float, words[1::2])))
                self.rows[int(row['size'])] = row
        return self.rows[size]

    def column(self, size, key):
        """Of this round."""
        return self._row(size)[key]

    def latency(self, size):
        return self._row(size)[self.keys[0]] if self.keys[0] else None

    def rate(self, size):
        row = self._row(size)
        return row[self.keys[1]] if self.keys[1] else row[self.keys[2]] * 1e9 / size


class Exchange(Table):
    """What a verb must do between two processes, and no library. Further metrics: microseconds of a READ and a fetch-and-add."""

    def __init__(self, bench):
        super().__init__(bench, 'no library', 'bench_exchange', (8,), 'one_way_us', 'lists_rate', None)

    def read(self, size):
        return self.column(size, 'read_us')

    def faa(self, size):
        return self.column(size, 'faa_us')


class CacheLine:
    name = 'cache line'
    # A host may run both processors of a virtual machine on one core for a while (0.009 us); between two cores the quickest known
    # take 0.018 us.
    LEAST_US = 0.015
    TRIES = 10

    def __init__(self, bench):
        self.bench = bench

    def latency(self, size):
        if size > 64:
            return None
        for _ in range(self.TRIES):
            took = float(self.bench.single([self.bench.tool('bench_cacheline'), *map(str, self.bench.cpus)]).split()[1])
            if took >= self.LEAST_US:
                return took
            time.sleep(0.2)
        near, far = self.bench.cpus
        print(f'bench: cache line: {took} us between processors {near} and {far}, {self.TRIES} times: they share a core at the moment, '
              'so this is not counted', file=sys.stderr, flush=True)
        return None

    def rate(self, size):
        return None


class Udp(Table):
    def __init__(self, bench, sizes):
        super().__init__(bench, 'UDP', 'bench_udp', sizes, 'latency_us', None, 'gbps')

    def latency(self, size):
        return super().latency(size) if size <= 4096 else None  # of one packet


class CheckedUdp:
    """UDP with what RoCEv2 cannot do without: SENDs of 8 bytes to and fro, a stream of them, and one of packets of 4 KiB."""

    name = 'UDP with what RoCEv2 must do'

    def __init__(self, bench):
        self.bench, self.row = bench, None

    def new_round(self):
        self.row = None

    def _row(self):
        if self.row is None:
            words = self.bench.single([self.bench.tool('bench_udp'), '--checked', *map(str, self.bench.cpus)]).split()
            self.row = dict(zip(words[1::2], map(float, words[2::2])))
        return self.row

    def latency(self, size):
        return self._row()['latency_us']

    def rate(self, size):
        return self._row()['small_rate'] if size == 8 else self._row()['gbps'] * 1e9 / size


def memcpy(bench, sizes):
    """Within the cache of one core, as far as that goes."""
    return Table(bench, 'memcpy own cache', 'bench_memcpy', sizes, None, None, 'hot_gbps')


def fresh(bench, sizes):
    """Of data that the other core has just written."""
    return Table(bench, 'memcpy other core', 'bench_memcpy', sizes, None, None, 'fresh_gbps')


def pipeline(bench, sizes, percent=0):
    """Two threads without any library: one rewrites buffers, the other copies and reads them meanwhile. percent: of the copy, the
    first one does so much."""
    return Table(bench, f'two threads, {percent} %', 'bench_memcpy', sizes, None, None, 'pipe_gbps', (f'pipe={percent}',))


class ProcessVm(Table):
    """The kernel's copy alone, of one size in each run."""

    def __init__(self, bench, prefix, op):
        super().__init__(bench, f'process_vm_{op}v', 'bench_process_vm', (), 'latency_us', None, 'gbps')
        self.prefix, self.op, self.means = prefix, op, []

    def _row(self, size):
        words = self.bench.single([*self.prefix, self.bench.tool(self.tool), *map(str, self.bench.cpus), self.op, str(size)]).split()
        return dict(zip(words[::2], map(float, words[1::2])))

    def latency(self, size):
        row = self._row(size)
        self.means.append(row['mean_us'])
        return row['latency_us']


def icrc(bench):
    """GB/s of one processor: computed, checked."""
    words = bench.single([bench.tool('bench_icrc'), str(bench.cpus[0])]).split()
    return float(words[1]), float(words[3])


CONNECTIONS = 1000


def cmtime(bench, env):
    """Microseconds per connection of each step of cmtime, as it calls them, all connections at once."""
    port = str(free_port())
    near, far = (['taskset', '-c', str(c)] for c in bench.cpus)
    server = subprocess.Popen(far + ['cmtime', '-p', port], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not holds('tcp', int(port)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Trouble('cmtime: server does not listen')
            time.sleep(0.002)
        text = bench.single(near + ['cmtime', '-s', '127.0.0.1', '-c', str(CONNECTIONS), '-p', port], env)
    finally:
        server.kill()
        server.wait()
    return {name: float(each) for name, each in re.findall(r'^(\w[\w ]*?) *: .* ([\d.]+)$', text, re.M)}


def rstream(bench, env, size, iterations, transfers):
    """Microseconds of a transfer and Gb/s, by rsockets; by TCP if env is None."""
    port = str(free_port())
    near, far = (['taskset', '-c', str(c)] for c in bench.cpus)
    argv = ['rstream', '-p', port, '-S', str(size), '-I', str(iterations), '-C', str(transfers)]
    argv += ['-T', 's'] if env is None else []
    env = bench.env({}) if env is None else env
    server = subprocess.Popen(far + argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (holds('tcp', int(port)) or listening(int(port))):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Trouble('rstream: server does not listen')
            time.sleep(0.002)
        words = bench.single(near + argv + ['-s', '127.0.0.1'], env).split()
    finally:
        server.kill()
        server.wait()
    return float(words[-1]), float(words[-2])


def tcp_connect(bench):
    """Microseconds per connection: to open, to close."""
    words = bench.single([bench.tool('bench_tcp_connect'), *map(str, bench.cpus), str(CONNECTIONS)]).split()
    return float(words[1]), float(words[3])


def udp_connect(bench):
    """Microseconds per connection of the messages and wake-ups of the network path, without a library."""
    return float(bench.single([bench.tool('bench_udp_connect'), *map(str, bench.cpus), str(CONNECTIONS)]).split()[1])


def field_of(sizes, bench, locals_):
    """Everybody, in the order of the table's columns."""
    out = [CacheLine(bench),
           memcpy(bench, sizes),
           fresh(bench, sizes),
           Ucx(bench, 'UCX put', 'ucp_put_lat', 'ucp_put_bw', 'posix,self'),
           Ucx(bench, 'UCX tag posix', 'tag_lat', 'tag_bw', 'posix,self'),
           Ucx(bench, 'UCX tag posix+cma', 'tag_lat', 'tag_bw', 'posix,cma,self')]
    out += [Perftest(bench, op, local) for local in locals_ for op in ('send', 'write', 'read')]
    out += [Wire(bench, op) for op in ('send', 'write', 'read')]
    out.append(Udp(bench, sizes))
    out.append(Table(bench, 'TCP', 'bench_tcp', sizes, 'latency_us', 'msgs', None))
    return out


# What perftest cannot ask: op, threads, peers, target. Polling targets share one processor, so many of them sleep.
RATES = tuple((op, threads, peers, target)
              for op in ('send', 'write')
              for threads in (1, 4)
              for peers, target in ((1, 'poll'), (63, 'sleep'))) + (
    ('write', 1, 1, 'sleep'), ('write', 1, 1, 'compute'), ('read', 1, 1, 'compute'), ('faa', 1, 1, 'compute'))


def verbs_rate(bench, local, op, threads, peers, target, size=8, seconds=1, options=()):
    """Messages per second, and what a computing target kept of its speed."""
    text = bench.single([bench.tool('verbs_rate'), '--op', op, '--size', str(size), '--threads', str(threads), '--peers',
                         str(peers), '--target', target, '--seconds', str(seconds), '--cpus',
                         ','.join(map(str, bench.cpus)), *options], bench.softhca(local))
    words = text.split()
    row = dict(zip(words[::2], words[1::2]))
    return float(row['msgs']), float(row['computing'])


class Chains:
    """verbs_rate, one thread and one peer, with ibv_wr_*() in chains of 16: perftest posts lists by ibv_post_send() alone. The target
    sleeps, as perftest's does while it is written to."""

    def __init__(self, bench, op, local, seconds=0.25):
        self.bench, self.op, self.local, self.seconds = bench, op, local, seconds
        self.name = f'{op} {local} chains'

    def rate(self, size):
        return verbs_rate(self.bench, self.local, self.op, 1, 1, 'sleep', size, self.seconds, ('--extended', '--batch', '16'))[0]


def idle(bench, local):
    """idle_qp's lines and whether it found them good."""
    p = subprocess.run([bench.tool('idle_qp')], env=bench.softhca(local), stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=LIMIT_S)
    return (p.stdout + p.stderr).rstrip(), p.returncode == 0
