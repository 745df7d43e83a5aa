#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs Open MPI, as packaged, over UCX over the libraries, by each mechanism; prints TAP.

As root it becomes an ordinary user, unless --as-root.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import pairs
import special
import tap

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'mpi.c')
RANKS = 2
BYTES = 3 * ((2 << 23) - 1 + 2 * 4096 * 8)  # what mpi.c checks: all sizes of its ring, and its window twice
UCX = {'UCX_TLS': 'rc_v,self', 'UCX_NET_DEVICES': 'softhca0:1'}


def built(folder):
    """The program; or the reason why there is none."""
    for tool in 'mpicc', 'mpirun':
        if not shutil.which(tool):
            return None, f'{tool} is not installed'
    program = os.path.join(folder, 'mpi')
    done = subprocess.run(['mpicc', '-O2', '-o', program, SOURCE], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise pairs.Failure('mpicc: ' + done.stdout + done.stderr)
    os.chmod(folder, 0o777)
    return program, None


def run(host, program, local):
    """Ranks find the library and the devices as programs started by `softhca run` do."""
    command = ['mpirun', '--allow-run-as-root', '--oversubscribe', '-np', str(RANKS), '--mca', 'pml', 'ucx', '--mca', 'osc', 'ucx',
               '--mca', 'btl', '^openib', program]
    env = dict(UCX, SOFTHCA_LOCAL=local, TMPDIR=os.path.dirname(program))
    text = special.output(host, command, launch='run', env=env, limit=300)
    if not re.search(rf'^{RANKS} ranks, {BYTES} bytes each$', text, re.M):
        raise pairs.Failure(f'it does not say that all was right: {text}')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    opt = ap.parse_args()
    ways = ['mapped', 'auto', 'cma', 'ring']
    failed = 0
    host = pairs.host_of(opt)
    try:
        with tempfile.TemporaryDirectory(prefix='softhca-mpi-') as folder:
            program, why_not = built(folder)
            print(f'1..{len(ways)}', flush=True)
            for number, local in enumerate(ways, 1):
                name = f'{local} Open MPI'
                if why_not:
                    print(f'ok {number} - {name} # SKIP {why_not}', flush=True)
                    continue
                began = time.monotonic()
                try:
                    run(host, program, local)
                    tap.result(number, name, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(number, name, began, e)
    finally:
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
