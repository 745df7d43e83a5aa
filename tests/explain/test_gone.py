#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What is destroyed twice, used afterwards, or destroyed in the wrong order: the first line, on stderr and from outside.

usage: test_gone.py GONE SOFTHCA
"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

GONE, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 120
WHO = r"[\d.]+ m?s ago by thread \d+ \(gone\)"
AGAIN = rf" fails with EINVAL: it was destroyed already, {WHO}$"
AFTER = rf" fails with EINVAL: it was destroyed {WHO}$"
CAUSES = {
    "qp-twice": [r"^ibv_destroy_qp\(QP 0x[0-9a-f]{6}\) fails with EINVAL: it was destroyed already, [\d.]+ m?s ago by thread \d+, "
                 r"which has ended$"],
    "mr-twice": [r"^ibv_dereg_mr\(MR with lkey 0x[0-9a-f]+\)" + AGAIN],
    "cq-twice": [r"^ibv_destroy_cq\(CQ 0\)" + AGAIN],
    "srq-twice": [r"^ibv_destroy_srq\(SRQ 0\)" + AGAIN],
    "others-twice": [rf"^{call}\({what} ?(0x[0-9a-f]+|\d+)\)" + AGAIN for call, what in (
        ("ibv_destroy_ah", "AH"), ("ibv_dealloc_mw", "MW with rkey"),
        ("ibv_destroy_rwq_ind_table", "indirection table"), ("ibv_destroy_wq", "WQ"), ("ibv_close_xrcd", "XRCD"),
        ("ibv_free_dm", "DM"), ("ibv_dealloc_td", "TD"), ("ibv_destroy_counters", "set of counters"),
        ("ibv_destroy_comp_channel", "channel"), ("ibv_dealloc_pd", "PD"))],
    "device-twice": [r"^ibv_close_device\(context \d+\)" + AGAIN],
    "post-after-destroy": [r"^ibv_post_recv\(QP 0x[0-9a-f]{6}\)" + AFTER],
    "send-after-destroy": [r"^ibv_post_send\(QP 0x[0-9a-f]{6}\) fails with EINVAL: it was destroyed [\d.]+ m?s ago by thread \d+, "
                           r"which has ended$"],
    "query-after-destroy": [r"^ibv_query_qp\(QP 0x[0-9a-f]{6}\)" + AFTER],
    "modify-after-destroy": [r"^ibv_modify_qp\(QP 0x[0-9a-f]{6}\)" + AFTER],
    "arm-after-destroy": [r"^ibv_req_notify_cq\(CQ 0\)" + AFTER],
    "poll-after-destroy": [r"^ibv_poll_cq\(CQ 0\)" + AFTER],
    "register-after-dealloc": [r"^ibv_reg_mr\(PD 0\)" + AFTER],
    "qp-of-id-twice": [r"^ibv_destroy_qp\(QP 0x[0-9a-f]{6}\)" + AGAIN],
    "channel-before-id": [rf"^rdma_destroy_id\(cm_id \d+\): its event channel was destroyed before it, {WHO}$"],
    "channel-twice": [rf"^rdma_destroy_event_channel\(event channel with descriptor \d+\): it was destroyed already, {WHO}$"],
    "id-twice": [r"^rdma_destroy_id\(cm_id \d+\)" + AGAIN],
    "id-after-destroy": [r"^rdma_resolve_route\(cm_id \d+\)" + AFTER],
}


class Gone(started.Waiting):
    def __init__(self, name, form):
        super().__init__([GONE, name], started.environment(LIBRARY, **({"SOFTHCA_EXPLAIN": form} if form else {})))

    def why(self, *options):
        result = subprocess.run([SOFTHCA, "why", *options, str(self.pid)], stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=PATIENCE)
        tap.equal(result.returncode, 0, result.stderr)
        return result.stdout


def all_match(patterns, texts):
    for pattern in patterns:
        if not any(re.search(pattern, text) for text in texts):
            raise AssertionError(f"{pattern!r} is none of {texts!r}")


def add_tests():
    for name, patterns in CAUSES.items():
        def test(name=name, patterns=patterns):
            with Gone(name, "json") as gone:
                outside = [json.loads(line) for line in gone.why("--json").splitlines()]
                all_match(patterns, [one["cause"] for one in outside])
                told = [json.loads(line) for line in gone.end().splitlines()]
                misuses = [one for one in told if one["explanation"] == "misuse"]
                tap.equal(len(misuses), len(patterns), misuses)
                all_match(patterns, [one["cause"] for one in misuses])
                for one in misuses:  # the program's functions, and not ours
                    for part in ("destroyed", "called"):
                        names = [frame.get("function", "") for frame in one[part]["stack"]]
                        assert "main" in names or "destroy_in_a_thread" in names, one
        globals()["test_" + name.replace("-", "_")] = test


def test_every_situation_is_tried():
    tap.equal(sorted(started.names(GONE, LIBRARY)), sorted(CAUSES))


def test_without_explanations_who_asks_is_told():
    with Gone("mr-twice", None) as gone:
        all_match(CAUSES["mr-twice"], [gone.why().splitlines()[0]])
        tap.equal(gone.end(), "")


add_tests()

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
