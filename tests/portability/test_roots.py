#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""scripts/distro.sh makes roots of what is signed only, and says why it has none; prints TAP. debootstrap and apt are
stand-ins here, which write down how they were called."""

import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
APT = 'echo "Debian Debian http://mirror.invalid/debian"\n'


def script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write('#!/bin/bash\n' + text)
    os.chmod(path, 0o755)


def begin(folder, release, debootstrap, known=(), before=''):
    """-> exit status and output of distro_begin RELEASE, how debootstrap was called. before: run when distro.sh is read"""
    calls = os.path.join(folder, 'calls')
    script(os.path.join(folder, 'bin/debootstrap'), f'echo "$*" >>{calls}\n{debootstrap}\n')
    script(os.path.join(folder, 'bin/apt-get'), APT)
    for name in known:
        script(os.path.join(folder, 'debootstrap/scripts', name), '')
    environment = dict(os.environ, PATH=f'{folder}/bin:{os.environ["PATH"]}', DEBOOTSTRAP_DIR=f'{folder}/debootstrap',
                       SOFTHCA_ROOTS=f'{folder}/roots')
    environment.pop('SOFTHCA_UBUNTU_MIRROR', None)
    done = subprocess.run(['bash', '-euc', f'. scripts/distro.sh\n{before}\ndistro_begin {release}'], cwd=TOP, env=environment,
                          capture_output=True, text=True, check=False)
    called = open(calls, encoding='utf-8').read() if os.path.exists(calls) else ''
    return done.returncode, done.stdout + done.stderr, called


def a_release_that_debootstrap_does_not_know_is_said_so(folder):
    status, output, called = begin(folder, 'sid', 'exit 1', known=['bookworm'])
    assert status == 77 and called == '', (status, output, called)
    assert output == "sid: no root, for this machine's debootstrap has no script for it\n", output


def signatures_are_checked_or_there_is_no_root(folder):
    _, _, called = begin(folder, 'sid', 'exit 1', known=['sid'])
    assert '--force-check-gpg' in called and ' sid ' in called and called.endswith(' http://mirror.invalid/debian\n'), called


def a_mirror_that_does_not_answer_is_a_skip(folder):
    status, output, _ = begin(folder, 'sid', 'echo "E: Failed getting release file"; exit 1', known=['sid'])
    assert status == 77, status
    assert 'sid: no root from http://mirror.invalid/debian: Failed getting release file\n' in output, output


def a_wrong_signature_is_a_failure(folder):
    for words in 'Invalid Release signature (key id 1)', 'Release signed by unknown key (key id 1)':
        status, output, _ = begin(folder, 'sid', f'echo "E: {words}"; exit 1', known=['sid'])
        assert status == 1 and words in output, (status, output)


def ubuntu_is_made_by_a_debootstrap_that_has_its_keys(folder):
    # The root of Debian 13 is there; what would run in it is written down instead.
    before = '''
mkdir -p "$SOFTHCA_ROOTS/trixie.bare/root" "$SOFTHCA_ROOTS/trixie.ubuntu/root"
touch "$SOFTHCA_ROOTS/trixie.bare/ready"
cp scripts/install-deps.sh "$SOFTHCA_ROOTS/trixie.ubuntu/ready"
inside() { shift; echo "in $lower with $tree:"; "$@"; }'''
    for release in 'jammy', 'noble':
        begin(folder, release, 'exit 1', before=before)
    called = open(os.path.join(folder, 'calls'), encoding='utf-8').read().splitlines()
    assert [line.split()[-3:] for line in called] == [[release, 'root', 'http://archive.ubuntu.com/ubuntu']
                                                      for release in ('jammy', 'noble')], called
    assert all('--force-check-gpg' in line for line in called), called
    status, output, _ = begin(folder, 'noble', 'echo "E: Invalid Release signature (key id 1)"; exit 1', before=before)
    assert status == 1 and 'Invalid Release signature' in output, (status, output)


def ubuntu_without_debian_is_a_skip_that_says_so(folder):
    status, output, called = begin(folder, 'noble', 'exit 1')
    assert status == 77 and called == '', (status, output, called)
    assert output.startswith('trixie: no root, for'), output
    assert output.endswith('noble: no root, for it is made in one of Debian 13, which has the keys of Ubuntu\n'), output


def main():
    tests = [a_release_that_debootstrap_does_not_know_is_said_so, signatures_are_checked_or_there_is_no_root,
             a_mirror_that_does_not_answer_is_a_skip, a_wrong_signature_is_a_failure,
             ubuntu_is_made_by_a_debootstrap_that_has_its_keys, ubuntu_without_debian_is_a_skip_that_says_so]
    if os.geteuid() != 0:
        print('1..0 # SKIP a root of another distribution needs root')
        return 0
    print(f'1..{len(tests)}')
    failed = 0
    for number, test in enumerate(tests, 1):
        with tempfile.TemporaryDirectory(prefix='softhca-roots-') as folder:
            try:
                test(folder)
                print(f'ok {number} - {test.__name__}')
            except AssertionError as e:
                failed += 1
                print(f'not ok {number} - {test.__name__}\n# {e!r}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
