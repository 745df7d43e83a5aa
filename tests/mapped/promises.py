#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Checks the table of promises in docs/mapped.md: the tests that it names exist, and it names some for each; TAP on stdout."""

import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = '| promise | tests | run |\n|---|---|---|\n'


def read(*path):
    with open(os.path.join(TOP, *path), encoding='utf-8') as file:
        return file.read()


def tests_of(topic):
    """Names of the tests of a topic, "directory/file", a program in C unless it says otherwise."""
    if topic.endswith('.py'):
        return re.findall(r'^def (\w+)', read('tests', topic), re.M)
    return re.findall(r'\b(?:[A-Z_]+|test)\((\w+)', read('tests', topic + '.c'))


def main():
    rows = [line.strip('| ').split(' | ') for line in read('docs', 'mapped.md').split(HEADER)[1].split('\n\n')[0].splitlines()]
    lacking = []
    for row in rows:
        named = [(topic, name) for topic, names in re.findall(r'`(\w+/[\w.]+)`: ((?:`\w+`(?:, )?)+)', ' | '.join(row))
                 for name in re.findall(r'\w+', names)]
        lacking += [f'{topic} has no {name}' for topic, name in named if name not in tests_of(topic)]
        if not named:
            lacking.append(f'no test: {row[0]}')
    print('1..1')
    print(f'{"not ok" if lacking or len(rows) < 30 else "ok"} 1 - tests that {len(rows)} rows of docs/mapped.md name exist')
    for line in lacking:
        print(f'# {line}')
    return 1 if lacking else 0


if __name__ == '__main__':
    sys.exit(main())
