#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Refused calls: the first line names the argument, its value and what is allowed, on stderr and from outside.

usage: test_refused.py REFUSED SOFTHCA
"""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

REFUSED, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 120
QP = r"QP 0x[0-9a-f]{6}"
HEX = r"0x[0-9a-f]+"
MODIFY = rf"ibv_modify_qp\({QP}\) fails with EINVAL: "
SEND = rf"ibv_post_send\({QP}\) fails with EINVAL: "
RECEIVE = rf"ibv_post_recv\({QP}\) fails with EINVAL: "
CREATE = r"ibv_create_qp\(\) fails with EINVAL: "
TRIALS = {
    "full-for-a-while": rf"ibv_post_send\({QP}\) fails with ENOMEM: the send queue is full: (of 8 slots \(cap.max_send_wr\) \d hold|all 8 slots \(cap.max_send_wr\) hold) "
                        r"outstanding work requests",
    "receive-queue-full": rf"ibv_post_recv\({QP}\) fails with ENOMEM: the receive queue is full: all 8 slots \(cap\.max_recv_wr\) hold "
                          r"receives that (no message has used yet; post|have no polled completion; poll more often, post) fewer, or create it with more$",
    "address-of-nobody": r"rdma_bind_addr\(\) fails with ENODEV: 192\.0\.2\.7 is the address of no RDMA device of this host ",
    "inline-trial": CREATE + r"cap\.max_inline_data is 100000, but may be at most \d+ \(SoftHCA's limit, which ibv_query_device\(\) does not report\)$",
    "trial": r"ibv_create_cq_ex\(\) fails with EOPNOTSUPP: wc_flags has 0x10000000000, but may only have IBV_WC_EX_WITH_BYTE_LEN, .* and "
             r"IBV_WC_EX_WITH_[A-Z_]+$",
}
CAUSES = {
    "mask-of-rtr": MODIFY + "INIT to RTR of a QP of type RC needs IBV_QP_RQ_PSN and IBV_QP_MIN_RNR_TIMER, which attr_mask lacks; "
                            "it does not permit IBV_QP_TIMEOUT, which attr_mask has$",
    "skipped-init": MODIFY + r"RESET to RTR is not a transition of a QP of this type \(from RESET: to RESET or INIT\)$",
    "lid-alone": MODIFY + r"ah_attr\.is_global is 0: RoCE needs a GRH",
    "no-such-gid": MODIFY + r"ah_attr\.grh\.sgid_index is 77, where the port has no GID; it has 0",
    "gid-of-other-family": MODIFY + r"grh\.dgid is an IPv6 address, and the GID at sgid_index 0 an IPv4 address: (use sgid_index \d+|choose the sgid_index of the other family .*)$",
    "reads-of-the-peer": MODIFY + r"max_rd_atomic is 200, but may be at most \d+ \(max_qp_init_rd_atom of ibv_query_device\(\)\)$",
    "mtu-in-bytes": MODIFY + r"path_mtu is 1024, which is not a value of enum ibv_mtu \(IBV_MTU_1024 is 3\)$",
    "too-many-reads": MODIFY + r"max_dest_rd_atomic is 200, but may be at most \d+ \(max_qp_rd_atom of ibv_query_device\(\)\)$",
    "access-of-qp": MODIFY + r"qp_access_flags has 0x1000, but may only have IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ",
    "port-zero": MODIFY + r"port_num is 0, but has to be 1$",
    "same-mask-each-time": MODIFY + "RESET to RTR is not a transition of a QP ",
    "post-before-rts": SEND + "the QP is in INIT, but a send needs RTS or a later state$",
    "receive-in-reset": RECEIVE + "the QP is in RESET, but a receive needs INIT or a later state$",
    "too-many-sges": SEND + r"num_sge is 4, but may be at most 2 \(max_send_sge of the QP\)$",
    "inline-too-long": SEND + r"length of the inline data is 2000, but may be at most \d+ \(max_inline_data of the QP\)$",
    "atomic-unaligned": SEND + r"(length of an atomic is \d+|wr\.atomic\.remote_addr is 0x1004, but has to be a multiple of 8)$",
    "read-on-ud": SEND + r"opcode RDMA READ \(4\) is not possible on a QP of type UD$",
    "no-address-handle": SEND + r"wr\.ud\.ah is NULL$",
    "full-of-unsignaled": rf"ibv_post_send\({QP}\) fails with ENOMEM: the send queue is full, and stays so unless a work request fails: all 8 slots hold work requests "
                          "without IBV_SEND_SIGNALED$",
    "receive-by-srq": RECEIVE + r"the QP receives from its SRQ: post there \(ibv_post_srq_recv\)$",
    "srq-with-many-sges": r"ibv_post_srq_recv\(SRQ \d+\) fails with EINVAL: num_sge is 3, but may be at most 1 \(max_sge of the SRQ\)$",
    "remote-without-local": r"ibv_reg_mr(_iova2?)?\(\) fails with EINVAL: access has IBV_ACCESS_REMOTE_WRITE, which needs "
                            "IBV_ACCESS_LOCAL_WRITE, too$",
    "read-only-page": rf"ibv_reg_mr(_iova2?)?\(\) fails with EFAULT: the page at {HEX} is not writable, but IBV_ACCESS_LOCAL_WRITE or "
                      r"IBV_ACCESS_MW_BIND asks for write access \(\d+ bytes into the range of \d+ bytes\)$",
    "hole": rf"ibv_reg_mr(_iova2?)?\(\) fails with EFAULT: the page at {HEX} is not mapped \(\d+ bytes into the "
            r"range of \d+ bytes\)$",
    "no-bytes": r"ibv_reg_mr(_iova2?)?\(\) fails with EINVAL: length is 0, but has to be at least 1$",
    "send-queue-too-long": CREATE + r"cap\.max_send_wr is 10000000, but may be at most \d+ \(max_qp_wr of ibv_query_device\(\)\)$",
    "too-many-sges-asked": CREATE + r"cap\.max_recv_sge is 1000, but may be at most \d+ \(max_sge of ibv_query_device\(\)\)$",
    "no-type": CREATE + r"qp_type is 0, but may only be IBV_QPT_RC \(2\), IBV_QPT_UC \(3\), ",
    "cq-of-other-context": CREATE + r"send_cq belongs to another struct ibv_context \(ibv_open_device\) than the other objects of the call$",
    "empty-cq": r"ibv_create_cq\(\) fails with EINVAL: cqe is 0, but has to be 1 to \d+$",
    "wrong-vector": r"ibv_create_cq\(\) fails with EINVAL: comp_vector is 5000, but may be at most \d+ \(num_comp_vectors of struct "
                    r"ibv_context, less 1\)$",
    "negative-vector": r"ibv_create_cq\(\) fails with EINVAL: comp_vector is -1, but has to be 0 to \d+$",
    "wq-in-reset": r"ibv_post_wq_recv\(WQ 0x[0-9a-f]+\) fails with EINVAL: the WQ is in IBV_WQS_RESET, but a receive needs IBV_WQS_RDY or "
                   "IBV_WQS_ERR$",
    "srq-without-type": r"rdma_create_srq_ex\(\) fails with EINVAL: comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE$",
    "type-of-wq": r"ibv_create_wq\(\) fails with EINVAL: wq_type is 7, but may only be IBV_WQT_RQ \(0\)$",
    "mask-of-domain": r"ibv_alloc_td\(\) fails with EINVAL: comp_mask has 0x1, but has to be 0$",
    "ah-without-grh": r"ibv_create_ah\(\) fails with EINVAL: is_global is 0: RoCE needs a GRH",
    "srq-too-long": r"ibv_create_srq\(\) fails with EINVAL: attr\.max_wr is 100000000, but has to be 1 to \d+ \(max_srq_wr of "
                    r"ibv_query_device\(\)\)$",
    "group-is-none": rf"ibv_attach_mcast\({QP}\) fails with EINVAL: gid is not a multicast GID",
    "group-of-rc": rf"ibv_attach_mcast\({QP}\) fails with EINVAL: the QP is of type RC, but a multicast group needs UD$",
    "flow-on-rc": rf"ibv_create_flow\({QP}\) fails with EINVAL: the QP is of type RC, but a flow rule needs RAW_PACKET$",
    "connect-before-route": r'rdma_connect\(\) fails with EINVAL: the cm_id is in state "idle", but has to be "route resolved"$',
    "qp-before-address": r"rdma_create_qp\(\) fails with EINVAL: the cm_id has no device yet: rdma_resolve_addr\(\) and its event, ",
    "accept-on-listener": r"rdma_accept\(\) fails with EINVAL: the cm_id is not from an RDMA_CM_EVENT_CONNECT_REQUEST: accept event->id$",
    "route-before-address": r'rdma_resolve_route\(\) fails with EINVAL: the cm_id is in state "idle", but has to be "address resolved"$',
    "private-data-too-long": r"rdma_connect\(\) fails with EINVAL: private_data_len is 100, but may be at most 56 \(what that CM "
                             r"message has room for\)$",
    "pd-of-other-device": r"rdma_create_qp\(\) fails with EINVAL: pd belongs to another struct ibv_context than id->verbs$",
    "port-taken": r"rdma_bind_addr\(\) fails with EADDRINUSE: port \d+ is taken: another rdma_cm_id of this host is bound to it ",
    "port-of-the-system": r"rdma_bind_addr\(\) fails with EACCES: port 7 is below 1024 \(net\.ipv4\.ip_unprivileged_port_start\), which "
                          "needs CAP_NET_BIND_SERVICE$",
    **TRIALS,
}


class Run(started.Waiting):
    def __init__(self, name, form, what="wrong"):
        wanted = {"SOFTHCA_EXPLAIN": form, "SOFTHCA_EXPLAIN_WHAT": what} if form else {}
        command = started.own_network() if name == "port-of-the-system" else []  # its lower ports are the system's
        super().__init__([*command, REFUSED, name], started.environment(LIBRARY, **wanted))
        self.status = 3 if name in TRIALS else 0

    def end(self):
        return super().end(self.status)

    def why(self):
        done = subprocess.run([SOFTHCA, "why", "--json", str(self.pid)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)
        tap.equal(done.returncode, 0, done.stderr)
        return refusals(done.stdout)


def refusals(text):
    return [one for one in map(json.loads, text.splitlines()) if one["explanation"] == "refused"]


def matches(pattern, found):
    if not any(re.search("^" + pattern, one["cause"]) for one in found):
        raise AssertionError(f"{pattern!r} is none of {[one['cause'] for one in found]}")


def add_tests():
    for name, pattern in CAUSES.items():
        def test(name=name, pattern=pattern):
            with Run(name, "json") as run:
                matches(pattern, run.why())
                told = refusals(run.end())
                matches(pattern, told)
                frames = [frame.get("function", "") for one in told for frame in one["stack"]]
                assert "main" in frames, told
        globals()["test_" + name.replace("-", "_")] = test


def told(text):
    return [re.sub(r"^softhca\[\d+\]: ", "", line) for line in text.splitlines() if line.startswith("softhca[")]


def test_every_situation_is_tried():
    tap.equal(sorted(started.names(REFUSED, LIBRARY)), sorted(CAUSES))


def test_by_default_a_mistake_is_told_when_it_happens():
    with Run("mask-of-rtr", "text") as run:
        text = run.end()
    lines = told(text)
    tap.equal(len(lines), 1, text)
    assert re.search("^" + CAUSES["mask-of-rtr"], lines[0]), lines
    assert "mask_of_rtr+" in text, text


def test_the_same_place_is_told_of_once_and_counted():
    with Run("same-mask-each-time", "text") as run:
        found = run.why()
        tap.equal([one["times"] for one in found], [5])
        tap.equal(len(told(run.end())), 1)


def test_the_object_has_the_calls_for_it():
    with Run("too-many-sges", "text") as run:
        qpn = run.why()[0]["label"].split()[1]
        done = subprocess.run([SOFTHCA, "why", str(run.pid), "qp:" + qpn], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)
        tap.equal(done.returncode, 0, done.stderr)
        lines = [line.strip() for line in done.stdout.splitlines()]
        assert any(re.search("^" + SEND + "num_sge is 4, but may be at most 2 \\(max_send_sge of the QP\\), 1 time$", line) for line in lines), lines


def test_a_trial_is_told_at_the_end_of_a_program_that_fails():
    for name, pattern in TRIALS.items():
        with Run(name, "text") as run:
            lines = told(run.end())
        # What it counts was told: nothing is left to say.
        tap.equal(len(lines), 1, lines)
        assert re.search("^" + pattern, lines[0]), lines


def test_a_trial_is_told_at_once_if_all_is():
    with Run("trial", "text", "all") as run:
        lines = told(run.end())
    assert re.search("^" + TRIALS["trial"], lines[0]), lines


def test_without_explanations_who_asks_is_told():
    with Run("read-only-page", None) as run:
        matches(CAUSES["read-only-page"], run.why())
        tap.equal(run.end(), "")


add_tests()

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
