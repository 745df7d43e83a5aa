#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What softhca watch costs: processor time of a message of 8 bytes (message_cost: one thread has both ends), with it and without,
in turns. Over SoftHCA's ring, or with --rxe over the kernel's Soft-RoCE in a guest (tests/interop/lab.py), whose processor
is emulated. --check: exit status 1 if it costs more than 10 %."""

import argparse
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', 'tests', 'interop')]
sys.dont_write_bytecode = True

import lab  # noqa: E402

BAR = 1.1
MESSAGES = {False: '300000', True: '4000'}


def once(build, watched, operation, rxe):
    env = {name: value for name, value in os.environ.items() if not name.startswith(('SOFTHCA_', 'LD_'))}
    if not rxe:
        env.update(LD_LIBRARY_PATH=os.path.join(build, 'lib'), SOFTHCA_LOCAL='ring')
    command = [os.path.join(build, 'softhca'), 'watch', '--'] if watched else []
    done = subprocess.run([*command, os.path.join(build, 'bench', 'message_cost'), operation, MESSAGES[rxe]], env=env, check=True,
                          capture_output=True, text=True)
    return float(re.search(r'ns ([\d.]+)', done.stdout).group(1))


def measure(build, rounds, check, rxe, out):
    status = 0
    for operation in ('send', 'write'):
        pairs = [[once(build, watched, operation, rxe) for watched in (False, True)] for _ in range(rounds + 1)][1:]
        plain, watched = (statistics.median(values) for values in zip(*pairs))
        factor = statistics.median(b / a for a, b in pairs)
        posts = {'send': 'two posts and two polled completions', 'write': 'a post and a polled completion'}[operation]
        print(f'{operation}: {plain:.0f} ns, watched {watched:.0f} ns: {factor:.2f} x; {watched - plain:.0f} ns for {posts}',
              file=out, flush=True)
        status |= check and factor > BAR
    return status


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--build', default=os.path.join(HERE, '..', 'build'))
    ap.add_argument('--rounds', type=int, default=9, help='of which the median is taken (default %(default)s)')
    ap.add_argument('--rxe', action='store_true')
    ap.add_argument('--check', action='store_true')
    ap.add_argument('--in-guest', metavar='FILE', help='used by this program itself')
    opt = ap.parse_args()
    build = os.path.abspath(opt.build)
    if opt.in_guest:
        with open(opt.in_guest, 'w', encoding='utf-8') as out:
            return measure(build, opt.rounds, opt.check, True, out)
    if not opt.rxe:
        return measure(build, opt.rounds, opt.check, False, sys.stdout)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', build, '--rounds', str(opt.rounds),
                        *(['--check'] if opt.check else []), '--in-guest'], 900)
    except lab.Unable as e:
        print(f'watch.py: {e}', file=sys.stderr)
        return 77


if __name__ == '__main__':
    sys.exit(main())
