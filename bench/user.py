# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What an ordinary user sees, with the limits and sysctls that he finds: perftest against root's, programs whose threads sit in
system calls against the kernel's bare copy, SOFTHCA_LOCAL=auto against ring, and registration.

Where bench/run is root, as-user.sh makes another user of the programs; else they are the caller's.
"""

import os
import re
import sys

import contestants
import report
import sleep
from contestants import Trouble
from samples import Samples

# The first requests of a connection wait for the peer's memory to be mapped: with fewer bytes that would be part of the rate.
VOLUME = 1 << 33
# Root's memory is mapped in the background, some milliseconds after the first exchange: with 10,000 of them, half had gone by the ring
# in some runs, whose median is the ring's.
EXCHANGES = 100000
# Microseconds: it prints hundredths, of which 0.09 and 0.10 are neighbours.
PERFTEST_RESOLUTION = 0.0101

KIB64, MIB, MIB8 = 1 << 16, 1 << 20, 1 << 23

# Name, contestant, metric, size, rival, factor, whether smaller is better. Who they are is in field(); no factor: for information.
# Of two contestants in a row the rival is first.
AGAINST_ROOT = tuple((f'ib_{op}_lat 8 B, typical', f'{op} as user', 'latency', 8, f'{op} as root', 1.1, True)
                     for op in ('write', 'read', 'atomic')) + tuple(
    (f'ib_{op}_bw {report.size_name(size)}', f'{op} as user', 'rate', size, f'{op} as root', 0.95, False)
    for op in ('write', 'read') for size in (KIB64, MIB))
THREADS = (
    ('WRITE 8 B, one way, typical', 'write', 'latency', 8, 'process_vm_writev', 1.5, True),
    ('READ 8 B, round trip, typical', 'read', 'latency', 8, 'process_vm_readv', 1.5, True),
    ('fetch and add 8 B, round trip, typical', 'faa', 'latency', 8, None, None, True),
    ('compare and swap 8 B, round trip, typical', 'cas', 'latency', 8, None, None, True),
) + tuple((f'{op.upper()} {report.size_name(size)}', op, 'rate', size, f'process_vm_{op}v', 0.9, False)
          for size in (KIB64, MIB, MIB8) for op in ('write', 'read')) + (
    ('WRITE 64 KiB and SEND 16 B, 16 under way', 'io', 'rate', KIB64, 'write', 0.8, False),)
# Of latency, too, at least 0.95 of the ring's speed.
POLLED = tuple((f'{op.upper()} 8 B, {what}', f'{op} auto', metric, 8, f'{op} ring', factor, smaller)
               for op in ('send', 'write')
               for what, metric, factor, smaller in (('one way, typical', 'latency', 1.05, True), ('messages/s', 'rate', 0.95, False)))

# Of registration and its end: sizes; microseconds at most, while nothing spins and while another thread of the program does; the
# factor to one QP; one turn in so many.
REGISTERED = (4096, MIB, 1 << 30)
REGISTRATION_BAR = {False: 20, True: 35}
MANY_QPS, MANY_QPS_BAR = 10000, 1.5
REGISTRATION_EVERY = 2
# A request that comes while memory is being mapped: its time to that of the ones before, at most.
FIRST_BAR = 10


def sysctl(name, absent):
    try:
        with open('/proc/sys/' + name.replace('.', '/')) as f:
            return f'{name} {f.read().strip()}'
    except OSError:
        return f'{name} {absent}'


def environment(bench, prefix):
    """As the programs find it."""
    text = bench.single([*prefix, 'cat', '/proc/self/status', '/proc/self/limits'])
    uid = re.search(r'^Uid:\s+(\d+)', text, re.M).group(1)
    locked = re.search(r'^Max locked memory\s+(\S+)', text, re.M).group(1)
    filtered = re.search(r'^Seccomp:\s+2', text, re.M)
    return ', '.join([f'uid {uid}', 'RLIMIT_MEMLOCK ' + (f'{int(locked) // 1024} KiB' if locked.isdigit() else locked),
                      sysctl('kernel.yama.ptrace_scope', 'absent'), sysctl('vm.unprivileged_userfaultfd', 'absent'),
                      'under a seccomp filter' if filtered else 'no seccomp filter'])


def field(bench, prefix, as_root):
    """Name → contestant."""
    out = {}
    for op in ('write', 'read', 'atomic') if as_root else ():
        for name, before in ((f'{op} as user', prefix), (f'{op} as root', [])):
            who = contestants.Perftest(bench, op, 'auto', VOLUME)
            who.name, who.prefix, who.most = name, before, EXCHANGES
            out[name] = who
    for op in ('write', 'read'):
        out[f'process_vm_{op}v'] = contestants.ProcessVm(bench, prefix, op)
    for op, how in (('write', 'spin'), ('read', 'spin'), ('faa', 'spin'), ('cas', 'spin'), ('io', 'poll')):
        out[op] = contestants.Threads(bench, prefix, op, 'auto', how, op)
    for op in ('send', 'write'):
        for local in ('auto', 'ring'):
            name = f'{op} {local}'
            out[name] = contestants.Threads(bench, prefix, op, local, 'poll', name)
    return out


def label(rival):
    """Its name beside what it is the rival of."""
    return 'WRITE alone' if rival == 'write' else re.sub(r'^(\w+) (as )?', '', rival)


def compared(ours, theirs, unit, rival):
    """Text, and the ratio: not a number where one of them was not measured."""
    ratio = ours / theirs if ours and theirs else float('nan')
    return f'{report.figure(ours)} {unit}, {label(rival)} {report.figure(theirs)} {unit}, ratio {ratio:.2f}', ratio


def print_rows(rows, samples, who, resolution=0):
    """resolution: of latencies; what differs by less is the same."""
    good = True
    for name, ours, metric, size, rival, factor, smaller in rows:
        scale, unit = (1, 'us') if metric == 'latency' else (1e6, 'M/s') if size == 8 else (1e9 / size, 'GB/s')
        best = {one: samples.best(one, metric, size) for one in (ours, rival) if one}
        best = {one: figure and figure / scale for one, figure in best.items()}
        mean = {one: min(who[one].means) for one in best if metric == 'latency' and getattr(who[one], 'means', None)}
        if not rival:
            print(f'  {name}: {report.figure(best[ours])} {unit}, mean {report.figure(mean.get(ours))} {unit}: for information')
            continue
        text, ratio = compared(best[ours], best[rival], unit, rival)
        held = ratio >= factor
        if smaller:
            held = ratio <= factor or bool(ratio > factor and best[ours] <= best[rival] + resolution)
        good &= held
        print(f'  {name}: {text} (bar {"<=" if smaller else ">="} {factor}): {"pass" if held else "FAIL"}')
        if mean:
            print(f'    mean: {compared(mean.get(ours), mean.get(rival), unit, rival)[0]}: for information')
    return good


def print_mechanisms(who):
    """What softhca ps says, and of whom."""
    said = {}
    for one in who.values():
        if getattr(one, 'mechanism', None):
            said.setdefault(one.mechanism, []).append(one.name)
    for text, names in said.items():
        print(f'  softhca ps ({", ".join(names)}): {text}')


def print_registration(took, users):
    good = True
    for name, _ in users:
        for size in REGISTERED:
            for spins in (False, True):
                few, many = (min(took[name, qps, size, spins], default=float('nan')) for qps in (1, MANY_QPS))
                held, scales = few <= REGISTRATION_BAR[spins], many / few <= MANY_QPS_BAR
                good &= held and scales
                print(f'  {report.size_name(size)}, {name}{", another thread spins" if spins else ""}: {report.figure(few)} us (bar <= '
                      f'{REGISTRATION_BAR[spins]}): {"pass" if held else "FAIL"}; with {MANY_QPS} QPs {report.figure(many)} us, ratio '
                      f'{many / few:.2f} (bar <= {MANY_QPS_BAR}): {"pass" if scales else "FAIL"}')
    return good


def print_first(first):
    good = True
    for (name, size), runs in first.items():
        if not runs:
            print(f'  {name}, {report.size_name(size)}: not measured')
            good = False
            continue
        mapped = [run for run in runs if run['mapped'] >= MIB]
        ratio = min(run['slowest_us'] / run['first_us'] for run in runs)
        held = ratio <= FIRST_BAR
        good &= held
        until = f'{min(run["moved"] for run in mapped) / MIB:.1f} MiB' if mapped else 'not within the run'
        print(f'  {name}, {report.size_name(size)}: all of it is mapped after {until}; slowest request {ratio:.1f} times the first ones '
              f'(bar <= {FIRST_BAR}): {"pass" if held else "FAIL"}')
    return good


def measure(bench, turns):
    """Returns whether the bars hold, and the record."""
    users = [(name.replace('ordinary user', 'user'), prefix) for name, prefix in sleep.users()]
    prefix, as_root = dict(users)['user'], len(users) > 1
    about = environment(bench, prefix)
    who = field(bench, prefix, as_root)
    rows = (*(AGAINST_ROOT if as_root else ()), *THREADS, *POLLED)
    samples = Samples()
    took = {(name, qps, size, spins): [] for name, _ in users for qps in (1, MANY_QPS) for size in REGISTERED
            for spins in (False, True)}
    first = {(name, size): [] for name, _ in users for size in (4096, KIB64)}
    good = True
    print(f'Ordinary user: {about}', flush=True)
    for turn in range(turns):
        print(f'bench: turn {turn + 1} of {turns}', file=sys.stderr, flush=True)
        for _, ours, metric, size, rival, _, _ in (*rows, *POLLED):  # the latter twice: their bars are the closest
            for one in (rival, ours):
                if one:
                    samples.take(who[one], metric, size)
        for (name, size), runs in first.items():
            try:
                runs.append(contestants.first_accesses(bench, dict(users)[name], size))
            except Trouble as e:
                print(f'bench: first accesses, {name}: {e}', file=sys.stderr, flush=True)
        for qps in (1, MANY_QPS) if turn % REGISTRATION_EVERY == 0 else ():
            for name, before in users:
                try:
                    for (size, spins), us in contestants.registration_with_peer(bench, before, qps).items():
                        took[name, qps, size, spins].append(us)
                except Trouble as e:
                    print(f'bench: registration, {name}: {e}', file=sys.stderr, flush=True)
                    good = False
    good &= not samples.trouble
    print(f'Bars, ordinary user, best of {turns} turns; perftest, one thread')
    if as_root:
        good &= print_rows(AGAINST_ROOT, samples, who, PERFTEST_RESOLUTION)
    else:
        print('  skipped: bench/run is not root, whose figures these are held against')
    print('Programs with threads in system calls, memory from malloc(), the target spins on memory (of I/Os: polls its CQ)')
    good &= print_rows(THREADS, samples, who)
    print('The same, the target polls its CQ, SOFTHCA_LOCAL=auto against ring')
    good &= print_rows(POLLED, samples, who)
    print_mechanisms(who)
    print('Registration and its end together, populated memory, a peer is connected' +
          ('' if as_root else ' (root: skipped, bench/run is not root)'))
    good &= print_registration(took, users)
    print('WRITEs to 1 MiB from the first access on, one thread, the target polls its CQ')
    good &= print_first(first)
    print()
    record = {f'{n} {m} {s}': v for (n, m, s), v in samples.of.items()}
    record['means'] = {name: one.means for name, one in who.items() if getattr(one, 'means', None)}
    record['registration'] = [{'who': n, 'qps': q, 'size': s, 'another thread spins': p, 'us': v} for (n, q, s, p), v in took.items()]
    record['first'] = [{'who': n, 'size': s, 'runs': runs} for (n, s), runs in first.items()]
    return good, dict(record, environment=about)
