#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Checks the tables of verbs in docs/conformance.md; TAP on stdout.

Every verb that libibverbs exports, or that programs reach through a table of functions, has a row; and the files that rows
name exist, below src/ and tests/.
"""

import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADING = '## Verbs and capabilities'
# Where the inline verb of verbs.h has another name than its place in the table.
INLINE = {'query_rt_values': 'ibv_query_rt_values_ex', 'ibv_create_flow': 'ibv_create_flow',
          'ibv_destroy_flow': 'ibv_destroy_flow', 'wr_atomic_cmp_swp': 'ibv_wr_atomic_cmp_swp'}


def read(*path):
    with open(os.path.join(TOP, *path), encoding='utf-8') as file:
        return file.read()


def exported():
    """Of the public nodes: the private ones are for providers of rdma-core."""
    for node, names in re.findall(r'^(\w[\w.]*) \{(.*?)\}', read('abi', 'libibverbs.map'), re.M | re.S):
        if re.match(r'IBVERBS_\d', node):
            yield from re.findall(r'^\s+(\w+);', names, re.M)


def reached():
    """Verbs that verbs.h calls through a table."""
    for file, pattern, prefix in [('ops.c', r'(?:verbs|ops)->(\w+)', 'ibv_'), ('cq.c', r'\bcq->((?:start|next|end)_poll) =', 'ibv_'),
                                  ('cq.c', r'\bcq->(read_\w+) =', 'ibv_wc_'), ('wr.c', r'->(wr_\w+) =', 'ibv_')]:
        for name in re.findall(pattern, read('src', 'front', 'verbs', file)):
            if name != 'context' and not name.startswith(('_compat', 'ABI_placeholder')):
                yield INLINE.get(name, prefix + name)


def rows():
    """Cells of every row below the heading."""
    for line in read('docs', 'conformance.md').split(HEADING)[1].splitlines():
        cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
        if line.startswith('|') and len(cells) == 4 and not cells[0].startswith(('---', 'verb')):
            yield cells


def names_of(cell):
    """`ibv_import_device, _pd` is ibv_import_device and ibv_import_pd."""
    last = ''
    for word in re.findall(r'\b(?:_?ibv|mult|mbps)_\w+|(?<![\w`])_[a-z_]+', cell):
        if word.startswith('_') and not word.startswith('_ibv_'):
            yield last[:last.rindex('_')] + word
        else:
            last = word
            yield word


def exists(name, below, beside):
    """A name without a directory is beside the one before it."""
    places = [os.path.join(TOP, below, name), os.path.join(TOP, below, beside, name)]
    return any(os.path.exists(place) for place in places)


def missing_files(cell, below):
    beside = ''
    for name in re.findall(r'`([\w/.]+)`', cell):
        if not exists(name, below, beside):
            yield name
        beside = os.path.dirname(name) or beside


def main():
    table = list(rows())
    covered = {name for row in table for name in names_of(row[0])}
    verbs = sorted({*exported(), *reached()})
    lacking = [verb for verb in verbs if verb not in covered]
    wrong = [f'{row[0][:60]}: {name}' for row in table for cell, below in ((row[1], 'src'), (row[2], 'tests'))
             for name in missing_files(cell, below)]
    untested = [row[0][:60] for row in table if not re.search(r'`', row[2])]
    failed = 0
    print('1..3')
    for number, (what, bad) in enumerate([(f'each of {len(verbs)} verbs is in docs/conformance.md', lacking),
                                          (f'files that {len(table)} rows name exist', wrong),
                                          ('each row names a test', untested)], 1):
        print(f'{"not ok" if bad else "ok"} {number} - {what}')
        for line in bad:
            print(f'# {line}')
        failed += bool(bad)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
