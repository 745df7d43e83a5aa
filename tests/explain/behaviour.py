#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A topic of tests/behaviour with explanations on: it passes as without, and each explanation is a line of JSON.

usage: behaviour.py PROGRAM
"""

import json
import os
import re
import subprocess
import sys
import tempfile

# What a process says of itself.
KINDS = {"busy", "blocked", "resumed", "in_use", "losses", "overrun", "leaks", "fault", "refused", "drops", "misuse", "hang", "injected"}


def fault_of(line):
    """Of a line that begins as an explanation does; None: none."""
    try:
        told = json.loads(line)
    except ValueError as error:
        return str(error)
    if told.get("explanation") not in KINDS:
        return "no explanation of a known kind"
    if not told.get("cause") or not isinstance(told.get("pid"), int):
        return "nothing about the cause, or the process"
    return None


def main():
    with tempfile.NamedTemporaryFile(prefix="softhca-explained-", mode="r", errors="surrogateescape") as printed:
        os.chmod(printed.name, 0o666)  # tests change their user
        env = dict(os.environ, SOFTHCA_EXPLAIN="json", SOFTHCA_TEST_OUTPUT=printed.name)
        done = subprocess.run([sys.argv[1]], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        plan = re.search(r"^1\.\.(\d+)", done.stdout, re.M)
        count = int(plan.group(1)) if plan else 0
        if count == 0:
            sys.stdout.write(done.stdout + done.stderr)
            sys.exit(done.returncode)
        sys.stdout.write(done.stdout.replace(plan.group(0), f"1..{count + 1}", 1))
        # A process that is killed may leave half a line, which the next one continues.
        lines = [line for line in printed if line.startswith('{"')]
        faults = [(fault, line) for line in lines for fault in [fault_of(line)] if fault]
        print(f"{'not ' if faults else ''}ok {count + 1} - each explanation is a line of JSON")
        print(f"# {len(lines)} explanations")
        for fault, line in faults[:5]:
            print(f"# {fault}: {line.rstrip()}")
    sys.stderr.write(done.stderr)
    sys.exit(1 if faults else done.returncode)


main()
