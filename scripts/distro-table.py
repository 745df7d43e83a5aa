#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Prints, for docs/conformance.md, what scripts/check-distro.sh has found: distribution × program × outcome.

usage: distro-table.py [FOLDER]   (default: $SOFTHCA_RESULTS, build-distros)
"""

import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = {'bullseye': 'Debian 11', 'bookworm': 'Debian 12', 'trixie': 'Debian 13', 'sid': 'Debian sid', 'jammy': 'Ubuntu 22.04',
         'noble': 'Ubuntu 24.04'}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get('SOFTHCA_RESULTS') or os.path.join(TOP, 'build-distros')
    rows, columns = {}, {}
    for release in NAMES:
        path = os.path.join(folder, release + '.tsv')
        if not os.path.exists(path):
            continue
        columns[release] = NAMES[release]
        for line in open(path, encoding='utf-8'):
            row, outcome = line.rstrip('\n').split('\t')
            rows.setdefault(row, {})[release] = outcome
    print('| | ' + ' | '.join(columns.values()) + ' |')
    print('|---|' + '---|' * len(columns))
    for row, outcomes in rows.items():
        print(f'| {row} | ' + ' | '.join(outcomes.get(release, '') for release in columns) + ' |')


if __name__ == '__main__':
    main()
