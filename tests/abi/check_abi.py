#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Compares a library's dynamic symbols with the list in abi/, and the list with the distribution's library.

usage: check_abi.py LIBRARY SYMBOL_LIST MAP [DISTRIBUTION_LIBRARY]

Checks: every name@@node and its type, and the name@node of each further private node, no further exports, NEEDED is libc only (librdmacm: and libibverbs, of which it
takes one private name), no symbol newer than GLIBC_2.34 and none of those in NOT_CALLED, the SONAME, no constructors, a stack that is not
executable.
"""
import os
import re
import subprocess
import sys

NEWEST_GLIBC = (2, 34)
DEBIAN_12_GLIBC = (2, 36)
# Threads and dlsym() are in libraries of their own before glibc 2.34.
ALLOWED_NEEDED = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
# librspreload of rdma-core 61 and newer makes repoll_*() of the program's epoll_*(), and would of ours; glibc 2.28 has no
# pthread_cond_clockwait().
NOT_CALLED = re.compile(r"epoll_\w+|pthread_cond_clockwait")
# What librdmacm takes of libibverbs' private names.
RDMACM_TAKES = "softhca_communication@SOFTHCA_PRIVATE_4"

failures = []


def check(condition, text):
    if not condition:
        failures.append(text)


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


def dynamic_symbols(library):
    """-> (defined {"name@@node": type}, hidden twins {"name@node": type}, undefined names)"""
    defined, hidden, undefined = {}, {}, []
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        kind, section, name = fields[3], fields[6], fields[7]
        if kind == "SECTION":
            continue  # of the linker for aarch64, without a name of their own
        if section == "UND":
            undefined.append(name)
        elif section == "ABS" and kind == "OBJECT":
            continue  # the version nodes themselves, with some linkers
        elif "@@" in name:
            defined[name] = kind
        else:
            hidden[name] = kind
    return defined, hidden, undefined


def listed_symbols(path, nodes):
    """-> (defaults {"name@@node": type}, twins in other private nodes {"name@node": type})"""
    symbols, twins = {}, {}
    for line in open(path):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        symbols[fields[0]] = fields[1]
        if len(fields) > 2:
            name, default = fields[0].split("@@")
            first, last = map(int, fields[2].split("-"))
            for node in nodes:
                number = re.fullmatch(r"IBVERBS_PRIVATE_(\d+)", node)
                if number and first <= int(number.group(1)) <= last and node != default:
                    twins[f"{name}@{node}"] = fields[1]
    return symbols, twins


def mapped_names(path):
    """-> (every name@@node, every node)"""
    text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
    names, nodes = set(), []
    for node, body in re.findall(r"(\w[\w.]*) \{(.*?)\}", text, flags=re.S):
        body = body.split("local:")[0].replace("global:", "")
        names |= {f"{name.strip()}@@{node}" for name in body.split(";") if name.strip()}
        nodes.append(node)
    return names, nodes


def compare(what, have, want):
    for name in sorted(want.keys() - have.keys()):
        failures.append(f"{what}: {name} is missing")
    for name in sorted(have.keys() - want.keys()):
        failures.append(f"{what}: {name} is too much")
    for name in sorted(have.keys() & want.keys()):
        check(have[name] == want[name], f"{what}: {name} is {have[name]}, not {want[name]}")


def main():
    library, symbol_list, version_map = sys.argv[1:4]
    mapped, nodes = mapped_names(version_map)
    listed, twins = listed_symbols(symbol_list, nodes)
    defined, hidden, undefined = dynamic_symbols(library)
    compare("library against list", defined, listed)
    compare("library against list", hidden, twins)
    check(mapped == listed.keys(), "version script and list differ: " + " ".join(sorted(mapped ^ listed.keys())))

    dynamic = readelf("-d", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    allowed = ALLOWED_NEEDED | {n for n in needed if n.startswith("ld-linux")}
    private = {name for name in undefined if "@SOFTHCA_" in name}
    if library.rsplit("/", 1)[-1].startswith("librdmacm"):
        allowed.add("libibverbs.so.1")
        check(private == {RDMACM_TAKES}, f"takes {sorted(private)} of libibverbs")
    check(needed <= allowed, f"NEEDED has {sorted(needed)}")
    for name in undefined:
        check(not NOT_CALLED.fullmatch(name.split("@")[0]), f"calls {name}")
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    check(soname == [library.rsplit("/", 1)[-1]], f"SONAME is {soname}")
    check(re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", dynamic), "not bound at load time")
    check(re.search(r"\(FLAGS_1\).*NODELETE", dynamic), "can be unloaded")
    # What is built with a newer libc than Debian 12's is for that distribution.
    libc = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
    for version in re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("-V", library)) if libc <= DEBIAN_12_GLIBC else []:
        check(tuple(map(int, version)) <= NEWEST_GLIBC, "needs GLIBC_" + ".".join(version))
    check(not re.search(r"GNU_STACK.*RWE", readelf("-l", library)), "executable stack")
    size = re.search(r"\(INIT_ARRAYSZ\)\s+(\d+)", dynamic)
    # The compiler's own: in each library, and for aarch64 those that ask for its atomic instructions and its matrices (gcc 14).
    known = 24 if "AArch64" in readelf("-h", library) else 8
    check(not size or int(size.group(1)) <= known, "has constructors")

    if len(sys.argv) > 4:
        # We have the names of older and newer releases, too.
        theirs, _, _ = dynamic_symbols(sys.argv[4])
        ours = {**{name.replace("@@", "@"): kind for name, kind in listed.items()}, **twins}
        for name, kind in sorted(theirs.items()):
            check(ours.get(name.replace("@@", "@")) == kind, f"the distribution's {name} {kind} is not listed")
        note = f", {len(theirs)} of them the distribution's"
    else:
        note = "; the distribution's library is not here to compare with"
    for failure in failures:
        print("not ok -", failure)
    if not failures:
        print(f"ok - {len(listed) + len(twins)} names{note}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
