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
import time

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


def softhca(*words, **more):
    return subprocess.Popen([SOFTHCA, *words], env=started.environment(), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            start_new_session=True, **more)


class Both:
    """Server and client, which say what is wrong into one pipe."""

    def __init__(self, program, *options):
        ours, theirs = os.pipe()
        self.stderr = os.fdopen(ours)
        self.processes = [softhca("run", *options, "--", program, stderr=theirs)]
        until = time.monotonic() + PATIENCE
        while "listening" not in softhca("ps", str(self.processes[0].pid), stderr=subprocess.DEVNULL).communicate()[0]:
            if self.processes[0].poll() is not None or time.monotonic() > until:
                os.close(theirs)
                self.end()
                raise AssertionError("the server does not listen: " + self.stderr.read())
        self.processes.append(softhca("run", *options, "--", program, "127.0.0.1", stderr=theirs))
        os.close(theirs)

    def end(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()


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
    both = Both(PROGRAM)
    said = [process.communicate(timeout=PATIENCE)[0].rstrip() for process in both.processes]
    tap.equal(([process.returncode for process in both.processes], both.stderr.read()), ([0, 0], ""))
    tap.equal(said, re.findall(r"^\$ build/softhca run -- build/examples/first-steps.*\n(.*)$", PAGE, re.MULTILINE))


def test_there_are_eight_mistakes():
    tap.equal([number for number, *_ in MISTAKES], list("12345678"))


def look(diff, line):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "broken")
        with open(path + ".c", "w", encoding="utf-8") as file:
            file.write(changed(diff))
        subprocess.run([*CC, "-o", path, path + ".c", "-lrdmacm", "-libverbs"], check=True)
        both = Both(path, "--all")
        timer = threading.Timer(PATIENCE, both.end)
        timer.start()
        said = []
        try:
            for text in both.stderr:
                said.append(text)
                if re.search("^" + pattern(line) + "$", text):
                    return
            raise AssertionError(f"{line!r} is not in {said!r}")
        finally:
            timer.cancel()
            both.end()


def add_tests():
    for number, title, diff, line in MISTAKES:
        def test(diff=diff, line=line):
            look(diff, line)
        globals()[f"test_{number}_" + re.sub(r"\W+", "_", title.lower())] = test


add_tests()

if __name__ == "__main__":
    started.alone_in_network()  # the port is always the same
    tap.main(sys.modules[__name__])
