#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""scripts/distro-table.py keeps in the table of a document what was not run again; prints TAP."""

import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(TOP, 'scripts', 'distro-table.py')
BEFORE = '''before
<!-- distributions -->
|  | Debian 12 | Debian sid |
|---|---|---|
| fio | 3 passed | no |
| a row of yesterday | 1 passed, 2 failed, 0 skipped | yes |
<!-- end of distributions -->
after
'''
# Of counts only those that are not 0, and what failed in bold. rdma-core stands in front, the row that no list has behind,
# what Debian 11 built last.
AFTER = '''before
<!-- distributions -->
|  | Debian 11 | Debian 12 | Debian sid |
|---|---|---|---|
| rdma-core | 33 |  |  |
| fio |  | 4 passed, 1 skipped | **no** |
| a row of yesterday |  | 1 passed, **2 failed** | yes |
| fio, built on Debian 11 |  | 3 passed |  |
<!-- end of distributions -->
after
'''


def run(folder, *arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments, folder], capture_output=True, text=True, check=False)


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    return path


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def what_was_run_replaces_and_the_rest_stays(folder):
    document = write(folder, 'document', BEFORE)
    for _ in range(2):  # the second time changes nothing
        assert run(folder, '--into', document).returncode == 0
        assert read(document) == AFTER, read(document)


def what_did_not_pass_is_not_hidden(folder):
    write(folder, 'sid.tsv', 'UCX\t0 passed, 1 failed, 0 skipped\n'
          'MPICH\t0 passed, 0 failed, 2 skipped\nfio\tended with exit status 1 after 3 passed\n')
    lines = run(folder).stdout.splitlines()
    assert lines[3:6] == ['| fio |  | 4 passed, 1 skipped | **ended with exit status 1 after 3 passed** |',
                          '| UCX |  |  | **1 failed** |', '| MPICH |  |  | 2 skipped |'], lines


def without_a_document_only_results_are_printed(folder):
    assert run(folder).stdout.splitlines()[2:] == ['| rdma-core | 33 |  |', '| fio |  | 4 passed, 1 skipped |',
                                                   '| fio, built on Debian 11 |  | 3 passed |']


def a_document_without_a_place_is_refused(folder):
    document = write(folder, 'document', 'no table\n')
    done = run(folder, '--into', document)
    assert done.returncode != 0 and 'no place for the table' in done.stderr, done.stderr
    assert read(document) == 'no table\n'


def main():
    tests = [what_was_run_replaces_and_the_rest_stays, what_did_not_pass_is_not_hidden, without_a_document_only_results_are_printed,
             a_document_without_a_place_is_refused]
    print(f'1..{len(tests)}')
    failed = 0
    for number, test in enumerate(tests, 1):
        with tempfile.TemporaryDirectory(prefix='softhca-table-') as folder:
            write(folder, 'bullseye.tsv', 'rdma-core\t33\n')
            write(folder, 'bookworm.tsv', 'fio, built on Debian 11\t3 passed, 0 failed, 0 skipped\nfio\t4 passed, 0 failed, 1 skipped\n')
            try:
                test(folder)
                print(f'ok {number} - {test.__name__}')
            except AssertionError as e:
                failed += 1
                print(f'not ok {number} - {test.__name__}\n# {e!r}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
