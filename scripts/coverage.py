#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Which part of src/ the tests of `make check` execute, in lines, branches and functions; needs llvm-14.

usage: coverage.py [--matrix] [--files] [TEST...]

Without names: all tests of the gcc stage; --matrix: also those that only make check-long runs, because another path of the
same topic runs in make check. --files: the figures of each file. The counters are mapped from a file while a program runs,
so that processes that are killed count, too. Tests that look at the build itself (abi) fail here: their result is of no
interest.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(TOP, "build-coverage")
KINDS = ("lines", "branches", "functions")


def run(*command, **kwargs):
    return subprocess.run(command, cwd=TOP, stdin=subprocess.DEVNULL, check=True, **kwargs)


def build():
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        run("meson", "setup", BUILD, "-Dc_link_args=-fprofile-instr-generate",
            "-Dc_args=-fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation=true",
            env=dict(os.environ, CC="clang"))
    run("ninja", "-C", BUILD)


def is_ours(path):
    """Whether it is a program or a library, and not an object file."""
    with open(path, "rb") as file:
        return not path.endswith(".o") and file.read(4) == b"\x7fELF"


def measure(profiles):
    merged = os.path.join(profiles, "all.profdata")
    run("llvm-profdata-14", "merge", "--failure-mode=all", "-o", merged, *glob.glob(profiles + "/*.profraw"))
    binaries = [path for path in glob.glob(BUILD + "/**", recursive=True)
                if os.path.isfile(path) and os.access(path, os.X_OK) and not os.path.islink(path) and is_ours(path)]
    objects = [word for path in binaries[1:] for word in ("--object", path)]
    done = run("llvm-cov-14", "export", "--summary-only", "-instr-profile", merged, binaries[0], *objects,
               stdout=subprocess.PIPE)
    files = json.loads(done.stdout)["data"][0]["files"]
    root = os.path.join(TOP, "src", "")
    return {os.path.relpath(path, TOP): file["summary"] for file in files
            for path in [os.path.realpath(file["filename"])] if path.startswith(root)}


def line_of(name, summaries):
    words = []
    for kind in KINDS:
        covered, count = (sum(summary[kind][part] for summary in summaries) for part in ("covered", "count"))
        words.append(f"{kind} {covered} of {count} ({100 * covered / max(1, count):.1f} %)")
    return f"{name}: {', '.join(words)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    build()
    os.umask(0)  # tests change their user
    with tempfile.TemporaryDirectory(prefix="softhca-coverage-") as profiles:
        os.chmod(profiles, 0o777)
        without = ["--no-suite", "long"] + ([] if options.matrix else ["--no-suite", "matrix"])
        subprocess.run(["meson", "test", "-C", BUILD, "--no-rebuild", "--timeout-multiplier", "10", *without, *options.tests],
                       cwd=TOP, stdin=subprocess.DEVNULL, stdout=sys.stderr,
                       env=dict(os.environ, LLVM_PROFILE_FILE=os.path.join(profiles, "%m%c.profraw")))
        summaries = measure(profiles)
    if options.files:
        for name in sorted(summaries):
            print(line_of(name, [summaries[name]]))
    print(line_of("src", summaries.values()))


if __name__ == "__main__":
    main()
