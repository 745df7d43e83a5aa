#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Explores the models of the local protocol with spin: each whole, some in several sizes, and each with what it needs taken
away, which has to fail. Prints TAP, with the states that were explored."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# name, sizes, what it needs and in which size
MODELS = [('access_slot', [''], [('NO_FENCE', '')]), ('ring', [''], [('NO_FENCE', ''), ('PUBLISH_FIRST', '')]),
          ('lock', ['', 'TWO'],
           [('NO_FENCE', ''), ('FENCE_FIRST', ''), ('STAYS_SEEN', ''), ('SEEN_EARLY', 'TWO'), ('IN_LOCK', ''), ('NO_LEAVE', '')]),
          ('link', [''], [('NO_EPOCH', '')]),
          ('sleep', ['', 'POLLS', 'SLEEPERS=2 RECORDS=1', 'DIES RECORDS=1'],
           [('NO_FENCE', ''), ('OLD_SLEEP', ''), ('NO_LOOK', ''), ('ANY_SLEEP', 'POLLS'), ('NOT_OWED', 'DIES RECORDS=1')])]


def explore(model, size, without, folder):
    """(errors found, states); raises CalledProcessError"""
    define = [f'-D{name}' for name in [*size.split(), *([without] if without else [])]]
    for command in (['spin', *define, '-a', os.path.join(HERE, model + '.pml')],
                    ['gcc', '-O2', '-w', '-DSAFETY', '-o', 'pan', 'pan.c'], ['./pan', '-m1000000']):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    if 'max search depth too small' in done.stdout:
        raise ValueError('the search was cut')
    return int(re.search(r'errors: (\d+)', done.stdout)[1]), int(re.search(r'(\d+) states, stored', done.stdout)[1])


def main():
    if not shutil.which('spin'):
        print('1..0 # SKIP spin is not installed')
        return 0
    number = failed = 0
    for model, sizes, needs in MODELS:
        for without, size in [*((None, size) for size in sizes), *needs]:
            number += 1
            with tempfile.TemporaryDirectory(prefix='softhca-models-') as folder:
                try:
                    errors, states = explore(model, size, without, folder)
                    good, text = bool(errors) == bool(without), f'{states} states, {errors} errors'
                except (subprocess.CalledProcessError, ValueError, TypeError) as e:
                    good, text = False, f'{e} {getattr(e, "stdout", "")} {getattr(e, "stderr", "")}'
            failed += not good
            print(f'{"ok" if good else "not ok"} {number} - {model}{f" ({size})" if size else ""}{f" with {without}, which has to fail" if without else ""}')
            print(''.join(f'# {line}\n' for line in text.splitlines()), end='', flush=True)
    print(f'1..{number}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
