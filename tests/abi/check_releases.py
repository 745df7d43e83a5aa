#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Our libraries export what those of each release of rdma-core do.

usage: check_releases.py RELEASES LIBRARY...

RELEASES is abi/releases.txt. A program does not load where a node is missing that it names, even if it needs no symbol
of it. A reference without a version, as of a program that was linked with a stub, binds to the default node: for the
functions of 2006 that is 1.1.
"""
import re
import subprocess
import sys

# The second set of functions in IBVERBS_1.0 has the layouts of 2006 (libibverbs 1.0), which no program of today was built with.
NODE_OF_2006 = "IBVERBS_1.0"
# Registers a provider of 2006.
LEFT_OUT = {"ibv_register_driver@IBVERBS_1.1"}


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


def exports_of(library):
    """-> ({name@node: kind}, {name: default node}, nodes)"""
    exports, defaults = {}, {}
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit() or fields[6] in ("UND", "ABS") or "@" not in fields[7]:
            continue
        name, node = re.split("@+", fields[7])
        exports[f"{name}@{node}"] = {"FUNC": "function", "OBJECT": "data"}[fields[3]]
        if "@@" in fields[7]:
            defaults[name] = node
    nodes = set(re.findall(r"Name: ((?:IBVERBS|RDMACM)_\S+)", readelf("-V", library).split(".gnu.version_r")[0]))
    return exports, defaults, nodes


def main():
    rows, releases = [], None
    for line in open(sys.argv[1]):
        span = re.match(r"# releases (\d+)-(\d+)", line)
        if span:
            releases = range(int(span.group(1)), int(span.group(2)) + 1)
        elif not line.startswith("#"):
            symbol, span, kind = line.split()
            rows.append((symbol, *map(int, span.split("-")), kind))
    exports, defaults, nodes = {}, {}, set()
    for library in sys.argv[2:]:
        for whole, part in zip((exports, defaults), exports_of(library)):
            whole.update(part)
        nodes |= exports_of(library)[2]

    in_1_1 = {symbol.split("@")[0] for symbol, *_ in rows if symbol.endswith("@IBVERBS_1.1")}
    print(f"1..{len(releases) + 1}")
    for count, release in enumerate(releases, 1):
        wrong, names = [], 0
        for symbol, first, last, kind in rows:
            name, node = symbol.split("@")
            if not first <= release <= last:
                continue
            if node not in nodes:
                wrong.append(f"the node {node} is missing")
            if kind == "undefined" or symbol in LEFT_OUT or (node == NODE_OF_2006 and name in in_1_1):
                continue
            names += 1
            if exports.get(symbol) != kind:
                wrong.append(f"{symbol} is {exports.get(symbol, 'missing')}")
        print("not ok" if wrong else "ok", count, f"- {names} names of rdma-core {release}")
        for line in sorted(set(wrong)):
            print("#", line)
    wrong = [f"{name} binds to {defaults.get(name)}" for name in sorted(in_1_1)
             if name + "@IBVERBS_1.1" not in LEFT_OUT and defaults.get(name) != "IBVERBS_1.1"]
    print("not ok" if wrong else "ok", len(releases) + 1, "- references without a version bind to IBVERBS_1.1")
    for line in wrong:
        print("#", line)


if __name__ == "__main__":
    main()
