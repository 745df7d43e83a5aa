#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca watch over another adapter: test_watch.py with the distribution's libibverbs and the kernel's Soft-RoCE, both ends of
it, in a guest of QEMU (lab.py). Prints TAP.

--root: with the libibverbs and python3 of another distribution, whose root file system lies in that folder (debootstrap)."""

import argparse
import os
import subprocess
import sys

import lab

ADDRESS = '192.168.77.1'
LIMIT = 1500


def enter(root, *folders):
    """The distribution's root, with the kernel's file systems and what is tested in their places."""
    for folder in ('/proc', '/sys', '/dev', *folders):
        os.makedirs(root + folder, exist_ok=True)
        subprocess.run(['mount', '--rbind', folder, root + folder], check=True)
    os.chroot(root)
    os.chdir('/')


def in_guest(build, root, tap):
    tests = os.path.join(build, 'tests', 'explain')
    programs = [os.path.join(tests, name) for name in ('situations_cm', 'watched', 'opens')]
    with open(tap, 'w', encoding='utf-8') as out:
        if root:
            enter(root, lab.TOP, *([] if build.startswith(lab.TOP + '/') else [build]))
        return subprocess.run(['python3', os.path.join(lab.TOP, 'tests', 'explain', 'test_watch.py'),
                               os.path.join(tests, 'situations'), os.path.join(build, 'softhca'), *programs, 'system', ADDRESS],
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument('--build', required=True, help='a build directory')
    ap.add_argument('--root', help="folder of another distribution's root file system, with python3 and libibverbs")
    ap.add_argument('--in-guest', metavar='TAP', help='used by this program itself: where the results go')
    opt = ap.parse_args()
    if opt.in_guest:
        return in_guest(opt.build, opt.root, opt.in_guest)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', os.path.abspath(opt.build),
                        *(['--root', os.path.abspath(opt.root)] if opt.root else []), '--in-guest'], LIMIT)
    except lab.Unable as e:
        print(f'1..0 # SKIP {e}', flush=True)
        return 0


if __name__ == '__main__':
    sys.exit(main())
