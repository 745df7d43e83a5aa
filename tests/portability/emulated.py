#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the quick tests of a build directory for another processor under QEMU's user emulation; prints TAP.

usage: emulated.py BUILD [TEST…]

qemu-cannot.txt, beside this file, has the tests that are skipped: a name, and what the emulator lacks. The same list is held against the
tests that there are, so that a name which nobody has any more is found.
"""

import fnmatch
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = {'unit', 'sim', 'abi', 'quick'}
# Emulated code takes some twenty times as long.
PATIENCE = 20
# Mutations of each fuzz target (tests/fuzz/drive.c); how many times as long a side waits for another.
CALMER = {'SOFTHCA_TEST_ROUNDS': '500', 'SOFTHCA_TEST_SLOW': str(PATIENCE)}


def tests_of(build):
    """-> names of the quick tests"""
    text = subprocess.run(['meson', 'introspect', '--tests', build], capture_output=True, text=True, check=True).stdout
    found = []
    for test in json.loads(text):
        suites = {suite.split(':')[-1] for suite in test['suite']}
        if suites & SUITES and 'long' not in suites:
            found.append(test['name'])
    return sorted(set(found))


def impossible():
    """-> {pattern: reason}"""
    found = {}
    with open(os.path.join(HERE, 'qemu-cannot.txt'), encoding='utf-8') as lines:
        for line in lines:
            if line.strip() and not line.startswith('#'):
                name, reason = line.rstrip('\n').split('\t')
                found[name] = reason
    return found


def run(build, names):
    """-> {name: (result, output)}"""
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    # Builds what these tests need.
    done = subprocess.run(['meson', 'test', '-C', build, '--timeout-multiplier', str(PATIENCE), '--num-processes', '2', *names],
                          stdout=subprocess.PIPE, text=True, env=dict(os.environ, **CALMER), check=False)
    if not os.path.exists(log):
        sys.exit(done.stdout[-4000:])
    with open(log, encoding='utf-8', errors='replace') as records:
        found = [json.loads(line) for line in records]
    return {r['name'].split(' / ', 1)[-1]: (r['result'], r.get('stdout', '') + r.get('stderr', '')) for r in found}


def main():
    build, *wanted = sys.argv[1:]
    names = tests_of(build)
    cannot = impossible()
    unknown = [pattern for pattern in cannot if not fnmatch.filter(names, pattern)]
    wanted = wanted or names
    skipped = {name: reason for name in wanted for pattern, reason in cannot.items() if fnmatch.fnmatchcase(name, pattern)}
    results = run(build, [name for name in wanted if name not in skipped])
    print(f'1..{len(wanted) + 1}')
    failed = bool(unknown)
    for number, name in enumerate(wanted, 1):
        if name in skipped:
            print(f'ok {number} - {name} # SKIP {skipped[name]}')
            continue
        result, output = results.get(name, ('no result', ''))
        good = result in ('OK', 'EXPECTEDFAIL')
        if result == 'SKIP':
            print(f'ok {number} - {name} # SKIP {(output.strip().splitlines() or ["no reason given"])[-1]}')
            continue
        failed |= not good
        print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)
        if not good:
            print(f'# {result}')
            for line in output.splitlines()[-30:]:
                print('# ' + line)
    print(f"{'not ok' if unknown else 'ok'} {len(wanted) + 1} - qemu-cannot.txt names tests that there are")
    for pattern in unknown:
        print(f'# nothing is called {pattern}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
