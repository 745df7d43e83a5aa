#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs Open MPI and MPICH, as packaged, over UCX over the libraries; prints TAP.

Open MPI over RC queue pairs, by each mechanism. MPICH over datagrams, started many times: UCX's connections of those are made by
the first messages between the processes. As root it becomes an ordinary user, unless --as-root.
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
BYTES = 3 * ((2 << 23) - 1 + 2 * 4096 * 8)  # what mpi.c checks: all sizes of its ring, and its window twice
OPEN_MPI = ['--allow-run-as-root', '--oversubscribe', '--mca', 'pml', 'ucx', '--mca', 'osc', 'ucx', '--mca', 'btl', '^openib']
STARTS = 20
# Name, its tools, options of mpirun, SOFTHCA_LOCAL, UCX_TLS, ranks, how often
RUNS = [*((f'{local} Open MPI', 'openmpi', OPEN_MPI, local, 'rc_v,self', 2, 1) for local in ['mapped', 'auto', 'cma', 'ring']),
        ('auto MPICH over datagrams', 'mpich', [], 'auto', 'ud_v,self', 3, STARTS),
        ('ring MPICH over datagrams', 'mpich', [], 'ring', 'ud_v,self', 4, 1),
        ('auto MPICH', 'mpich', [], 'auto', 'rc_v,self', 4, 1)]


def built(folder, tools):
    """The program; or the reason why there is none."""
    for tool in f'mpicc.{tools}', f'mpirun.{tools}':
        if not shutil.which(tool):
            return None, f'{tool} is not installed'
    program = os.path.join(folder, f'mpi-{tools}')
    done = subprocess.run([f'mpicc.{tools}', '-O2', '-o', program, SOURCE], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise pairs.Failure(f'mpicc.{tools}: ' + done.stdout + done.stderr)
    os.chmod(folder, 0o777)
    return program, None


def run(host, program, tools, options, local, transports, ranks):
    """Ranks find the library and the devices as programs started by `softhca run` do."""
    command = [f'mpirun.{tools}', *options, '-np', str(ranks), program]
    env = {'UCX_TLS': transports, 'UCX_NET_DEVICES': 'softhca0:1', 'SOFTHCA_LOCAL': local, 'TMPDIR': os.path.dirname(program)}
    text = special.output(host, command, launch='run', env=env, limit=300)
    if not re.search(rf'^{ranks} ranks, {BYTES} bytes each$', text, re.M):
        raise pairs.Failure(f'it does not say that all was right: {text}')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    opt = ap.parse_args()
    failed = 0
    host = pairs.host_of(opt)
    try:
        with tempfile.TemporaryDirectory(prefix='softhca-mpi-') as folder:
            programs = {tools: built(folder, tools) for tools in ('openmpi', 'mpich')}
            print(f'1..{len(RUNS)}', flush=True)
            for number, (name, tools, options, local, transports, ranks, times) in enumerate(RUNS, 1):
                program, why_not = programs[tools]
                if why_not:
                    print(f'ok {number} - {name} # SKIP {why_not}', flush=True)
                    continue
                began = time.monotonic()
                try:
                    for _ in range(times):
                        run(host, program, tools, options, local, transports, ranks)
                    tap.result(number, name, began)
                except pairs.Failure as e:
                    failed += 1
                    tap.result(number, name, began, e)
    finally:
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
