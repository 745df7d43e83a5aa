# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Tables for a terminal, curves for a page."""

import shutil
import subprocess


def size_name(size):
    for unit, shift in (('GiB', 30), ('MiB', 20), ('KiB', 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f'{size >> shift} {unit}'
    return f'{size} B'


def figure(value):
    if value is None:
        return '-'
    return f'{value:.0f}' if value >= 100 else f'{value:.1f}' if value >= 10 else f'{value:.2f}' if value >= 1 else f'{value:.3f}'


def table(title, rows, columns, value):
    """value(row, column) → number or None; a column without any number is left out."""
    columns = [c for c in columns if any(value(r, c) is not None for r in rows)]
    heads = [c.split(' ') for c in columns]
    deep = max((len(h) for h in heads), default=0)
    heads = [[''] * (deep - len(h)) + h for h in heads]
    cells = [[size_name(r), *(figure(value(r, c)) for c in columns)] for r in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns) + 1)]
    for i, h in enumerate(heads, 1):
        widths[i] = max(widths[i], *map(len, h))
    lines = [title]
    for level in range(deep):
        lines.append(' ' * widths[0] + ''.join('  ' + h[level].rjust(w) for h, w in zip(heads, widths[1:])))
    for row in cells:
        lines.append(row[0].rjust(widths[0]) + ''.join('  ' + c.rjust(w) for c, w in zip(row[1:], widths[1:])))
    return '\n'.join(lines) + '\n'


def svg(path, sizes, panels, bars):
    """panels: (title, unit, {name: {size: value}}); bars: (label, value). False: gnuplot is not installed."""
    if not shutil.which('gnuplot'):
        return False
    out = [f"set terminal svg size 1500,1050 dynamic background rgb 'white' font 'sans,11'", f"set output '{path}'",
           'set multiplot layout 2,2', 'set grid', 'set logscale xy', "set key outside right top samplen 2",
           'set xtics (' + ', '.join(f"'{size_name(s)}' {s}" for s in sizes[::2]) + ')', "set xlabel 'message size'"]
    for number, (title, unit, curves) in enumerate(panels):
        curves = {n: c for n, c in curves.items() if c}
        if not curves:
            continue
        for i, (name, curve) in enumerate(curves.items()):
            out.append(f'$p{number}_{i} << EOD')
            out += [f'{s} {v}' for s, v in sorted(curve.items())]
            out.append('EOD')
        out += [f"set title '{title}'", f"set ylabel '{unit}'"]
        out.append('plot ' + ', '.join(f"$p{number}_{i} using 1:2 with linespoints pt {i % 12 + 1} ps 0.6 title '{name}'"
                                       for i, name in enumerate(curves)))
    if bars:
        out.append('$bars << EOD')
        out += [f'{i} {value / 1e6} "{label}"' for i, (label, value) in enumerate(bars)]
        out += ['EOD', 'unset logscale', 'unset key', 'set yrange [0:*]', 'set bmargin 9', "set title '8-byte messages'",
                "set ylabel 'million messages/s'", "set xlabel ''", 'set style fill solid 0.5', 'set boxwidth 0.7',
                'set xtics rotate by 35 right',
                'plot $bars using 1:2:xtic(3) with boxes']
    out.append('unset multiplot')
    subprocess.run(['gnuplot'], input='\n'.join(out) + '\n', text=True, check=True)
    return True
