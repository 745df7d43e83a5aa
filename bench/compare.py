#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""usage: compare.py [--op write|read|send|self-write] [--rounds N] [--slices N] [--messages N] [--cpu N] DIRECTORY...

Time of an 8-byte message with the libibverbs.so.1 of each directory: a slice of messages with each in turn, on one
processor, many times. The least is what the code takes: what the machine adds to a slice is never negative. In each
round the processes are started anew, because where their memory lies makes up to 3 % of the time."""
import argparse
import os
import statistics
import subprocess
import sys

def start(options, directory):
    return subprocess.Popen([options.program, options.op, str(options.messages), options.cpu],
                            env=dict(os.environ, LD_LIBRARY_PATH=directory), text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def measure(options):
    """The least time of each, of one set of processes."""
    children = [start(options, directory) for directory in options.directory]
    least = [float("inf")] * len(children)
    for turn in range(options.slices):
        order = list(range(len(children)))
        for i in order if turn % 2 else reversed(order):
            children[i].stdin.write("\n")
            children[i].stdin.flush()
            least[i] = min(least[i], float(children[i].stdout.readline()))
    for child in children:
        child.stdin.close()
        child.wait()
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--op", default="write")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slices", type=int, default=100)
    parser.add_argument("--messages", type=int, default=8000)
    parser.add_argument("--cpu", default="0")
    parser.add_argument("--program", default=os.path.join("build", "bench", "verbs_slices"))
    parser.add_argument("directory", nargs="+")
    options = parser.parse_args()
    rounds = [measure(options) for _ in range(options.rounds)]
    first = None
    for i, directory in enumerate(options.directory):
        times = [least[i] for least in rounds]
        first = first or times
        print(f"{directory}: least {min(times):.2f} ns, middle of rounds {statistics.median(times):.2f} ns; "
              f"to the first: {min(times) / min(first):.4f}, "
              f"{statistics.median(times) / statistics.median(first):.4f}")


if __name__ == "__main__":
    sys.exit(main())
