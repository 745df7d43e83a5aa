#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Every package of this release of Debian that depends on libibverbs or librdmacm has a row in docs/programs.md; prints TAP.

usage: packages.py [FILE]   (default: that page)

apt has to know the release's packages. The first column of the table holds names, or patterns as of a shell, separated by commas; what is
in parentheses behind a name is for the reader.
"""

import fnmatch
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# librdmacm1 got another name with 64-bit times; -dev is what libraries for programmers ask for.
LIBRARIES = 'libibverbs1', 'librdmacm1', 'librdmacm1t64', 'libibverbs-dev', 'librdmacm-dev'


def dependents():
    """Those that depend on a library; recommending or suggesting it does not link it."""
    found = set()
    for library in LIBRARIES:
        text = subprocess.run(['apt-cache', '--no-recommends', '--no-suggests', '--no-conflicts', '--no-breaks', '--no-replaces',
                               '--no-enhances', 'rdepends', library], capture_output=True, text=True, check=False).stdout
        found |= set(re.findall(r'^ [ |](\S+)$', text, re.M))
    return sorted(name for name in found if ':' not in name)


def patterns(path):
    found = set()
    for line in open(path, encoding='utf-8'):
        if line.startswith('| ') and not line.startswith('| packages '):
            names = re.sub(r'\([^)]*\)', '', line.split('|')[1])
            found |= {name.strip() for name in names.split(',') if name.strip()}
    return found


def main():
    known = patterns(sys.argv[1] if len(sys.argv) > 1 else os.path.join(TOP, 'docs', 'programs.md'))
    names = dependents()
    if not names:
        print('1..0 # SKIP apt knows no package that depends on libibverbs1 or librdmacm1')
        return 0
    missing = [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in known)]
    print(f'1..{len(names)}')
    for number, name in enumerate(names, 1):
        print(f"{'not ok' if name in missing else 'ok'} {number} - {name}")
        if name in missing:
            print('# no row of docs/programs.md names it')
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
