#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs the libFuzzer targets for a while, under address and undefined behaviour sanitizers, in a build directory of their own.
Prints TAP. What ends a target is kept in that directory, as crash-...: drive_TARGET FILE runs it again."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGETS = {'codec': 512, 'cm_mad': 320, 'responder': 1024, 'sender': 1024, 'cm': 512, 'ring': 256, 'explain': 256,
           'steering': 256, 'remote_open': 256, 'control_message': 256, 'udp_receive': 512, 'peer_segment': 512, 'share': 512,
           'symbols': 1024, 'tagged': 512, 'delegate': 512, 'rsocket': 128, 'cma_header': 128, 'handshake': 512, 'port': 512,
           'port_owner': 512, 'gsi': 512, 'relay': 512}


def build(folder):
    """None, or what went wrong."""
    env = dict(os.environ, CC='clang')
    steps = [] if os.path.exists(os.path.join(folder, 'build.ninja')) else [
        ['meson', 'setup', folder, TOP, '-Db_sanitize=address,undefined', '-Db_lundef=false']]
    steps.append(['ninja', '-C', folder, *(f'tests/fuzz/{kind}_{t}' for t in TARGETS for kind in ('fuzz', 'drive'))])
    for step in steps:
        done = subprocess.run(step, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            return (done.stdout + done.stderr)[-2000:]
    return None


def fuzz(folder, target, seconds, keep):
    """(went well, what was said of it)"""
    here = os.path.join(folder, 'tests', 'fuzz')
    corpus = os.path.join(TOP, 'tests', 'fuzz', target + '.corpus')
    # The sanitizers of clang 14 need their shadow where more randomness may put something else.
    prefix = ['setarch', '-R'] if subprocess.run(['setarch', '-R', 'true'], capture_output=True).returncode == 0 else []
    with tempfile.TemporaryDirectory(prefix='softhca-fuzz-') as inputs:
        if keep:
            inputs = os.path.join(keep, target)
            os.makedirs(inputs, exist_ok=True)
        seeds = [*prefix, os.path.join(here, 'drive_' + target), '--seeds', inputs]
        subprocess.run(seeds + ([corpus] if os.path.exists(corpus) else []), check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run([*prefix, os.path.join(here, 'fuzz_' + target), f'-max_total_time={seconds}',
                               f'-max_len={TARGETS[target]}', f'-artifact_prefix={folder}/', '-print_final_stats=1', inputs],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace')
    if done.returncode:
        return False, done.stderr[-4000:]
    inputs = re.search(r'number_of_executed_units: (\d+)', done.stderr)
    coverage = re.findall(r'cov: (\d+)', done.stderr)
    return True, f'{inputs and inputs[1]} inputs, {coverage[-1] if coverage else "?"} edges'


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('targets', nargs='*', help=f'default: all ({", ".join(TARGETS)})')
    ap.add_argument('--seconds', type=int, default=180, help='for each target (default %(default)s)')
    ap.add_argument('--keep', metavar='FOLDER', help='of inputs: go on from those that earlier runs have left there')
    ap.add_argument('--build', default=os.path.join(TOP, 'build-fuzz'))
    opt = ap.parse_args()
    opt.build = os.path.abspath(opt.build)
    targets = opt.targets or list(TARGETS)
    if unknown := [t for t in targets if t not in TARGETS]:
        ap.error('no target ' + ', '.join(unknown))
    if not shutil.which('clang'):
        print('1..0 # SKIP clang is not installed')
        return 0
    print(f'1..{len(targets)}', flush=True)
    if wrong := build(opt.build):
        print('Bail out! the targets do not build')
        print(''.join(f'# {line}\n' for line in wrong.splitlines()), end='')
        return 1
    failed = 0
    for number, target in enumerate(targets, 1):
        good, text = fuzz(opt.build, target, opt.seconds, opt.keep)
        failed += not good
        print(f'{"ok" if good else "not ok"} {number} - {target}, {opt.seconds} s')
        print(''.join(f'# {line}\n' for line in text.splitlines()), end='', flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
