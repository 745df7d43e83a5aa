#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca capture, top and fault are killed, and stopped, at many moments: the process that they look at goes on, and is
afterwards as it was: its descriptors, mappings and threads, the path of its QP, and no fault is loaded.

usage: test_ends.py SOFTHCA
In a network namespace made here. Moments are fractions of the time that the tool takes by itself, or of its first half second.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import test_capture as base  # also says where tap and started are
import tap
from started import alone_in_network, environment

MOMENTS = 8
FAULT = "call=ibv_reg_mr errno=ENOMEM"


def link_of(pid, fd):
    """None: it was closed meanwhile."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except FileNotFoundError:
        return None


def state_of(pid):
    """What a tool might leave behind."""
    links = [link for fd in os.listdir(f"/proc/{pid}/fd") if (link := link_of(pid, fd))]
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        # What is not a thread's or the allocator's, which come and go.
        mapped = sorted(line.split(maxsplit=5)[5].strip() for line in maps if "memfd:" in line or ".so" in line)
    qp = base.shown_qp(pid)
    return {"descriptors": sorted(re.sub(r"\d+", "N", link) for link in links), "mappings": mapped,
            "threads": len(os.listdir(f"/proc/{pid}/task")), "path": qp["path"], "why": qp.get("not_mapped_because"),
            "faults": base.run(base.SOFTHCA, "fault", str(pid)).stdout}


def becomes(pid, wanted, what):
    deadline = time.monotonic() + base.PATIENCE
    while state_of(pid) != wanted:
        assert time.monotonic() < deadline, (what, {key: (value, wanted[key]) for key, value in state_of(pid).items() if value != wanted[key]})
        time.sleep(0.02)


class Tool:
    """In a terminal, as top wants one."""

    def __init__(self, words):
        self.terminal, its = pty.openpty()
        self.process = subprocess.Popen([base.SOFTHCA, *words], env=environment(TERM="xterm"), stdin=its, stdout=its, stderr=its)
        os.close(its)
        os.set_blocking(self.terminal, False)

    def pass_time(self, seconds):
        """Reads what it writes, so that it does not wait for us."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                os.read(self.terminal, 1 << 16)
            except (BlockingIOError, OSError):
                time.sleep(0.001)

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


def tools(pid):
    return {"capture": ["capture", "-p", str(pid), "-w", base.FILE], "top": ["top"], "fault": ["fault", str(pid), FAULT],
            "clear": ["fault", str(pid), "--clear"]}


def at_many_moments(stop):
    with base.direct_pair() as pair:
        pid = pair.client.pid
        base.grows(lambda: base.executed_by_requester(pid), "no direct execution at first")
        before = state_of(pid)
        tap.equal(before["faults"], "")
        for name, words in tools(pid).items():
            for moment in range(MOMENTS):
                tool = Tool(words)
                tool.pass_time(0.5 * moment / MOMENTS)
                if stop and tool.process.poll() is None:
                    os.kill(tool.process.pid, signal.SIGSTOP)
                    base.grows(lambda: base.counters(pid), f"the program waits for {name}")
                tool.end()
                base.grows(lambda: base.counters(pid), f"the program stands still after {name}")
                if name == "fault":  # it was loaded as a whole, or not at all
                    loaded = base.run(base.SOFTHCA, "fault", str(pid), "--clear").stdout
                    assert loaded in ("", f"'{FAULT}': applied 0 times; matched 0 times\n"), loaded
                becomes(pid, before, (name, moment))
        base.grows(lambda: base.executed_by_requester(pid), "no direct execution afterwards")
        assert pair.client.poll() is None and pair.server.poll() is None


def test_a_tool_that_is_killed_at_any_moment_leaves_the_process_as_it_was():
    at_many_moments(stop=False)


def test_a_tool_that_is_stopped_at_any_moment_is_not_waited_for():
    at_many_moments(stop=True)


if __name__ == "__main__":
    alone_in_network()
    tap.main(sys.modules[__name__])
