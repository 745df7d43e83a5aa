#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs tests of huge pages while the machine has some: root lends what is missing. TAP on stdout.

usage: huge.py LIB MAPPED_SHARED BEHAVIOUR_MEMORY
"""

import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, 'tests', 'conformance'))
import run as conformance  # noqa: E402  (it has a name that other directories use, too)

WAYS = ['full', 'user', 'minor', 'alone']
PATHS = ['process', 'ring', 'cma', 'mapped', 'wire', 'wire-process']


def main():
    lib, shared, memory = map(os.path.abspath, sys.argv[1:])
    as_user = os.path.join(TOP, 'scripts', 'as-user.sh')
    place = f'LD_LIBRARY_PATH={lib}'
    runs = [(f'{way}: shared memory', ['env', f'SOFTHCA_TEST_SWITCH={way}', shared]) for way in WAYS]
    runs += [(f'{path}: peers', ['env', place, f'SOFTHCA_TEST_PATH={path}', memory]) for path in PATHS]
    runs += [('ordinary user: shared memory', [as_user, 'env', 'SOFTHCA_TEST_SWITCH=user', shared]),
             ('ordinary user: peers', [as_user, 'env', place, 'SOFTHCA_TEST_PATH=mapped', memory])]
    failed = 0
    print(f'1..{len(runs)}')
    with conformance.HugePages():
        for number, (name, command) in enumerate(runs, 1):
            done = subprocess.run([*command, 'huge_pages'], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                  env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT='TAP'))
            bad = done.returncode != 0 or not done.stdout
            failed += bad
            skipped = next((line.split('# SKIP', 1)[1] for line in done.stdout.splitlines() if '# SKIP' in line), None)
            print(f'{"not ok" if bad else "ok"} {number} - {name}' + (f' # SKIP{skipped}' if skipped and not bad else ''))
            if bad:
                print(''.join(f'# {line}\n' for line in (done.stdout + done.stderr).splitlines()), end='', flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
