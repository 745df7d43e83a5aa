#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""usage: tmux capture-pane -e -p -t SESSION | picture.py > PICTURE.svg

A terminal's screen as SVG: the text that tmux has captured, with bold, dim, reverse and the eight colours."""

import html
import re
import sys

COLOURS = ["#2e3436", "#cc0000", "#4e9a06", "#c4a000", "#3465a4", "#75507b", "#06989a", "#d3d7cf"]
TEXT, GROUND = "#d3d7cf", "#1c1f20"
WIDTH, HEIGHT = 8.43, 18


class Style:
    def __init__(self):
        self.bold = self.dim = self.reverse = False
        self.text = self.ground = None

    def apply(self, codes):
        for code in [int(part or 0) for part in codes.split(";")]:
            if code == 0:
                self.__init__()
            elif code == 1:
                self.bold = True
            elif code == 2:
                self.dim = True
            elif code == 22:
                self.bold = self.dim = False
            elif code in (7, 27):
                self.reverse = code == 7
            elif 30 <= code <= 37:
                self.text = COLOURS[code - 30]
            elif code == 39:
                self.text = None
            elif 40 <= code <= 47:
                self.ground = COLOURS[code - 40]
            elif code == 49:
                self.ground = None

    def colours(self):
        text, ground = self.text or TEXT, self.ground
        if self.reverse:
            text, ground = ground or GROUND, self.text or TEXT
        return text, ground


def runs(line, style):
    """(column, text, colours, bold, dim) of each piece of a line."""
    column = 0
    for part in re.split(r"(\x1b\[[0-9;]*m|\x1b[()].|[\x0e\x0f])", line):
        found = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if found:
            style.apply(found[1])
        elif part and part[0] not in "\x1b\x0e\x0f":
            yield column, part, style.colours(), style.bold, style.dim
            column += len(part)


def main():
    lines = sys.stdin.read().rstrip("\n").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;]*m|\x1b[()].|[\x0e\x0f]", "", line) for line in lines]
    columns = max(len(line) for line in plain)
    width, height = columns * WIDTH + 16, len(lines) * HEIGHT + 16
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
          f'font-family="DejaVu Sans Mono, monospace" font-size="14">')
    print(f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>')
    style = Style()
    for row, line in enumerate(lines):
        for column, text, (colour, ground), bold, dim in runs(line, style):
            x, y = 8 + column * WIDTH, 8 + row * HEIGHT
            if ground:
                print(f'<rect x="{x:.1f}" y="{y}" width="{len(text) * WIDTH:.1f}" height="{HEIGHT}" fill="{ground}"/>')
            if text.strip():
                attributes = (' font-weight="bold"' if bold else "") + (' opacity="0.6"' if dim else "")
                print(f'<text x="{x:.1f}" y="{y + 14}" textLength="{len(text) * WIDTH:.1f}" xml:space="preserve" '
                      f'fill="{colour}"{attributes}>{html.escape(text)}</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
