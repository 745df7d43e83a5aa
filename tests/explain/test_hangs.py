#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What nothing under way will end: said on stderr by the program itself, and from outside, on each way to reach a peer.

usage: test_hangs.py HANGS SOFTHCA [PATH...]
"""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

HANGS, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 120
PATHS = {
    "ring": {"SOFTHCA_LOCAL": "ring"},
    "cma": {"SOFTHCA_LOCAL": "cma"},
    "mapped": {"SOFTHCA_LOCAL": "mapped"},
    "wire": {"SOFTHCA_PATH": "wire"},
}


class Hang(started.Waiting):
    def __init__(self, name, path, form="json"):
        command = started.own_network() if path == "wire" else []
        wanted = {"SOFTHCA_EXPLAIN": form} if form else {}
        super().__init__([*command, HANGS, name], started.environment(LIBRARY, **PATHS[path], **wanted))

    @property
    def peer(self):
        return int(self.words[0], 16)

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()

    def told(self):
        """The next explanation of a hang on stderr; waits for it."""
        while True:
            line = self.process.stderr.readline()
            assert line, "it has ended"
            one = json.loads(line)
            if one["explanation"] == "hang" and one["pid"] == self.pid:
                return one


def why(pid, *what):
    result = subprocess.run([SOFTHCA, "why", str(pid), *what], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            timeout=PATIENCE)
    return result.stdout + result.stderr


def matches(pattern, text):
    if not re.search(pattern, text, re.MULTILINE):
        raise AssertionError(f"{text!r} does not match {pattern!r}")


def eventually(pattern, pid, *what):
    """What is looked at moves: a request is repeated, a completion arrives."""
    until = time.monotonic() + PATIENCE
    while True:
        text = why(pid, *what)
        if re.search(pattern, text, re.MULTILINE):
            return
        if time.monotonic() > until:
            matches(pattern, text)


STOPPED = (r"^QP 0x[0-9a-f]{6}: 2 outstanding sends, the oldest for [\d.]+ m?s: sent, waiting for the acknowledgement of QP "
           r"0x[0-9a-f]{6} of process \d+, which is stopped")

# The first line of what is said of the process; and, where there is one, of its peer.
CAUSES = {
    "lost-wake-up": (r"^CQ 0 has 1 unpolled completion, and no completion event will be raised for it: it was there before ibv_req_notify_cq\(\), which "
                     r"raises events for later ones only \(lost wake-up\)$", None),
    "notify-once": (r"^CQ 0 has 1 unpolled completion, and no completion event will be raised for it: ibv_req_notify_cq\(\) was not called again after "
                    r"the last event$", None),
    "notify-never": (r"^CQ 0 has 1 unpolled completion, and no completion event will be raised for it: thread \d+ \(hangs\) sleeps in ibv_get_cq_event\(\), and "
                     r"ibv_req_notify_cq\(\) was never called$", None),
    "only-solicited": (r"^CQ 0 has 1 unpolled completion, and no completion event will be raised for it: the last ibv_req_notify_cq\(\) had "
                       r"solicited_only set: ", None),
    "poll-not-ended": (r"^CQ 0 is locked: thread \d+ \(hangs\) called ibv_start_poll\(\) and has not called ibv_end_poll\(\); it "
                       r"then called ibv_start_poll\(\) and has been deadlocked with itself for [\d.]+ m?s$", None),
    "poll-held": (r"^CQ 0 is locked: thread \d+ \(hangs\) called ibv_start_poll\(\) and has not called ibv_end_poll\(\); thread "
                  r"\d+ \(hangs\) has waited in ibv_poll_cq\(\) for [\d.]+ m?s$", None),
    "never-signaled": (r"^QP 0x[0-9a-f]{6}: its send queue is full, and stays so unless a work request fails: all 8 slots hold work requests without "
                       r"IBV_SEND_SIGNALED$", None),
    "no-receive-posted": (r"^QP 0x[0-9a-f]{6} has no receive posted: a SEND of QP 0x[0-9a-f]{6} (at \S+ )?(of process \d+ )?was "
                          r"refused \(RNR NAK\), and will be refused until ibv_post_recv\(\)$",
                          r"^QP 0x[0-9a-f]{6}: 1 outstanding send for .*(has no receive posted \(RNR\)| at \S+ answers RNR NAK \()"),
    "srq-ran-dry": (r"^QP 0x[0-9a-f]{6} has no receive posted: a SEND of .* was refused \(RNR NAK\), and will be refused until "
                    r"ibv_post_srq_recv\(\) to SRQ 0$",
                    r"^QP 0x[0-9a-f]{6}: 1 outstanding send for .*(has no receive posted \(RNR\)| at \S+ answers RNR NAK \()"),
    "peer-stopped": (STOPPED, None),
    "peer-stopped-of-many": (STOPPED, None),
    "async-event-unread": (r"^QP 0x[0-9a-f]{6} has an unread asynchronous event \(ibv_get_async_event\)$", None),
    "request-unread": (r"^cm_id \d+ from 127.0.0.1 port \d+ listens and has 1 unread connection request \(rdma_get_cm_event\): from "
                       r"127.0.0.1 port \d+, [\d.]+ m?s ago$",
                       r"^cm_id \d+ .* waits for the answer to its connection request: process {pid}, which listens at 127.0.0.1 port \d+, "
                       r"has not read it \(rdma_get_cm_event\)$"),
    "backlog-full": (r"^cm_id \d+ from 127.0.0.1 port \d+ listens and has 1 unread connection request \(rdma_get_cm_event\): from ",
                     r"^cm_id \d+ .* waits for the answer to its connection request: process {pid}, which listens at 127.0.0.1 port \d+, has not "
                     r"taken it: it has 1 unread connection request, and its backlog \(rdma_listen\) may be full$"),
    "request-put-aside": (r"^cm_id \d+ .*: its connection request was read, and is neither accepted nor rejected",
                          r"^cm_id \d+ .* waits for the answer to its connection request: process {pid}, which listens at 127.0.0.1 port \d+, "
                          r"has read it and called neither rdma_accept\(\) nor rdma_reject\(\)$"),
}
# What may be meant so, however long it lasts, is said to who asks only.
NOT_WATCHED = ("async-event-unread", "request-put-aside")
# Over the network nothing is known of a peer that is silent.
LOCAL = ("peer-stopped", "peer-stopped-of-many")


def look(name, path):
    here, there = CAUSES[name]
    with Hang(name, path) as hang:
        eventually(here, hang.pid)
        assert "idle" not in why(hang.pid)
        if there:
            eventually(there.replace("{pid}", str(hang.pid)), hang.peer)
            assert "idle" not in why(hang.peer)
        if name not in NOT_WATCHED:
            matches(here, hang.told()["cause"])


def add_tests():
    for path in sys.argv[3:] or list(PATHS):
        for name in CAUSES:
            if path == "wire" and name in LOCAL:
                continue

            def test(name=name, path=path):
                look(name, path)
            globals()[f"test_{name}_{path}".replace("-", "_")] = test


def test_every_situation_is_tried():
    tap.equal(sorted(started.names(HANGS, LIBRARY)), sorted(CAUSES))


def test_also_without_explanations():
    """What holds is published always; only times are not."""
    for name in ("lost-wake-up", "poll-held", "never-signaled", "no-receive-posted", "request-unread"):
        with Hang(name, "ring", form=None) as hang:
            eventually(CAUSES[name][0], hang.pid)


def test_in_text_it_is_one_paragraph():
    with Hang("no-receive-posted", "ring", form="text") as hang:
        line = hang.process.stderr.readline()
        matches(rf"^softhca\[{hang.pid}\]: QP 0x[0-9a-f]{{6}} has no receive posted: ", line)
        matches(r"^    ", hang.process.stderr.readline())


add_tests()
if sys.argv[3:] and "ring" not in sys.argv[3:]:
    del test_every_situation_is_tried, test_also_without_explanations, test_in_text_it_is_one_paragraph

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
