#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the quick tests of a build directory where QEMU emulates the processor, and prints TAP: by its user emulation, or on
another kernel in a guest.

A list beside this file has the tests that are skipped: a name, and what the emulator or that kernel lacks. The same list is
held against the tests that there are, so that a name which nobody has any more is found.
"""

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = {'unit', 'sim', 'abi', 'quick'}
# Emulated code takes some twenty times as long.
PATIENCE = 20
# Tests of one run of meson.
AT_ONCE = 16
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


def impossible(name):
    """-> {pattern: reason}"""
    found = {}
    with open(os.path.join(HERE, name), encoding='utf-8') as lines:
        for line in lines:
            if line.strip() and not line.startswith('#'):
                name, reason = line.rstrip('\n').split('\t')
                found[name] = reason
    return found


def records_of(log, process):
    """What meson adds to its log until it ends."""
    at, rest, ended = 0, b'', False
    while not ended:
        ended = process.poll() is not None
        if os.path.exists(log):
            with open(log, 'rb') as f:
                f.seek(at)
                new = f.read()
            at += len(new)
            *lines, rest = (rest + new).split(b'\n')
            for line in lines:
                yield json.loads(line.decode(errors='replace'))
        if not ended:
            time.sleep(0.5)


def run(build, names, options):
    """Yields a test's name, result and output."""
    # An old meson writes its log when it ends.
    for first in range(0, len(names), AT_ONCE):
        yield from run_some(build, names[first:first + AT_ONCE], options)


def run_some(build, names, options):
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    with tempfile.TemporaryFile('w+') as said, \
            subprocess.Popen(['meson', 'test', '-C', build, '--timeout-multiplier', str(PATIENCE), '--num-processes', '2',
                              *options, *names], stdout=said, env=dict(os.environ, **CALMER)) as process:
        for record in records_of(log, process):
            output = record.get('stdout', '') + record.get('stderr', '')
            good = record['result'] == 'FAIL' and record['returncode'] == 0 and only_skips(output)
            yield record['name'].split(' / ', 1)[-1], 'OK' if good else record['result'], output
        if not os.path.exists(log):
            said.seek(0)
            sys.exit(said.read()[-4000:])


def only_skips(output):
    """Has every case of this TAP passed or been skipped? cmocka says `not ok` of what it skips, which an old meson believes."""
    cases = re.findall(r'^(?:not )?ok\b.*', output, re.M)
    plan = re.search(r'^1\.\.(\d+)', output, re.M)
    return bool(plan and cases) and int(plan[1]) == len(cases) and not any(
        case.startswith('not') and '# SKIP' not in case for case in cases)


class Printer:
    def __init__(self):
        self.count = 0
        self.failed = False

    def point(self, good, text, more=()):
        self.count += 1
        self.failed |= not good
        print(f"{'ok' if good else 'not ok'} {self.count} - {text}")
        for line in more:
            print('# ' + line)
        sys.stdout.flush()

    def result(self, name, result, output):
        if result == 'SKIP':
            last = (output.strip().splitlines() or ['no reason given'])[-1]
            self.point(True, f'{name} # SKIP {last.split("# SKIP ")[-1]}')
        elif result in ('OK', 'EXPECTEDFAIL'):
            self.point(True, name)
        else:
            self.point(False, name, [result, *output.splitlines()[-30:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cannot', default='qemu-cannot.txt', metavar='LIST')
    parser.add_argument('--built', action='store_true', help='do not build first what the tests need')
    parser.add_argument('build')
    parser.add_argument('tests', nargs='*')
    args = parser.parse_args()
    names, cannot = tests_of(args.build), impossible(args.cannot)
    wanted = args.tests or names
    skipped = {name: reason for name in wanted for pattern, reason in cannot.items() if fnmatch.fnmatchcase(name, pattern)}
    left = [name for name in wanted if name not in skipped]
    printer = Printer()
    print(f'1..{len(wanted) + 1}')
    unknown = [pattern for pattern in cannot if not fnmatch.filter(names, pattern)]
    printer.point(not unknown, f'{args.cannot} names tests that there are', [f'nothing is called {name}' for name in unknown])
    for name, reason in skipped.items():
        printer.point(True, f'{name} # SKIP {reason}')
    for name, result, output in run(args.build, list(left), ['--no-rebuild'] if args.built else []):
        left.remove(name)
        printer.result(name, result, output)
    for name in left:
        printer.result(name, 'no result', '')
    return 1 if printer.failed else 0


if __name__ == '__main__':
    sys.exit(main())
