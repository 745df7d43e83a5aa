#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What softhca watch costs: programs with it and without, in turns.

Over SoftHCA's ring: latency and message rate of perftest between two processes, processor time of a message of 8 bytes
(message_cost: one thread has both ends), and, where valgrind is, its instructions. Over the kernel's Soft-RoCE (--rxe) processor
time, in a guest (tests/interop/lab.py) whose processor is emulated. --check: exit status 1 if something costs more than 10 %."""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'tests', 'interop')]
sys.dont_write_bytecode = True

import contestants  # noqa: E402
import lab  # noqa: E402
import report  # noqa: E402
from samples import Samples  # noqa: E402

BAR = 1.1
SIZE = 8
OPERATIONS = ('send', 'write')
# Of a message of message_cost: what is posted, and polled.
CALLS = {'send': 'two posts and two polled completions', 'write': 'a post and a polled completion'}
COUNTED = (6400, 25600)  # messages; the difference is without what happens once
GUEST_MESSAGES = '4000'


class Watched(contestants.Perftest):
    """Perftest and message_cost over the ring, watched or not."""

    def __init__(self, bench, op, watched):
        super().__init__(bench, op, 'ring')
        self.name = f'{op} {"watched" if watched else "alone"}'
        self.watched = watched
        self.prefix = (os.path.join(bench.build, 'softhca'), 'watch', '--') if watched else ()

    def cost(self, _size):
        argv = [*self.prefix, 'taskset', '-c', str(self.bench.cpus[0]), self.bench.tool('message_cost'), self.op]
        return float(re.search(r' ns ([\d.]+)', self.bench.single(argv, self.bench.softhca('ring'))).group(1))

    def instructions(self):
        """Of a message."""
        env = dict(self.bench.softhca('ring'), **self._preloaded())
        counts = []
        with tempfile.TemporaryDirectory(prefix='softhca-watch-') as folder:
            for messages in COUNTED:
                argv = ['valgrind', '--tool=callgrind', f'--callgrind-out-file={folder}/out', self.bench.tool('message_cost'),
                        self.op, str(messages)]
                done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                if done.returncode:
                    raise contestants.Trouble(f'{" ".join(argv)}: {done.stderr}')
                counts.append(int(re.search(r'Collected : (\d+)', done.stderr).group(1)))
        return (counts[1] - counts[0]) / (COUNTED[1] - COUNTED[0])

    def _preloaded(self):
        """valgrind runs the program itself: softhca would be counted, too."""
        if not self.watched:
            return {}
        return {'LD_PRELOAD': os.path.join(self.bench.build, 'lib', 'libsofthca-watch.so'), 'SOFTHCA_WATCH': 'text'}


def measure(bench, rounds):
    """Over the ring, best of so many rounds. Returns whether the bar is held, and the figures."""
    field = {op: [Watched(bench, op, watched) for watched in (False, True)] for op in OPERATIONS}
    samples = Samples()
    good = True
    for _ in range(rounds):
        for op in OPERATIONS:
            for metric in ('latency', 'rate', 'cost'):
                for who in field[op]:
                    samples.take(who, metric, SIZE)
    print(f'softhca watch, {SIZE} bytes over the ring, best of {rounds}; bar: 10 %')
    for what, metric, unit, scale in (('latency, typical', 'latency', 'us', 1), ('messages/s', 'rate', 'M/s', 1e6),
                                      ('processor time of a message, both ends in one thread', 'cost', 'ns', 1)):
        best = max if metric == 'rate' else min
        for op in OPERATIONS:
            alone, watched = (best(samples.of.get((who.name, metric, SIZE), [0])) for who in field[op])
            if not (alone and watched):
                print(f'  {op.upper()}, {what}: FAIL (not measured)')
                good = False
                continue
            factor = alone / watched if metric == 'rate' else watched / alone
            good &= factor <= BAR
            more = f'; {watched - alone:.0f} ns for {CALLS[op]}' if metric == 'cost' else ''
            print(f'  {op.upper()}, {what}: alone {report.figure(alone / scale)} {unit}, watched {report.figure(watched / scale)} {unit}: '
                  f'{factor:.2f} x{more}: {"pass" if factor <= BAR else "FAIL"}', flush=True)
    if shutil.which('valgrind'):
        for op in OPERATIONS:
            alone, watched = (who.instructions() for who in field[op])
            samples.of[f'{op} instructions', 'alone', SIZE], samples.of[f'{op} instructions', 'watched', SIZE] = [alone], [watched]
            print(f'  {op.upper()}, instructions of a message: alone {alone:.0f}, watched {watched:.0f}: {watched / alone:.2f} x; '
                  f'{watched - alone:.0f} for {CALLS[op]}', flush=True)
    print()
    return good, {f'{n} {m} {s}': v for (n, m, s), v in samples.of.items()}


def once(build, watched, operation):
    env = {name: value for name, value in os.environ.items() if not name.startswith(('SOFTHCA_', 'LD_'))}
    command = [os.path.join(build, 'softhca'), 'watch', '--'] if watched else []
    done = subprocess.run([*command, os.path.join(build, 'bench', 'message_cost'), operation, GUEST_MESSAGES], env=env, check=True,
                          capture_output=True, text=True)
    return float(re.search(r'ns ([\d.]+)', done.stdout).group(1))


def in_guest(build, rounds, check, out):
    status = 0
    for operation in OPERATIONS:
        pairs = [[once(build, watched, operation) for watched in (False, True)] for _ in range(rounds + 1)][1:]
        plain, watched = (min(values) for values in zip(*pairs))
        factor = statistics.median(b / a for a, b in pairs)
        print(f'{operation}: {plain:.0f} ns, watched {watched:.0f} ns, best of {rounds}: {watched / plain:.2f} x (median of the ratios '
              f'{factor:.2f}); {watched - plain:.0f} ns for {CALLS[operation]}', file=out, flush=True)
        status |= check and watched / plain > BAR
    return status


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--build', default=os.path.join(HERE, '..', 'build'))
    ap.add_argument('--rounds', type=int, default=9, help='of which the best is taken (default %(default)s)')
    ap.add_argument('--rxe', action='store_true')
    ap.add_argument('--check', action='store_true')
    ap.add_argument('--in-guest', metavar='FILE', help='used by this program itself')
    opt = ap.parse_args()
    build = os.path.abspath(opt.build)
    if opt.in_guest:
        with open(opt.in_guest, 'w', encoding='utf-8') as out:
            return in_guest(build, opt.rounds, opt.check, out)
    if not opt.rxe:
        held, _ = measure(contestants.Bench(build, sorted(os.sched_getaffinity(0))[:2]), opt.rounds)
        return opt.check and not held
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', build, '--rounds', str(opt.rounds),
                        *(['--check'] if opt.check else []), '--in-guest'], 900)
    except lab.Unable as e:
        print(f'watch.py: {e}', file=sys.stderr)
        return 77


if __name__ == '__main__':
    sys.exit(main())
