#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Datagrams that are lost in silence (drops.c): counted by reason, with the last one, at the receiver and, within a host, at the
sender; on each path.

usage: test_drops.py DROPS SOFTHCA
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

DROPS, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 60
# A network namespace of its own, for other people's processes and for UDP port 4791.
ALONE = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
PATHS = {**{name: {"SOFTHCA_LOCAL": name} for name in ("ring", "cma", "mapped")}, "wire": {"SOFTHCA_PATH": "wire"}, "same": {}}

QP = r"QP 0x[0-9a-f]{6}"
AGE = rf" from {QP}( at 127\.0\.0\.1)?(, the last|,) [\d.]+ m?s ago"
BY = rf"^{QP}: its datagrams are dropped by {QP} of process \d+: "
DESTROYED = QP + r" was destroyed [\d.]+ m?s ago by thread \d+ \(\S+\)"
COUNT = r" \(3 datagrams, the last [\d.]+ m?s ago\)$"


class Loss:
    """What the far end says; what the near end says of it, where it can look; whether the far end says it by default."""

    def __init__(self, far, near=None, wrong=False, paths=tuple(PATHS)):
        self.far, self.near, self.wrong, self.paths = far, near, wrong, paths


EXPECTED = {
    "wrong-qkey": Loss(rf"^{QP} dropped 3 datagrams{AGE}: Q_Key 0x22222222, but that of the QP is 0x11111111$",
                       BY + "Q_Key 0x22222222, but that of that QP is 0x11111111" + COUNT, wrong=True),
    "no-receive": Loss(rf"^{QP} dropped 3 datagrams{AGE}: the QP had no receive posted$",
                       BY + "that QP had no receive posted" + COUNT),
    "without-grh": Loss(rf"^{QP} dropped 3 datagrams{AGE}: a datagram of 140 bytes, 40 of them for the GRH, but the receive of the QP has 100$",
                        BY + "a datagram of 140 bytes, 40 of them for the GRH, but the receive of that QP has 100" + COUNT),
    "not-ready": Loss(rf"^{QP} dropped 3 datagrams{AGE}: the QP was in INIT, in which it does not receive$",
                      BY + "that QP was in INIT, in which it does not receive" + COUNT),
    "qp-is-gone": Loss(rf"^this process dropped 3 datagrams{AGE}: {DESTROYED}$",
                       rf"^{QP}: its datagrams are dropped by process \d+: {DESTROYED}" + COUNT),
    "not-attached": Loss(rf"^this process dropped 3 datagrams{AGE}: none of its QPs is attached to group 239\.1\.2\.3 \(to receive: ibv_attach_mcast\)$"),
    # Not over the network: frames of other hosts are what an interface receives.
    "no-rule": Loss(rf"^this process dropped 3 frames{AGE}: none of its flow rules matches a frame of 64 bytes \(to receive: ibv_create_flow\)$", paths=("ring", "same")),
}


def environment(path, form, what="wrong"):
    return started.environment(LIBRARY, SOFTHCA_EXPLAIN=form, SOFTHCA_EXPLAIN_WHAT=what, **PATHS[path])


class Run:
    def __init__(self, name, path, form="json", what="wrong"):
        self.process = subprocess.Popen([*ALONE, DROPS, name, *(("same",) if path == "same" else ())],
                                        env=environment(path, form, what), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        line = self.process.stdout.readline().split()
        tap.equal(line[:1], ["done"], (line, self.process.stderr.read() if not line else ""))
        self.near, self.far = int(line[1]), int(line[2])
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def end(self):
        _, text = self.process.communicate("\n", timeout=PATIENCE)
        tap.equal(self.process.returncode, 0, text)
        return text


def why(pid):
    done = subprocess.run([SOFTHCA, "why", "--json", str(pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE)
    tap.equal(done.returncode, 0, done.stderr)
    return [json.loads(line)["cause"] for line in done.stdout.splitlines()]


def says(pattern, pid):
    """Frames and datagrams go different ways: the last datagram may be there first."""
    until = time.monotonic() + PATIENCE
    while True:
        causes = why(pid)
        if any(re.search(pattern, cause) for cause in causes):
            return
        if time.monotonic() > until:
            raise AssertionError(f"{pattern!r} is none of {causes}")


def check(name, path):
    loss = EXPECTED[name]
    with Run(name, path) as run:
        says(loss.far, run.far)
        if loss.near and path != "same":
            says(loss.near, run.near)
        run.end()


def test_every_mistake_is_tried():
    names = subprocess.run([DROPS], env=environment("same", "off"), capture_output=True, text=True, check=False).stdout.split()
    tap.equal(sorted(names), sorted(EXPECTED))


def test_by_default_only_what_is_never_right_is_told():
    for name, loss in EXPECTED.items():
        with Run(name, "ring", "text") as run:
            told = [line for line in run.end().splitlines() if line.startswith("softhca[") and " dropped " in line]
        tap.equal(len(told), 1 if loss.wrong else 0, told)
    # The first one is told when it comes; the counts are for who asks.
    with Run("wrong-qkey", "ring", "text") as run:
        text = run.end()
    assert re.search(rf"^softhca\[{run.far}\]: {QP} dropped \d datagrams?.*: Q_Key 0x22222222, but that of the QP is 0x11111111",
                     text, re.M), text


def test_all_of_a_qp_are_told_if_all_is():
    with Run("no-receive", "ring", "text", "all") as run:
        text = run.end()
    assert re.search(rf"^softhca\[{run.far}\]: {QP} dropped \d datagrams?.*: the QP had no receive posted", text, re.M), text


def test_what_the_grh_needs_is_said():
    with Run("without-grh", "ring", "text", "all") as run:
        text = run.end()
    assert re.search(r"^    post receives of at least 140 bytes: ", text, re.M), text


for mistake_name, expected in EXPECTED.items():
    for path_name in expected.paths:
        def one(name=mistake_name, path=path_name):
            check(name, path)
        globals()[f"test_{mistake_name.replace('-', '_')}_on_{path_name}"] = one

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
