#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Each promise in the table of SECURITY.md names tests that exist.

usage: promises.py SECURITY.md BUILD
"""

import fnmatch
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import tap  # noqa: E402

PAGE, BUILD = sys.argv[1:3]


def promises():
    """Yields the last two columns of each row: the promise, and who tests it."""
    for line in open(PAGE, encoding="utf-8"):
        row = re.fullmatch(r"\| (.*) \| ([^|]*) \|\n", line)
        if row and row.group(1) != "promise":
            yield row.groups()


def test_each_promise_has_its_tests():
    listing = subprocess.run(["meson", "introspect", "--tests", BUILD], capture_output=True, text=True, check=True)
    names = [test["name"] for test in json.loads(listing.stdout)]
    rows = list(promises())
    assert len(rows) > 10, rows
    for promise, tests in rows:
        patterns = re.findall(r"`([^`]*)`", tests)
        assert patterns or tests.startswith("none: "), promise
        for pattern in patterns:
            assert fnmatch.filter(names, pattern), f"no test {pattern}: {promise}"


if __name__ == "__main__":
    tap.main(sys.modules[__name__])
