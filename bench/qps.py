# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Many QPs between two processes (bench/verbs_qps.c), best of so many rounds; `--against FOLDER` of bench/run measures the
library in another folder in turns."""

import os
import re
import subprocess

import report

COUNTS = {10000: 1.5, 100000: 2}  # QPs → bar: a WRITE over one of so many, times one over two
LIMITS = {'create_us': 8, 'connect_us': 8, 'destroy_us': 8, 'bytes': 2253}


def once(bench, library, count, turns):
    """The figures by name; None: the library has not so many QPs."""
    done = subprocess.run([bench.tool('verbs_qps'), *map(str, bench.cpus), str(count), str(turns)], capture_output=True, text=True,
                          env={**bench.softhca('mapped'), 'LD_LIBRARY_PATH': library}, check=False)
    if done.returncode:
        print(f'    {count} QPs: {done.stderr.strip()}')
        return None
    return {name: float(value) for name, value in re.findall(r'(\w+)=([\d.]+)', done.stdout)}


def floor(bench, count):
    """What the misses of a WRITE over one of so many QPs cost without a library (bench/cold_lines.c), by how many waits."""
    text = bench.single([bench.tool('bench_cold_lines'), str(bench.cpus[0]), str(count)])
    return {int(waits): float(more) for waits, more in re.findall(r'waits=(\d) .* more_ns=([\d.]+) ', text)}


def measure(bench, rounds, against=None):
    """Whether the bars are held, and the figures."""
    libraries = {'this': os.path.join(bench.build, 'lib'), **({'against': against} if against else {})}
    good, record = True, {}
    print(f'many QPs, least of {rounds} rounds; us of processor time, ns a WRITE of 8 bytes')
    for count in COUNTS:
        for name in [name for _ in range(rounds) for name in libraries]:
            figures = once(bench, libraries[name], count, 3)
            if figures:
                record.setdefault(f'{name} {count}', []).append(figures)
        for name in libraries:
            runs = record.get(f'{name} {count}')
            if not runs:
                good &= name != 'this'
                print(f'  {name}, {count} QPs: not measured')
                continue
            least = {key: min(run[key] for run in runs) for key in runs[0]}
            ratio = least['write_all_ns'] / least['write_2_ns']
            held = ratio <= COUNTS[count] and all(least[key] <= limit for key, limit in LIMITS.items())
            good &= held or name != 'this'
            print(f'  {name}, {count} QPs: create {report.figure(least["create_us"])}, connect {report.figure(least["connect_us"])}, destroy '
                  f'{report.figure(least["destroy_us"])} us (bar <= 8 each), {least["bytes"]:.0f} bytes (bar <= {LIMITS["bytes"]}); WRITE over 2 '
                  f'{least["write_2_ns"]:.0f}, over all {least["write_all_ns"]:.0f} ns: {ratio:.2f} x (bar <= {COUNTS[count]}): '
                  f'{"pass" if held else "FAIL"}', flush=True)
        more = floor(bench, count)
        runs = record.get(f'this {count}')
        if runs:
            two = min(run['write_2_ns'] for run in runs)
            print(f'  the misses of {count} QPs alone (bench_cold_lines): {", ".join(f"{ns:.0f} ns with {waits} waits" for waits, ns in more.items())}; '
                  f'a WRITE over two and these: {", ".join(f"{(two + ns) / two:.2f} x" for ns in more.values())}: for information', flush=True)
    print()
    return good, record
