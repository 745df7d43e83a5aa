#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The topic dmabuf of the behaviour tests where there is a dma-buf: in a guest of QEMU (lab.py), whose kernel has vgem. Prints TAP."""

import argparse
import os
import re
import subprocess
import sys

import lab

PATHS = ('process', 'ring', 'cma', 'mapped', 'wire')


def run_topic(build, path):
    """[(passed, name, what was said)]"""
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, 'lib'), SOFTHCA_TEST_PATH=path, SOFTHCA_TEST_SLOW='10',
               SOFTHCA_RAW='host')
    try:
        done = subprocess.run([os.path.join(build, 'tests', 'behaviour', 'behaviour_dmabuf')], env=env, timeout=600,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors='replace')
    except subprocess.TimeoutExpired:
        return [(False, 'the topic', '# no end within 600 s\n')]
    points = re.findall(r'^(not )?ok \d+ - ([^\n]*)\n((?:#[^\n]*\n)*)', done.stdout, re.M)
    return [('' == wrong and 'SKIP' not in name, name, said) for wrong, name, said in points] or \
        [(False, 'the topic', f'# exit status {done.returncode}\n')]


def in_guest(build, modules, tap):
    with open(tap, 'w', encoding='utf-8', buffering=1) as out:
        if subprocess.run(['modprobe', '-d', modules, 'vgem']).returncode or not os.path.exists('/dev/dri'):
            print('1..0 # SKIP the kernel of the guest has no vgem', file=out)
            return 0
        count = failed = 0
        for path in PATHS:
            for passed, name, said in run_topic(build, path):
                count += 1
                failed += not passed
                print(f'{"ok" if passed else "not ok"} {count} - {path}: {name}\n{said}', end='', file=out)
        print(f'1..{count}', file=out)
    return 1 if failed else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--build', required=True, help='a build directory')
    ap.add_argument('--modules', default=os.path.join(os.environ.get('RXE_VM_CACHE') or os.path.expanduser('~/.cache/rxe-vm'),
                                                      'kernel'), help="what lib/modules of the guest's kernel is in")
    ap.add_argument('--in-guest', metavar='TAP', help='used by this program itself: where the results go')
    opt = ap.parse_args()
    if opt.in_guest:
        return in_guest(opt.build, opt.modules, opt.in_guest)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', os.path.abspath(opt.build), '--modules', opt.modules,
                        '--in-guest'], 3000)
    except lab.Unable as e:
        print(f'1..0 # SKIP {e}', flush=True)
        return 0


if __name__ == '__main__':
    sys.exit(main())
