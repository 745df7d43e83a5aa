#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Everything of the distribution that is linked to libibverbs or librdmacm finds all names in these libraries.

usage: test_loading.py LIB_DIRECTORY DISTRIBUTION_LIBDIR

ldd -r resolves data and functions as LD_BIND_NOW=1 does, without running anything: providers, vendors' libraries,
programs, and the modules of pyverbs (whose names of the interpreter are not looked at).
"""
import glob
import os
import re
import subprocess
import sys

OURS = (b"libibverbs.so.1", b"librdmacm.so.1")


def linked_files(libdir):
    patterns = [libdir + "/libibverbs/*.so", libdir + "/rsocket/*.so*", libdir + "/lib*.so.*",
                "/usr/bin/*", "/usr/sbin/*", "/usr/lib/python3/dist-packages/pyverbs/**/*.so"]
    files = {os.path.realpath(path) for pattern in patterns for path in glob.glob(pattern, recursive=True)}
    for path in sorted(files):
        if not os.path.isfile(path) or os.path.basename(path).startswith(("libibverbs.so", "librdmacm.so")):
            continue
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        dynamic = subprocess.run(["readelf", "-Wd", path], capture_output=True, check=False).stdout
        if any(b"(NEEDED)" in line and any(name in line for name in OURS) for line in dynamic.splitlines()):
            yield path


def main():
    directory, libdir = sys.argv[1:]
    environment = dict(os.environ, LD_LIBRARY_PATH=directory, LC_ALL="C")
    count = 0
    for path in linked_files(libdir):
        result = subprocess.run(["ldd", "-r", path], env=environment, capture_output=True, text=True, check=False)
        text = result.stdout + result.stderr
        wrong = re.findall(r".*(?:undefined symbol|not found|not defined).*(?:IBVERBS|RDMACM).*", text)
        if f"=> {directory}/lib" not in text:
            wrong.append("does not take the libraries from " + directory)
        count += 1
        print("not ok" if wrong else "ok", count, "-", path)
        for line in wrong:
            print("#", line.strip())
    print(f"1..{count}" if count else "1..0 # SKIP nothing here is linked to libibverbs")


if __name__ == "__main__":
    main()
