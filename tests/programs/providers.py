#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The distribution's provider libraries (libmlx5 and its like) find every symbol that they need in our libibverbs.so.1, also
bound at once; prints TAP. Programs link some of these, and plugins are what rdma-core itself would load.

usage: providers.py DIRECTORY   (of libibverbs.so.1)
"""

import glob
import os
import subprocess
import sys

PLACES = ['/usr/lib/*/libibverbs/lib*-rdmav*.so', '/usr/lib64/libibverbs/lib*-rdmav*.so', '/usr/lib/*/lib{efa,hns,ionic,mana,mlx4,mlx5}.so.1',
          '/usr/lib64/lib{efa,hns,ionic,mana,mlx4,mlx5}.so.1']
# Ours comes first, as in a program that links it; the loader says what is missing.
LOAD = 'import ctypes, sys; ctypes.CDLL("libibverbs.so.1"); ctypes.CDLL(sys.argv[1])'
OURS = 'import ctypes, sys; ctypes.CDLL("libibverbs.so.1"); sys.exit(sys.argv[1] not in open("/proc/self/maps").read())'


def expand(pattern):
    if '{' not in pattern:
        return glob.glob(pattern)
    head, rest = pattern.split('{')
    names, tail = rest.split('}')
    return [path for name in names.split(',') for path in glob.glob(head + name + tail)]


def main():
    directory = os.path.realpath(sys.argv[1])
    env = dict(os.environ, LD_LIBRARY_PATH=directory, LD_BIND_NOW='1')
    libraries = sorted({path for pattern in PLACES for path in expand(pattern)})
    if not libraries:
        print('1..0 # SKIP ibverbs-providers is not installed')
        return 0
    failed = 0
    print(f'1..{len(libraries) + 1}')
    ours = os.path.realpath(os.path.join(directory, 'libibverbs.so.1'))
    for number, (name, code, argument) in enumerate([('libibverbs.so.1 is ours', OURS, ours)] + [(p, LOAD, p) for p in libraries], 1):
        done = subprocess.run([sys.executable, '-c', code, argument], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        good = done.returncode == 0
        failed += not good
        print(f'{"ok" if good else "not ok"} {number} - {name}', flush=True)
        if not good:
            print('# ' + (done.stderr.strip().splitlines() or [f'exit status {done.returncode}'])[-1])
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
