#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Prints what scripts/check-distro.sh has found as a table: distribution × program × outcome.

usage: distro-table.py [--into FILE] [FOLDER]   (default: $SOFTHCA_RESULTS, build-distros)

--into FILE: puts it into FILE instead, between the two comments that say "distributions". What the table there has of
distributions and rows for which FOLDER has no result stays.
"""

import argparse
import os
import re

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = {'bullseye': 'Debian 11', 'bookworm': 'Debian 12', 'trixie': 'Debian 13', 'sid': 'Debian sid', 'jammy': 'Ubuntu 22.04',
         'noble': 'Ubuntu 24.04'}
BEGIN, END = '<!-- distributions -->\n', '<!-- end of distributions -->\n'
# The order of rows; those of the library that Debian 11 built come behind all, in the same order.
ROWS = ['rdma-core', 'glibc, gcc, clang, meson', 'builds with gcc without warnings', 'builds with clang without warnings', 'make demo',
        'make quick', 'ibverbs-utils', 'perftest', 'rdmacm-utils', 'perftest -R', 'rsockets', 'librspreload', 'qperf', 'fio', 'UCX finds rc_verbs',
        'UCX', 'libfabric', 'Open MPI', 'MPICH', 'pyverbs', "rdma-core's tests, root", "rdma-core's tests, ordinary",
        "rdma-core's tests, namespace", 'provider libraries', 'packages with a row in programs.md']
SERVED = ', built on Debian 11'


def place(row):
    name = row[:-len(SERVED)] if row.endswith(SERVED) else row
    return row.endswith(SERVED), ROWS.index(name) if name in ROWS else len(ROWS)


def cells(line):
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def table_in(text):
    """-> {distribution: {row: outcome}} of a table that table_of() has made"""
    lines = text.splitlines()
    results = {name: {} for name in cells(lines[0])[1:]} if lines else {}
    for line in lines[2:]:
        row, *outcomes = cells(line)
        for name, outcome in zip(results, outcomes):
            if outcome:
                results[name][row] = outcome
    return results


def short(outcome):
    """Counts that are not 0, and what a reader looks for in bold; what is short already stays."""
    if counts := re.fullmatch('(\\d+) passed, (\\d+) failed, (\\d+) skipped', outcome):
        passed, failed, skipped = counts.groups()
        said = (passed, f'{passed} passed'), (failed, f'**{failed} failed**'), (skipped, f'{skipped} skipped')
        return ', '.join(text for count, text in said if count != '0')
    return f'**{outcome}**' if outcome == 'no' or outcome.startswith('ended with') else outcome


def table_of(results):
    columns = [name for name in NAMES.values() if name in results]
    rows = sorted({row for outcomes in results.values() for row in outcomes}, key=place)
    lines = [['', *columns]] + [[row, *(short(results[name].get(row, '')) for name in columns)] for row in rows]
    text = ['| ' + ' | '.join(line) + ' |\n' for line in lines]
    return text[0] + '|---|' + '---|' * len(columns) + '\n' + ''.join(text[1:])


def main():
    parser = argparse.ArgumentParser(description='prints what scripts/check-distro.sh has found as a table')
    parser.add_argument('--into', metavar='FILE')
    parser.add_argument('folder', nargs='?', default=os.environ.get('SOFTHCA_RESULTS') or os.path.join(TOP, 'build-distros'))
    arguments = parser.parse_args()
    results = {}
    if arguments.into:
        text = open(arguments.into, encoding='utf-8').read()
        found = re.search(re.escape(BEGIN) + '(.*?)' + re.escape(END), text, re.S)
        if not found:
            parser.error(f'{arguments.into} has no place for the table ("{BEGIN.strip()}", "{END.strip()}")')
        results = table_in(found[1])
    for release, name in NAMES.items():
        path = os.path.join(arguments.folder, release + '.tsv')
        if os.path.exists(path):
            for line in open(path, encoding='utf-8'):
                row, outcome = line.rstrip('\n').split('\t')
                results.setdefault(name, {})[row] = outcome
    if arguments.into:
        with open(arguments.into, 'w', encoding='utf-8') as file:
            file.write(text[:found.start(1)] + table_of(results) + text[found.end(1):])
    else:
        print(table_of(results), end='')


if __name__ == '__main__':
    main()
