#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca check: both ends of a connection, compared, from either process, on each way to reach a peer.

usage: test_connections.py CONNECTIONS SOFTHCA PATH...
"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

CONNECTIONS, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 120
PATHS = {"ring": {"SOFTHCA_LOCAL": "ring"}, "mapped": {"SOFTHCA_LOCAL": "mapped"}, "wire": {"SOFTHCA_PATH": "wire"}}
ENDS = r"QP 0x[0-9a-f]{6} of process \d+ to QP 0x[0-9a-f]{6} of process \d+: "
ONE = r"QP 0x[0-9a-f]{6}: "
# Which check finds it, how bad it is, and what the first line says.
FINDINGS = {
    "all-well": (None, None, None),
    "psn": ("psn", "wrong", rf"^wrong: {ENDS}it sends from PSN 0x000001 on \(sq_psn\), and the other end expects 0x001267"),
    "mtu": ("path_mtu", "wrong", rf"^wrong: {ENDS}path_mtu is (1024|256) here and (256|1024) at the other end"),
    "dest-qpn": ("dest_qp_num", "wrong", rf"^wrong: {ENDS}the other end is connected to QP 0x[0-9a-f]{{6}} \(dest_qp_num\)"),
    "type": ("type", "wrong", rf"^wrong: {ENDS}it is (RC, and the other end is UC|UC, and the other end is RC)$"),
    "init": ("state", "wrong", rf"^wrong: {ENDS}the other end is in INIT, where it drops all that comes"),
    "read-depth": ("max_rd_atomic", "wrong", rf"^wrong: {ENDS}max_rd_atomic is 8, and max_dest_rd_atomic of the other end is 4"),
    "many-reads": ("rd_atomic", "nic", rf"^works here, would fail on a NIC: {ONE}max_rd_atomic 64, max_dest_rd_atomic 4: use at most 16 of either, "),
    "no-retries": ("timeout", "risk", rf"^risk: {ONE}timeout is 0: if the last packet"),
    "qp-rights": ("access", "risk", rf"^risk: {ONE}its qp_access_flags have IBV_ACCESS_REMOTE_READ, but no MR or MW of its PD has that flag yet: until one has, "),
    "mr-rights": ("access", "risk", rf"^risk: {ONE}an MR or MW of its PD has IBV_ACCESS_REMOTE_READ, but its qp_access_flags lack it"),
}


class Connection(started.Waiting):
    def __init__(self, name, path):
        command = started.own_network() if path == "wire" else []
        super().__init__([*command, CONNECTIONS, name], started.environment(LIBRARY, **PATHS[path]))

    @property
    def peer(self):
        return int(self.words[0], 16)

    def __exit__(self, *_):
        self.process.communicate("\n", timeout=PATIENCE)


def check(pid, *options):
    return subprocess.run([SOFTHCA, "check", *options, str(pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE)


def look(name, path):
    what, severity, line = FINDINGS[name]
    with Connection(name, path) as connection:
        for pid in (connection.pid, connection.peer):
            result = check(pid, "--json")
            told = [json.loads(text) for text in result.stdout.splitlines()]
            counts = told[-1]
            tap.equal((counts["explanation"], counts["alone"]), ("checked", 0), told)
            if name == "init" and pid == connection.peer:
                tap.equal((counts["connections"], result.returncode), (0, 0), told)
                continue
            tap.equal(counts["connections"], 1, told)
            found = [one for one in told if one["explanation"] == "connection"]
            if not what:
                tap.equal((found, result.returncode), ([], 0))
                continue
            assert any((one["check"], one["severity"]) == (what, severity) and re.search(line, one["cause"])
                       for one in found), (pid, found)
            tap.equal(result.returncode, 0 if severity == "risk" else 1)
        text = check(connection.pid).stdout
        assert not line or re.search(line, text, re.MULTILINE), text
        assert re.search(r"^1 connection checked\. Findings: \d+ wrong, \d+ that would fail on a NIC, \d+ risks?$", text, re.MULTILINE), text
        # What is the same in both directions is one finding.
        if name in ("type", "mtu"):
            tap.equal(text.count("wrong: "), 1, text)


def add_tests():
    for path in sys.argv[3:]:
        for name in FINDINGS:
            def test(name=name, path=path):
                look(name, path)
            globals()[f"test_{name}_{path}".replace("-", "_")] = test


def test_every_situation_is_tried():
    tap.equal(sorted(started.names(CONNECTIONS, LIBRARY)), sorted(FINDINGS))


def test_who_cannot_be_looked_at():
    for arguments in (["1073741823"], [], ["nobody"]):
        result = subprocess.run([SOFTHCA, "check", *arguments], capture_output=True, text=True, timeout=PATIENCE)
        tap.equal((result.returncode, result.stdout), (2, ""), result)
        assert result.stderr, arguments


add_tests()

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
