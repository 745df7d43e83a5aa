#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""docs/first-steps.md: the program runs, and each change to it is answered as the page says.

usage: test_first_steps.py DIRECTORY PROGRAM SOFTHCA CC...
"""

import os
import re
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

DIRECTORY, PROGRAM, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:4])
CC = sys.argv[4:]
PATIENCE = 60
with open(os.path.join(DIRECTORY, "docs", "first-steps.md"), encoding="utf-8") as page:
    PAGE = page.read()
with open(os.path.join(DIRECTORY, "examples", "first-steps.c"), encoding="utf-8") as source:
    SOURCE = source.read()
MISTAKES = re.findall(r"^### (\d+)\. ([^\n]*)\n\n```diff\n(.*?)```\n\n```\n(softhca\[[^\n]*)\n```", PAGE, re.MULTILINE | re.DOTALL)


def run(program, *options):
    """In a network namespace of its own: the port is always the same."""
    return subprocess.Popen([*started.own_network(), SOFTHCA, "run", *options, "--", program], env=started.environment(), text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def pattern(line):
    """What is a number there may be another one."""
    return re.sub(r"(\\?\.)?(0x[0-9a-f]+|\d+(\\\.\d+)?)", r"(?:0x[0-9a-f]+|[\\d.]+)", re.escape(line)).replace("broken", r"[\w-]+")


def changed(diff):
    lines = diff.splitlines()
    before = "\n".join(line[1:] for line in lines if line[0] != "+")
    after = "\n".join(line[1:] for line in lines if line[0] != "-")
    tap.equal(SOURCE.count(before), 1, before)
    return SOURCE.replace(before, after)


def test_the_program():
    process = run(PROGRAM)
    out, err = process.communicate(timeout=PATIENCE)
    tap.equal((process.returncode, err), (0, ""))
    tap.equal(sorted(out.splitlines()), sorted(re.search(r"^\$ .*\n(.*\n.*)\n```", PAGE, re.MULTILINE).group(1).splitlines()))


def test_there_are_eight_mistakes():
    tap.equal([number for number, *_ in MISTAKES], list("12345678"))


def end(process):
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass


def look(diff, line):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "broken")
        with open(path + ".c", "w", encoding="utf-8") as file:
            file.write(changed(diff))
        subprocess.run([*CC, "-o", path, path + ".c", "-lrdmacm", "-libverbs"], check=True)
        process = run(path, "--all")
        timer = threading.Timer(PATIENCE, end, [process])
        timer.start()
        said = []
        try:
            for text in process.stderr:
                said.append(text)
                if re.search("^" + pattern(line) + "$", text):
                    return
            raise AssertionError(f"{line!r} is not in {said!r}")
        finally:
            timer.cancel()
            end(process)
            process.communicate()


def add_tests():
    for number, title, diff, line in MISTAKES:
        def test(diff=diff, line=line):
            look(diff, line)
        globals()[f"test_{number}_" + re.sub(r"\W+", "_", title.lower())] = test


add_tests()

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
