#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Makes abi/releases.txt: which release of rdma-core has which name in which version node.

usage: symbols-of-releases.py CLONE_OF_RDMA_CORE [RELEASE=REVISION ...] > abi/releases.txt

Reads the version scripts of each release from 22 on, by its tag (vN.0 or vN.1), or by the revision that is named.
"""
import re
import subprocess
import sys

OLDEST = 22
SCRIPTS = ("libibverbs/libibverbs.map.in", "librdmacm/librdmacm.map")
# Named by version scripts without a definition in the library: inline functions of the headers, and what was removed.
UNDEFINED = {"ibv_query_device_ex@IBVERBS_1.0", "rdma_get_local_addr@RDMACM_1.0", "rdma_get_peer_addr@RDMACM_1.0",
             "ibv_cmd_query_device@IBVERBS_PRIVATE_33", "ibv_cmd_query_device@IBVERBS_PRIVATE_34"}
DATA = {"verbs_allow_disassociate_destroy"}


def git(clone, *arguments):
    result = subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True, check=False)
    return result.stdout if result.returncode == 0 else None


def names_of(clone, revision):
    """-> {name@node}, each private node with the number that the release has for it"""
    cmake = git(clone, "show", f"{revision}:CMakeLists.txt")
    number = re.search(r'IBVERBS_PABI_VERSION "(\d+)"', cmake).group(1)
    names = set()
    for path in SCRIPTS:
        text = git(clone, "show", f"{revision}:{path}").replace("@IBVERBS_PABI_VERSION@", number)
        text = re.sub(r"/\*.*?\*/|#[^\n]*", "", text, flags=re.S)
        for node, body in re.findall(r"([\w.]+)\s*\{(.*?)\}", text, flags=re.S):
            body = re.sub(r"local\s*:.*", "", body, flags=re.S).replace("global:", "")
            names |= {f"{name.strip()}@{node}" for name in body.split(";") if name.strip()}
    return names


def order(symbol):
    name, node = symbol.split("@")
    library, private, major, minor = re.fullmatch(r"(\w+?)_(PRIVATE_)?(\d+)(?:\.(\d+))?", node).groups()
    return library, bool(private), int(major), int(minor or 0), name


def main():
    clone = sys.argv[1]
    named = dict(argument.split("=") for argument in sys.argv[2:])
    releases, present = [], {}
    release = OLDEST
    while True:
        candidates = [named[str(release)]] if str(release) in named else [f"v{release}.0", f"v{release}.1"]
        revision = next((r for r in candidates if git(clone, "rev-parse", "-q", "--verify", r + "^{commit}")), None)
        if not revision:
            break
        releases.append(release)
        for symbol in names_of(clone, revision):
            present.setdefault(symbol, []).append(release)
        release += 1
    print("# What the version scripts of rdma-core's libraries export: name@node, first and last release, kind.")
    print("# Made by scripts/symbols-of-releases.py; tests/abi/check_releases.py compares our libraries with it.")
    print(f"# releases {releases[0]}-{releases[-1]}")
    for symbol in sorted(present, key=order):
        first, last = present[symbol][0], present[symbol][-1]
        assert present[symbol] == list(range(first, last + 1)), symbol
        kind = "data" if symbol.split("@")[0] in DATA else "function"
        print(symbol, f"{first}-{last}", "undefined" if symbol in UNDEFINED else kind)


if __name__ == "__main__":
    main()
