#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Each #include "room/…" of src, tools and tests may only point to a room below (ARCHITECTURE.md, "Rooms").

Within a room that has folders, #include "room/folder/…" may only point to the folders that the second table names.
Also: every source file carries the SPDX line. Prints one line per offence; exit code 1 if there is one.
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPDX = "SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only"
# What stands outside the rooms may see every room: tests, measurements and the assertions of layouts look inside.
FREE = {"tests", "bench", "abi"}
SOURCES = (".c", ".h", ".py", ".sh", ".map", ".S")


def table(name):
    """A table of ARCHITECTURE.md: name → what it may include. The page is the only place that says so."""
    allowed = {}
    last = None
    for line in open(os.path.join(TOP, "ARCHITECTURE.md"), encoding="utf-8"):
        # The first line of an entry starts in column 0; what follows the arrow are the names, with remarks in
        # parentheses.
        entry = re.match(rf"^({name})  +\S", line)
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
    allowed = transitive(table("[a-z]+"))
    folders = table("[a-z]+/[a-z]+")
    if "base" not in allowed or "front" not in allowed or "engine/core" not in folders:
        print("check-arrows: the tables of rooms and folders in ARCHITECTURE.md were not understood")
        return 1
    with_folders = {entry.split("/")[0] for entry in folders}
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
        folder = "/".join(parts[1:-1]) if room in with_folders and parts[0] == "src" else None
        if folder and folder != room and folder not in folders:
            print(f"{name}: {folder} is not in the table of folders in ARCHITECTURE.md")
            offences += 1
        for number, line in enumerate(text.splitlines(), 1):
            include = re.match(r'\s*#\s*include\s+"([a-z0-9_]+)/(?:([a-z0-9_]+)/)?', line)
            if not include or include.group(1) not in allowed:
                continue
            target, target_folder = include.groups()
            if target != room and target not in allowed.get(room, set()):
                print(f"{name}:{number}: {room} may not include {target}/")
                offences += 1
            if (folder and target == room and target_folder and f"{target}/{target_folder}" != folder
                    and target_folder not in folders.get(folder, set())):
                print(f"{name}:{number}: {folder} may not include {target}/{target_folder}/")
                offences += 1
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
