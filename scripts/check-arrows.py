#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Each #include "room/…" of src, tools and tests may only point to a room below (ARCHITECTURE.md, "Rooms").

Also: every source file carries the SPDX line. Prints one line per offence; exit code 1 if there is one.
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPDX = "SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only"
# What stands outside the rooms may see every room: tests and measurements look inside.
FREE = {"tests", "bench"}
SOURCES = (".c", ".h", ".py", ".sh", ".map", ".S")


def rooms():
    """The table of ARCHITECTURE.md: name → rooms it may include. The page is the only place that says so."""
    allowed = {}
    last = None
    for line in open(os.path.join(TOP, "ARCHITECTURE.md"), encoding="utf-8"):
        # The first line of an entry starts in column 0; what follows the arrow are the rooms below, with remarks
        # in parentheses.
        entry = re.match(r"^([a-z]+)  +\S", line)
        if entry:
            last = entry.group(1)
        if last and "→" in line and (entry or line.startswith("  ")):
            below = re.sub(r"\([^)]*\)", "", line.rsplit("→", 1)[1])
            allowed[last] = {name.strip() for name in below.split(",")} - {"nothing"}
            last = None
    return allowed


def transitive(allowed):
    """A room below may itself show types of the rooms below it."""
    changed = True
    while changed:
        changed = False
        for name, below in allowed.items():
            more = set().union(*(allowed.get(room, set()) for room in below)) - below if below else set()
            if more:
                below |= more
                changed = True
    return allowed


def main():
    allowed = transitive(rooms())
    if "base" not in allowed or "front" not in allowed:
        print("check-arrows: the table of rooms in ARCHITECTURE.md was not understood")
        return 1
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           capture_output=True, text=True)
    if files.returncode == 0:
        names = [name for name in files.stdout.split("\0") if name]
    else:
        names = [os.path.relpath(os.path.join(folder, name), TOP)
                 for folder, _, entries in os.walk(TOP) for name in entries
                 if "/build" not in folder and "/.git" not in folder]
    offences = 0
    for name in sorted(names):
        path = os.path.join(TOP, name)
        if not name.endswith(SOURCES) or not os.path.exists(path):
            continue
        text = open(path, encoding="utf-8", errors="replace").read()
        if text and SPDX not in text[:400]:
            print(f"{name}: no SPDX line")
            offences += 1
        parts = name.split("/")
        room = parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]
        if room in FREE or not name.endswith((".c", ".h")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            include = re.match(r'\s*#\s*include\s+"([a-z0-9_]+)/', line)
            if not include or include.group(1) not in allowed:
                continue
            target = include.group(1)
            if target != room and target not in allowed.get(room, set()):
                print(f"{name}:{number}: {room} may not include {target}/")
                offences += 1
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
