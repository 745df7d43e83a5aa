#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs Open MPI and MPICH, as packaged, over the libraries; prints TAP. Open MPI goes by each mechanism, over UCX and over libfabric.
MPICH goes many times and with more processes, for it connects all of them at once: over UCX by rc_v, whose connections begin with
datagrams, and ud_v, or over libfabric where it is built with that (Ubuntu 22.04).

As root it becomes an ordinary user, unless --as-root.
"""

import os
import re
import shutil
import subprocess
import sys

import cm
import pairs
import special

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'mpi.c')
BYTES = 3 * ((2 << 23) - 1 + 2 * 4096 * 8)  # what mpi.c checks: all sizes of its ring, and its window twice
LIMIT = 300
TIMES = 20
OPEN_MPI = ('mpicc.openmpi', 'mpirun.openmpi')
MPICH = ('mpicc.mpich', 'mpirun.mpich')


def built(folder, compiler, launcher):
    """The program; Skip where there is nothing to build it with."""
    for tool in compiler, launcher:
        if not shutil.which(tool):
            raise pairs.Skip(f'{tool} is not installed')
    program = os.path.join(folder, compiler)
    done = subprocess.run([compiler, '-O2', '-o', program, SOURCE], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise pairs.Failure(f'{compiler}: ' + done.stdout + done.stderr)
    return program


UCX_RC = {'UCX_TLS': 'self,rc_v', 'UCX_NET_DEVICES': 'softhca0:1'}
UCX_UD = {'UCX_TLS': 'self,ud_v', 'UCX_NET_DEVICES': 'softhca0:1'}
LIBFABRIC = {'FI_PROVIDER': 'verbs;ofi_rxm'}


def run(host, command, ranks, local, below):
    """Ranks find the library and the devices as programs started by `softhca run` do. below: what UCX or libfabric may use"""
    env = dict(below, SOFTHCA_LOCAL=local, TMPDIR=os.path.dirname(command[-1]))
    text = special.output(host, command, launch='run', env=env, limit=LIMIT)
    if not re.search(rf'^{ranks} ranks, {BYTES} bytes each$', text, re.M):
        raise pairs.Failure(f'it does not say that all was right: {text}')


OVER_UCX = ('--mca', 'pml', 'ucx', '--mca', 'osc', 'ucx')
# One-sided calls go as messages: otherwise a component of their own takes UCX or shared memory.
OVER_LIBFABRIC = ('--mca', 'pml', 'cm', '--mca', 'mtl', 'ofi', '--mca', 'mtl_ofi_provider_include', 'verbs;ofi_rxm', '--mca', 'osc',
                  'pt2pt')


def open_mpi(host, folder, local, over=OVER_UCX):
    program = built(folder, *OPEN_MPI)
    if over is OVER_LIBFABRIC and not cm.interface_addresses():
        raise pairs.Skip('no interface but lo has an address, and libfabric looks at no other')
    run(host, [OPEN_MPI[1], '--allow-run-as-root', '--oversubscribe', '-np', '2', *over, '--mca', 'btl', '^openib', program], 2, local,
        UCX_RC)


def starts_single_processes(program):
    """What Ubuntu 24.04 ships: the library asks PMIx for the other ranks, and its own mpirun is none. Without SoftHCA."""
    done = subprocess.run([MPICH[1], '-np', '2', program], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return bool(re.search('^1 ranks', done.stdout, re.M))


def mpich(host, folder, below):
    """Tells how many of all went wrong, with what the last of these said."""
    program = built(folder, *MPICH)
    wanted = 'ch4:ofi' if below is LIBFABRIC else 'ch4:ucx'
    version = subprocess.run(['mpichversion'], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    if wanted not in version:
        raise pairs.Skip(f'MPICH is not built with {wanted}: ' + re.search(r'MPICH Device:\s*(\S+)', version)[1])
    if below is LIBFABRIC and not cm.interface_addresses():
        raise pairs.Skip('no interface but lo has an address, and libfabric looks at no other')
    if starts_single_processes(program):
        raise pairs.Skip('mpirun of this MPICH starts processes that do not find each other, without SoftHCA as well')
    bad, last = 0, None
    for i in range(TIMES):
        ranks = 2 + i % 3
        try:
            run(host, [MPICH[1], '-np', str(ranks), program], ranks, 'auto', below)
        except pairs.Failure as e:
            bad, last = bad + 1, e
    if last:
        last.note(f'{bad} of {TIMES} runs failed')
        raise last


CASES = [(f'{local} Open MPI over {name}', lambda host, folder, local=local, over=over: open_mpi(host, folder, local, over))
         for name, over in (('UCX', OVER_UCX), ('libfabric', OVER_LIBFABRIC)) for local in ('mapped', 'auto', 'cma', 'ring')]
CASES += [(f'auto MPICH {name}, {TIMES} times with 2 to 4 ranks', lambda host, folder, below=below: mpich(host, folder, below))
          for name, below in (('rc_v', UCX_RC), ('ud_v', UCX_UD), ('over libfabric', LIBFABRIC))]


if __name__ == '__main__':
    sys.exit(pairs.run_cases(__doc__, CASES, 'mpi', 0o777))
