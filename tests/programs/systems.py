#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs programs of Debian that bring their own servers, or have libraries on top of verbs, with their data checked; prints TAP.

As root it becomes an ordinary user, unless --as-root. Ports are free ones, files are in a folder that goes at the end, and no
process outlives its case.
"""

import argparse
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import pairs
import special

PROGRAMS = ('ceph', 'dapl', 'gloo', 'librpma', 'qemu', 'tgt')
HERE = os.path.dirname(os.path.abspath(__file__))


class Place:
    """What the processes of one case share: their user, a folder that they may write to, and one SOFTHCA_LOCAL."""

    def __init__(self, host, folder, local):
        self.host = host
        self.folder = folder
        self.local = local

    def path(self, name):
        return os.path.join(self.folder, name)

    def env(self, extra):
        return dict({'SOFTHCA_LOCAL': self.local, 'TMPDIR': self.folder}, **extra or {})

    def start(self, argv, *, env=None, launch='run'):
        """A context: at its end the process is gone."""
        return pairs.Side(self.host, argv, env=self.env(env), launch=launch)

    def output(self, argv, *, env=None, launch='run', limit=60):
        return special.output(self.host, argv, env=self.env(env), launch=launch, limit=limit)

    def file(self, name, data):
        """One that the user may write to."""
        with open(self.path(name), 'wb') as f:
            f.write(data)
        os.chmod(self.path(name), 0o666)
        return self.path(name)


def needs(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise pairs.Skip(f'{tool} is not installed')


def compiled(folder, compiler, source, *options):
    """A program of ours for a packaged library; what its package lacks is a reason to skip."""
    needs(compiler)
    program = os.path.join(folder, os.path.splitext(source)[0])
    done = subprocess.run([compiler, '-O2', '-o', program, os.path.join(HERE, source), *options], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        missing = re.search(r'fatal error: (\S+): No such file|cannot find (-l\S+)', done.stderr)
        if missing:
            raise pairs.Skip(f'{missing[1] or missing[2]} is not installed')
        raise pairs.Failure(f'{source} does not compile: {done.stderr}')
    return program


def until(condition, limit, what, *sides):
    """Polls for what no process tells; a side that ends meanwhile is a failure."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        for side in sides:
            if side.p.poll() is not None:
                raise pairs.Failure(f'{side.name} ended with {side.p.returncode} before {what}')
        if time.monotonic() > deadline:
            raise pairs.Failure(f'no {what} within {limit} s')
        time.sleep(pairs.POLL_S)
    return value


def cases(name):
    """Of one program: its module has WAYS, CHECKS of (rule, function of a place), and prepare(folder)."""
    module = importlib.import_module(name)
    return module, [(f'{local} {name}: {rule}', local, check) for local in module.WAYS for rule, check in module.CHECKS]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    ap.add_argument('program', choices=PROGRAMS)
    opt = ap.parse_args()
    failed = 0
    host = pairs.host_of(opt)
    try:
        with tempfile.TemporaryDirectory(prefix=f'softhca-{opt.program}-') as top:
            os.chmod(top, 0o755)
            module, todo = cases(opt.program)
            todo = [t for t in todo if re.search(opt.filter, t[0])]
            why_not = None
            try:
                module.prepare(top)
            except pairs.Skip as e:
                why_not = e
            print(f'1..{len(todo)}', flush=True)
            for number, (name, local, check) in enumerate(todo, 1):
                if why_not:
                    print(f'ok {number} - {name} # SKIP {why_not}', flush=True)
                    continue
                folder = os.path.join(top, str(number))
                os.mkdir(folder)
                os.chmod(folder, 0o777)
                try:
                    failed += pairs.report(number, name, functools.partial(check, Place(host, folder, local)))
                finally:
                    shutil.rmtree(folder)
    finally:
        host.close()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
