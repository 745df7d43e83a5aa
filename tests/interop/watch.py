#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca watch over another adapter: test_watch.py with the distribution's libibverbs and the kernel's Soft-RoCE, both ends of
it, in a guest of QEMU (lab.py). Prints TAP."""

import argparse
import os
import subprocess
import sys

import lab

ADDRESS = '192.168.77.1'
LIMIT = 1500


def in_guest(build, tap):
    tests = os.path.join(build, 'tests', 'explain')
    programs = [os.path.join(tests, name) for name in ('situations_cm', 'watched', 'opens')]
    with open(tap, 'w', encoding='utf-8') as out:
        return subprocess.run(['python3', os.path.join(lab.TOP, 'tests', 'explain', 'test_watch.py'),
                               os.path.join(tests, 'situations'), os.path.join(build, 'softhca'), *programs, 'system', ADDRESS],
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--build', required=True, help='a build directory')
    ap.add_argument('--in-guest', metavar='TAP', help='used by this program itself: where the results go')
    opt = ap.parse_args()
    if opt.in_guest:
        return in_guest(opt.build, opt.in_guest)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', os.path.abspath(opt.build), '--in-guest'], LIMIT)
    except lab.Unable as e:
        print(f'1..0 # SKIP {e}', flush=True)
        return 0


if __name__ == '__main__':
    sys.exit(main())
