#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Each descriptor that src opens goes through fd_lift() (base/fd.h), itself or by fd_own(), keeper_keep() or sys_*().

Prints one line per offence; exit code 1 if there is one.
"""

import glob
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPENS = re.compile(r"(?<!->)\b(?:(?:open|openat|creat|socket|socketpair|accept|accept4|eventfd|epoll_create1?|timerfd_create|memfd_create|"
                   r"signalfd|inotify_init1?|pipe2?|dup2?|dup3|fopen|fdopen|opendir|mkstemp)\s*\(|"
                   r"F_DUPFD\w*|SYS_(?:openat2?|socket|socketpair|accept4?|eventfd2|epoll_create1|timerfd_create|memfd_create|"
                   r"userfaultfd|pidfd_open|pidfd_getfd|dup3?|pipe2)\b)")
LIFTS = re.compile(r"\b(fd_lift|fd_own|keeper_keep|open_source)\s*\(|\bpair\[0\] = fd_own\(pair\[0\]\);")
# What is not the program's table of descriptors, or is the lifting itself.
FREE = {"src/base/fd.c", "src/mapped/keeper.c", "src/mapped/files.c"}


def offences(name):
    text = open(os.path.join(TOP, name), encoding="utf-8").read()
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)
    for found in OPENS.finditer(text):
        begin = max(text.rfind(mark, 0, found.start()) for mark in ";{}")
        end = text.find(";", found.end())
        # A pair, and what is one of several ways to get a descriptor, are lifted in the statements after it.
        later = end + 250 if found.group().startswith(("socketpair", "F_DUPFD")) else end
        if not LIFTS.search(text, begin, later):
            yield text.count("\n", 0, found.start()) + 1, found.group().rstrip("( ")


def main():
    bad = 0
    for path in sorted(glob.glob(os.path.join(TOP, "src", "**", "*.c"), recursive=True)):
        name = os.path.relpath(path, TOP)
        if name in FREE:
            continue
        for line, call in offences(name):
            print(f"{name}:{line}: what {call} opens does not go through fd_lift()")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
