#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""usage: plot-congestion.py [--table] FIGURES [SVG]

Draws what `sim_congestion figures` has printed into the file FIGURES: what share of the bottleneck 2 to 64 senders have
together, and how much of an equal part the poorest of them has. Writes SVG (default docs/congestion.svg), by gnuplot.
With --table it prints the same as a table of Markdown instead.
"""

import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    """{operation: {situation: {senders: (share, poorest)}}}, in the order of the file"""
    figures = {}
    with open(path) as f:
        for line in f:
            situation, operation, senders, share, poorest = line.split('\t')[:5]
            row = figures.setdefault(operation, {}).setdefault(situation, {})
            row[int(senders)] = int(share), int(poorest)
    return figures


def table(figures):
    senders = sorted(next(iter(next(iter(figures.values())).values())))
    out = ['| bottleneck | | ' + ' | '.join(map(str, senders)) + ' |', '|---' * (len(senders) + 2) + '|']
    for operation, situations in figures.items():
        for situation, row in situations.items():
            cells = ' | '.join(f'{share}, {poorest}' for share, poorest in (row[n] for n in senders))
            out.append(f'| {situation} | {operation} | {cells} |')
    return '\n'.join(out)


def plot(figures, path):
    out = ["set terminal svg size 1200,800 dynamic background rgb 'white' font 'sans,12'", f"set output '{path}'",
           'set multiplot layout 2,2', 'set grid', 'set logscale x 2', 'set xrange [1.8:70]', 'set yrange [0:105]',
           "set xlabel 'senders'", "set key bottom left samplen 2 font ',10'"]
    for number, (operation, situations) in enumerate(figures.items()):
        for i, row in enumerate(situations.values()):
            out.append(f'$d{number}_{i} << EOD')
            out += [f'{n} {share} {poorest}' for n, (share, poorest) in sorted(row.items())]
            out.append('EOD')
        for column, what in ((2, 'all together, % of the bottleneck'), (3, 'the poorest, % of an equal part')):
            out.append(f"set title '{operation}: {what}'")
            out.append('plot ' + ', '.join(
                f"$d{number}_{i} using 1:{column} with linespoints pt {i + 4} ps 0.6 title '{situation}'"
                for i, situation in enumerate(situations)))
    out.append('unset multiplot')
    subprocess.run(['gnuplot'], input='\n'.join(out) + '\n', text=True, check=True)


def main():
    words = [w for w in sys.argv[1:] if w != '--table']
    if not 1 <= len(words) <= 2 or words[0].startswith('-'):
        sys.exit(__doc__)
    figures = read(words[0])
    if '--table' in sys.argv:
        print(table(figures))
        return
    plot(figures, words[1] if len(words) > 1 else os.path.join(TOP, 'docs/congestion.svg'))


if __name__ == '__main__':
    main()
