# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A test is a function whose name begins with test_; it fails by raising, and skips by raising Skip(reason)."""

import inspect
import sys
import traceback


class Skip(Exception):
    pass


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}" if what else f"got {got!r}, wanted {wanted!r}")


def main(module):
    tests = [(name, function) for name, function in inspect.getmembers(module, inspect.isfunction)
             if name.startswith("test_")]
    tests.sort(key=lambda item: item[1].__code__.co_firstlineno)
    if not tests:
        sys.exit("no test of that name")
    failed = 0
    print(f"1..{len(tests)}")
    for number, (name, function) in enumerate(tests, 1):
        title = name[5:].replace("_", " ")
        try:
            function()
            print(f"ok {number} - {title}", flush=True)
        except Skip as reason:
            print(f"ok {number} - {title} # SKIP {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {number} - {title}")
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
    sys.exit(1 if failed else 0)
