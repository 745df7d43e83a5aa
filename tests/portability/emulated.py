#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the quick tests of a build directory where QEMU emulates the processor, and prints TAP: by its user emulation, or on
another kernel in a guest.

A list beside this file has the tests that are skipped: a name, and what the emulator or that kernel lacks. The same list is
held against the tests that there are, so that a name which nobody has any more is found.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = {'unit', 'sim', 'abi', 'quick'}
# Emulated code takes some twenty times as long.
PATIENCE = 20
# Tests that run beside each other.
AT_ONCE = 2
# Mutations of each fuzz target (tests/fuzz/drive.c); how many times as long a side waits for another.
CALMER = {'SOFTHCA_TEST_ROUNDS': '500', 'SOFTHCA_TEST_SLOW': str(PATIENCE)}


def tests_of(build):
    """-> {name: what meson knows of the test}, names of the quick ones"""
    text = subprocess.run(['meson', 'introspect', '--tests', build], capture_output=True, text=True, check=True).stdout
    tests = {test['name']: test for test in json.loads(text)}
    quick = []
    for name, test in tests.items():
        suites = {suite.split(':')[-1] for suite in test['suite']}
        if suites & SUITES and 'long' not in suites:
            quick.append(name)
    return tests, sorted(quick)


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


def run_by_meson(build, names):
    """Yields a test's name, result and output."""
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    with tempfile.TemporaryFile('w+') as said, \
            subprocess.Popen(['meson', 'test', '-C', build, '--timeout-multiplier', str(PATIENCE), '--num-processes', str(AT_ONCE),
                              *names], stdout=said, env=dict(os.environ, **CALMER)) as process:
        for record in records_of(log, process):
            yield record['name'].split(' / ', 1)[-1], record['result'], record.get('stdout', '') + record.get('stderr', '')
        if not os.path.exists(log):
            said.seek(0)
            sys.exit(said.read()[-4000:])


def run_here(build, tests):
    """The same without meson, which takes long to start there, and in Debian 11 tells of no test until all have ended."""
    beside = [test for test in tests if test['is_parallel']]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run_one, build, test) for test in beside]):
            yield done.result()
    for test in tests:
        if not test['is_parallel']:
            yield run_one(build, test)


def run_one(build, test):
    with subprocess.Popen(test['cmd'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=test['workdir'] or build,
                          env=dict(os.environ, **CALMER, **test['env']), start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=test['timeout'] * PATIENCE)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind
        except ProcessLookupError:
            pass
        if not ended:
            output, _ = process.communicate()
    output = output.decode(errors='replace')
    return test['name'], result_of(test['protocol'], process.returncode, output) if ended else 'TIMEOUT', output


def result_of(protocol, status, output):
    """As meson says it."""
    if protocol != 'tap':
        return {0: 'OK', 77: 'SKIP'}.get(status, 'FAIL')
    cases = re.findall(r'^(?:not )?ok\b.*', output, re.M)
    plan = re.search(r'^1\.\.(\d+)', output, re.M)
    # cmocka says `not ok` of what it skips.
    skipped = [case for case in cases if '# SKIP' in case]
    if status or not plan or int(plan[1]) != len(cases) or any(case.startswith('not') for case in cases if case not in skipped):
        return 'FAIL'
    return 'SKIP' if len(skipped) == len(cases) else 'OK'


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
    parser.add_argument('--built', action='store_true', help='build nothing, and run the tests without meson')
    parser.add_argument('build')
    parser.add_argument('tests', nargs='*')
    args = parser.parse_args()
    tests, quick = tests_of(args.build)
    cannot = impossible(args.cannot)
    wanted = args.tests or quick
    strange = [name for name in wanted if name not in tests]
    if strange:
        sys.exit(f'no test is called {", ".join(strange)}')
    skipped = {name: reason for name in wanted for pattern, reason in cannot.items() if fnmatch.fnmatchcase(name, pattern)}
    left = [name for name in wanted if name not in skipped]
    printer = Printer()
    print(f'1..{len(wanted) + 1}')
    unknown = [pattern for pattern in cannot if not fnmatch.filter(quick, pattern)]
    printer.point(not unknown, f'{args.cannot} names tests that there are', [f'nothing is called {name}' for name in unknown])
    for name, reason in skipped.items():
        printer.point(True, f'{name} # SKIP {reason}')
    for name, result, output in run_here(args.build, [tests[name] for name in left]) if args.built else run_by_meson(args.build, list(left)):
        left.remove(name)
        printer.result(name, result, output)
    for name in left:
        printer.result(name, 'no result', '')
    return 1 if printer.failed else 0


if __name__ == '__main__':
    sys.exit(main())
