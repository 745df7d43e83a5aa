#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Faults that a user asks for (softhca-fault(7)): what a program gets, and what is told of it.

usage: test_faults.py VICTIM CONNECTOR EVERYONE EVERYCALL LIMITS SOFTHCA PATH [TEST...]
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import tap  # noqa: E402

VICTIM, CONNECTOR, EVERYONE, EVERYCALL, LIMITS, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:7])
PATH, *CHOSEN = sys.argv[7:]
PATHS = {"same": {}, "ring": {"SOFTHCA_LOCAL": "ring"}, "cma": {"SOFTHCA_LOCAL": "cma"},
         "mapped": {"SOFTHCA_LOCAL": "mapped"}, "wire": {"SOFTHCA_PATH": "wire"}}
# All of it in a network namespace of its own: traffic is on loopback, and so are the sockets by which tools ask.
if "TEST_FAULTS_ALONE" not in os.environ:
    os.environ["TEST_FAULTS_ALONE"] = "1"
    os.execvp("unshare", ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh",
                          sys.executable, *sys.argv])

# enum ibv_wc_status, enum ibv_event_type
OK, LEN, QP_OP, PROT, FLUSHED, MW_BIND, BAD_RESP, REM_INV, REM_ACCESS, REM_OP, RETRY, RNR = 0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13
CQ_ERR, QP_FATAL, QP_ACCESS_ERR, PATH_MIG_ERR, DEVICE_FATAL, PORT_ACTIVE, PORT_ERR, SRQ_LIMIT, CLIENT_REREGISTER, GID_CHANGE = \
    0, 1, 3, 7, 8, 9, 10, 15, 17, 18


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SOFTHCA_")}
ENVIRONMENT.update(PATHS[PATH], LC_ALL="C")


def run(*arguments, faults=(), options=(), program=VICTIM):
    specs = [word for fault in faults for word in ("--fault", fault)]
    result = subprocess.run([SOFTHCA, "run", "--no-shim", *specs, *options, "--", program, *arguments],
                            env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout.splitlines(), result.stderr


def meet(*arguments, faults):
    code, lines, told = run(*arguments, faults=faults)
    tap.equal(code, 0, told)
    return lines, told


def pair(opcode, *faults):
    """Completions of the near end, of the far one; their states and events; what was told."""
    lines, told = meet("pair", opcode, *(["same"] if PATH == "same" else []), faults=faults)
    seen = {"near": {}, "far": {}}
    state, events = {}, {"near": [], "far": []}
    for line in lines:
        end, what, value, *rest = line.split()
        if what == "wr":
            seen[end][int(value)] = int(rest[1])
        elif what == "state":
            state[end] = value
        else:
            events[end].append(int(value))
    return seen["near"], seen["far"], (state["near"], state["far"]), events, told


def one_line(told, part):
    found = [line for line in told.splitlines() if part in line]
    tap.equal(len(found), 1, told)
    return found[0]


def test_without_a_fault_all_is_well():
    near, far, states, events, told = pair("SEND")
    tap.equal((near, states, events), ({i: OK for i in range(1, 6)}, ("RTS", "RTS"), {"near": [], "far": []}))
    tap.equal(told, "")


def test_the_nth_call_fails():
    lines, told = meet("calls", faults=["call=ibv_reg_mr errno=ENOMEM n=3", "call=ibv_create_qp errno=EINVAL n=1",
                                        "call=ibv_modify_qp errno=5 count=all", "call=ibv_create_cq errno=EMFILE n=2",
                                        "call=ibv_alloc_pd errno=ENOSPC n=9"])
    refused = [line for line in lines if not line.endswith(" ok")]
    tap.equal(refused, ["ibv_create_qp 1 EINVAL", "ibv_reg_mr 2 ENOMEM", "ibv_create_cq 2 EMFILE", "ibv_modify_qp 3 EIO"])
    assert "call 3 of ibv_reg_mr fails with ENOMEM" in one_line(told, "errno=ENOMEM")
    assert "was never applied: 4 matched" in one_line(told, "ibv_alloc_pd"), told


def test_each_other_call_fails():
    if PATH != "same":
        raise tap.Skip("calls are the same on each path: only in one process")
    code, lines, told = run(program=EVERYCALL)
    tap.equal((code, {line.split()[1] for line in lines}), (0, {"0"}), (lines, told))
    for name in (line.split()[0] for line in lines):
        count = 2 if name == "ibv_open_device" else 1
        code, lines, told = run(faults=[f"call={name} errno=EXDEV n={count}"], program=EVERYCALL)
        tap.equal((code, [line for line in lines if not line.endswith(" 0")]), (0, [f"{name} {errno.EXDEV}"]), told)


def test_a_fault_of_another_program_or_device_is_not_met():
    lines, told = meet("calls", faults=["call=ibv_reg_mr errno=ENOMEM exe=other", "call=ibv_create_cq errno=EIO device=mlx5_0"])
    assert all(line.endswith(" ok") for line in lines), lines
    assert "was never applied: nothing that the program did matched it" in one_line(told, "mlx5_0")


def test_the_nth_post_of_a_list_fails_and_those_before_it_are_posted():
    lines, told = meet("posts", faults=["call=ibv_post_send errno=ENOMEM n=3", "call=ibv_post_recv errno=EINVAL n=2"])
    tap.equal(lines, ["ibv_post_recv 101 EINVAL", "ibv_post_send 3 ENOMEM", "end"])
    lines, told = meet("posts", "extended", faults=["call=ibv_post_send errno=ENOMEM n=2"])
    tap.equal(lines, ["ibv_post_recv 0 ok", "ibv_wr_complete 1 ok", "ibv_wr_complete 2 ENOMEM", "ibv_wr_complete 3 ok", "end"])


def test_each_limit_is_reported_and_met():
    if PATH != "same":
        raise tap.Skip("limits are the same on each path: only in one process")
    full, invalid = os.strerror(errno.ENOMEM), os.strerror(errno.EINVAL)
    for limit, value, wanted in (
            ("max_qp", 2, [f"max_qp 2 2 {full}"]), ("max_cq", 3, [f"max_cq 3 3 {full}"]), ("max_mr", 4, [f"max_mr 4 3 {full}"]),
            ("max_pd", 5, [f"max_pd 5 4 {full}"]), ("max_srq", 1, [f"max_srq 1 1 {full}"]), ("max_cqe", 50, [f"max_cqe 50 ok {invalid}"]),
            ("max_qp_wr", 20, [f"sends 20 ok {invalid}", f"receives 20 ok {invalid}"]), ("max_sge", 4, [f"max_sge 4 ok {invalid}"]),
            ("max_mr_size", 1 << 20, [f"max_mr_size {1 << 20} ok {invalid}"]), ("max_srq_wr", 30, [f"max_srq_wr 30 ok {invalid}"]),
            ("max_inline_data", 100, [f"max_inline_data 100 ok {invalid}"])):
        code, lines, told = run(limit, str(value), faults=[f"limit={limit} value={value}"], program=LIMITS)
        tap.equal((code, lines), (0, wanted), told)
        tap.equal(told.count(f"applied: {limit} is {value}, and {value + 1} were asked for"), len(wanted), told)
    code, lines, told = run("max_mr", faults=["limit=max_pd value=9"], program=LIMITS)
    assert "was never applied: 1 calls stayed within the limit" in one_line(told, "max_pd"), told


# What the parser lets through ends as hardware would (verbs.md §2.6, §3.10): the request, those behind it, both QPs.
FAILS_HERE = [("SEND", "LOC_LEN_ERR", LEN), ("SEND", "LOC_QP_OP_ERR", QP_OP), ("RDMA_WRITE", "LOC_PROT_ERR", PROT),
              ("RDMA_READ", "BAD_RESP_ERR", BAD_RESP), ("RDMA_WRITE", "RETRY_EXC_ERR", RETRY), ("ATOMIC", "RETRY_EXC_ERR", RETRY),
              ("SEND", "RNR_RETRY_EXC_ERR", RNR)]


def test_a_send_that_fails_on_its_own_side_leaves_the_peer_alone():
    for opcode, name, status in FAILS_HERE:
        near, far, states, events, told = pair(opcode, f"completion={name} n=3 opcode={opcode}")
        tap.equal(near, {1: OK, 2: OK, 3: status, 4: FLUSHED, 5: FLUSHED}, name)
        tap.equal((states, events), (("ERR", "RTS"), {"near": [], "far": []}), name)
        if opcode == "SEND":
            tap.equal(far, {1: OK, 2: OK}, name)
        assert f"work request 3, wr_id 3" in one_line(told, "' applied:") and "ends with " + name in told, told
        assert "went to ERR: wr_id 3" in told and ": an injected fault (softhca run" in told, told


def test_a_window_that_is_not_bound_ends_the_qp():
    near, far, states, events, told = pair("BIND_MW", "completion=MW_BIND_ERR n=3 opcode=BIND_MW")
    tap.equal((near, states), ({1: OK, 2: OK, 3: MW_BIND, 4: FLUSHED, 5: FLUSHED}, ("ERR", "RTS")))
    assert "ends with MW_BIND_ERR" in one_line(told, "' applied:"), told


def test_a_refused_request_leaves_both_ends_in_error():
    for opcode in "RDMA_WRITE", "RDMA_READ", "ATOMIC":
        near, far, states, events, told = pair(opcode, "completion=REM_ACCESS_ERR n=3")
        tap.equal(near, {1: OK, 2: OK, 3: REM_ACCESS, 4: FLUSHED, 5: FLUSHED}, opcode)
        tap.equal((states, events), (("ERR", "ERR"), {"near": [], "far": [QP_ACCESS_ERR]}), opcode)
        tap.equal(far, {i: FLUSHED for i in range(1, 9)}, opcode)
        assert "caused by an injected fault" in told, told


def test_a_receive_at_fault_fails_at_both_ends():
    for name, here, there in ("LOC_LEN_ERR", LEN, REM_INV), ("LOC_PROT_ERR", PROT, REM_OP):
        near, far, states, events, told = pair("SEND", f"completion={name} side=receive n=3")
        tap.equal(near, {1: OK, 2: OK, 3: there, 4: FLUSHED, 5: FLUSHED}, name)
        tap.equal(far, {1: OK, 2: OK, 3: here, **{i: FLUSHED for i in range(4, 9)}}, name)
        tap.equal(states, ("ERR", "ERR"), name)


def test_a_completion_that_never_comes():
    near, far, states, events, told = pair("SEND", "completion=never n=3")
    tap.equal((near, states), ({1: OK, 2: OK, 4: OK, 5: OK}, ("RTS", "RTS")))
    assert "wr_id 3" in one_line(told, "gets no completion"), told


def test_a_completion_that_comes_late_keeps_its_place():
    everyone = {i: OK for i in range(1, 6)}
    for opcode in "SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC":
        near, far, states, events, told = pair(opcode, f"completion=delayed time=20ms n=2 count=2 opcode={opcode}")
        tap.equal((list(near), near, states), (list(everyone), everyone, ("RTS", "RTS")), opcode)
        assert "gets its completion 20000 us later" in told, told
    near, far, states, events, told = pair("SEND", "completion=delayed time=20ms side=receive n=2")
    tap.equal((list(far), far, states), (list(everyone), everyone, ("RTS", "RTS")))
    near, far, states, events, told = pair("SEND", "completion=delayed time=20ms n=2", "completion=LOC_QP_OP_ERR n=2")  # of the others
    tap.equal((list(near), near), (list(everyone), {1: OK, 2: OK, 3: QP_OP, 4: FLUSHED, 5: FLUSHED}))


def test_an_event_of_a_qp_has_the_state_that_belongs_to_it():
    flushed = {1: OK, 2: OK, 3: FLUSHED, 4: FLUSHED, 5: FLUSHED}
    for name, wanted in ("qp_fatal", [QP_FATAL]), ("cq_err", [CQ_ERR, QP_FATAL]):
        near, far, states, events, told = pair("SEND", f"event={name} n=3")
        tap.equal((near, far, states), (flushed, {1: OK, 2: OK}, ("ERR", "RTS")), name)
        tap.equal((sorted(events["near"]), events["far"]), (wanted, []), name)
        assert f"{name} at call 3 of ibv_post_send" in one_line(told, "' applied:"), told
    near, far, states, events, told = pair("SEND", "event=path_mig_err n=3")
    tap.equal((near, states, events), ({i: OK for i in range(1, 6)}, ("RTS", "RTS"), {"near": [PATH_MIG_ERR], "far": []}))


def test_events_of_a_port():
    for name, number in ("gid_change", GID_CHANGE), ("client_reregister", CLIENT_REREGISTER):
        near, far, states, events, told = pair("SEND", f"event={name} at=ibv_post_send n=2")
        tap.equal((states, events["near"]), (("RTS", "RTS"), [number]), name)
        tap.equal(events["far"], [number] if PATH == "same" else [], name)


# As where a cable is pulled (verbs.md §3.12, §9): QPs keep their states, what is sent is lost, and the retries end.
def test_a_port_that_goes_down_stops_what_its_own_side_sends():
    for opcode in "SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC":
        near, far, states, events, told = pair(opcode, "event=port_down n=3")
        tap.equal((near, states), ({1: OK, 2: OK, 3: RETRY, 4: FLUSHED, 5: FLUSHED}, ("ERR", "RTS")), opcode)
        tap.equal((events["near"], events["far"]), ([PORT_ERR], [PORT_ERR] if PATH == "same" else []), opcode)
        assert "port_down at call 3 of ibv_post_send" in one_line(told, "' applied:"), told
        assert "the port is down (injected fault event=port_down); caused by an injected fault" in told, told


def test_a_port_that_comes_back_in_time_costs_retries_only():
    for opcode in "SEND", "RDMA_WRITE", "RDMA_READ":
        near, far, states, events, told = pair(opcode, "event=port_down n=3 time=20ms")
        tap.equal((near, states, events["near"]), ({i: OK for i in range(1, 6)}, ("RTS", "RTS"), [PORT_ERR, PORT_ACTIVE]), opcode)


def port_lines(opcode, *faults, back=False):
    lines, told = meet("port", opcode, *(["back"] if back else []), *(["same"] if PATH == "same" else []), faults=faults)
    return lines, told


def test_a_port_that_goes_down_stops_what_the_peer_sends_or_executes_itself():
    for opcode in "SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC":
        lines, told = port_lines(opcode, "event=port_down at=ibv_post_recv n=9")
        tap.equal(lines, ["far port ACTIVE", "far port DOWN", f"near wr 2 status {RETRY}", "far memory 0", "far state RTS",
                          f"far event {PORT_ERR}", "near state ERR", *([f"near event {PORT_ERR}"] if PATH == "same" else [])], opcode)
        if PATH != "wire":  # over a network, the peer's records are not read
            assert "the port is down (injected fault event=port_down)" in told, told


def test_a_port_that_comes_back_lets_requests_through_again():
    for opcode in "SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC":
        lines, told = port_lines(opcode, "event=port_down at=ibv_post_recv n=9", "event=port_up at=ibv_post_recv n=10", back=True)
        both = [f"event {PORT_ERR}", f"event {PORT_ACTIVE}"]
        tap.equal(lines, ["far port ACTIVE", "far port DOWN", "far port ACTIVE", "near wr 2 status 0",
                          f"far memory {7 if opcode == 'RDMA_WRITE' else 0}", "far state RTS", *("far " + event for event in both),
                          "near state RTS", *("near " + event for event in both if PATH == "same")], opcode)


def test_an_srq_reaches_its_limit():
    lines, told = meet("srq", faults=["event=srq_limit n=3"])
    tap.equal(lines, ["ibv_post_srq_recv 1 ok", "ibv_post_srq_recv 2 ok", "ibv_post_srq_recv 3 ok", f"event {SRQ_LIMIT}", "limit 0"])


def test_a_receive_of_an_srq_is_left_out_and_that_is_told():
    for fault in "completion=delayed time=20ms side=receive", "completion=LOC_LEN_ERR side=receive":
        lines, told = meet("srq", faults=[fault, "event=srq_limit n=3", "completion=LOC_QP_OP_ERR"])
        tap.equal(lines[-1], "limit 0")
        line = one_line(told, "does not apply to receives of an SRQ")
        assert f"'{fault}'" in line, told


def test_after_a_fatal_error_of_the_device_calls_fail_and_destroys_succeed():
    lines, told = meet("fatal", faults=["event=device_fatal"])
    tap.equal(lines, ["ibv_post_send 1 EIO", *(f"near wr {i} status {FLUSHED}" for i in range(1, 9)), "near state ERR",
                      f"near event {DEVICE_FATAL}", "ibv_post_recv 1 EIO", "ibv_modify_qp 1 EIO", "ibv_req_notify_cq 1 EIO",
                      "ibv_reg_mr 1 EIO", "ibv_create_cq 1 EIO", "ibv_create_qp 1 EIO", "ibv_destroy_qp 1 ok",
                      "ibv_destroy_cq 1 ok", "closed"])


def test_what_a_network_does_to_packets_is_made_good():
    # Counted losses meet SENDs only: two READs that are repeated together may lose the same packet each time.
    for fault, opcodes in (("packet=drop of=requests every=3", ["SEND"]), ("packet=drop of=responses every=2", ["SEND"]),
                           ("packet=corrupt of=requests every=3", ["SEND"]), ("packet=duplicate count=all", ["SEND", "RDMA_READ"]),
                           ("packet=drop percent=40 seed=3", ["SEND", "RDMA_READ"])):
        for opcode in opcodes:
            near, far, states, events, told = pair(opcode, fault)
            tap.equal((near, states, events), ({i: OK for i in range(1, 6)}, ("RTS", "RTS"), {"near": [], "far": []}), fault)
            if opcode == "SEND":
                tap.equal(far, {i: OK for i in range(1, 6)}, fault)
            assert "' applied: " in told, told


def test_when_no_packet_arrives_the_retries_end():
    near, far, states, events, told = pair("RDMA_WRITE", "packet=drop of=requests count=all qp=1")
    tap.equal((near, states), ({1: RETRY, **{i: FLUSHED for i in range(2, 6)}}, ("ERR", "RTS")))
    assert len([line for line in told.splitlines() if re.search("' applied: packet [0-9]+ .* is dropped$", line)]) >= 8, told


def test_a_packet_that_is_delayed_for_longer_than_the_retries_last_never_arrives():
    near, far, states, events, told = pair("RDMA_WRITE", "packet=delay time=5min of=requests count=all qp=1")
    tap.equal((near, states), ({1: RETRY, **{i: FLUSHED for i in range(2, 6)}}, ("ERR", "RTS")))
    assert re.search(r"' applied: packet 1 \(PSN 0x[0-9a-f]{6} of QP 0x[0-9a-f]{6}\) is delayed$", told, re.M), told


def test_what_is_delayed_or_paced_arrives():
    for fault in "packet=delay time=30ms of=requests n=2", "packet=delay time=3ms percent=50 seed=2", "packet=rate limit=1Mbit", \
                 "packet=reorder by=1 of=requests every=2", "packet=reorder by=2 percent=30 time=4ms":
        for opcode in "SEND", "RDMA_READ", "RDMA_WRITE":
            near, far, states, events, told = pair(opcode, fault)
            tap.equal((near, states, events), ({i: OK for i in range(1, 6)}, ("RTS", "RTS"), {"near": [], "far": []}), fault)
            if opcode == "SEND":
                tap.equal(far, {i: OK for i in range(1, 6)}, fault)


def test_a_link_lets_through_what_its_rate_allows():
    near, far, states, events, told = pair("RDMA_WRITE", "packet=rate limit=1bit of=requests qp=1")
    tap.equal((near[1], near[2], states), (OK, RETRY, ("ERR", "RTS")))


def test_a_packet_is_overtaken_by_so_many():
    def order(*faults):
        lines, told = meet("datagrams", faults=faults)
        return [int(line.split()[1]) for line in lines], told
    tap.equal(order("packet=duplicate n=9")[0], [1, 2, 3, 4, 5])
    tap.equal(order("packet=reorder by=2 n=1 time=5min")[0], [2, 3, 1, 4, 5])
    tap.equal(order("packet=reorder by=1 n=1 every=2 count=2 time=5min")[0], [2, 1, 4, 3, 5])
    tap.equal(order("packet=reorder by=100 n=2 time=1ms")[0], [1, 3, 4, 5, 2])
    tap.equal(order("packet=duplicate n=2", "packet=reorder by=2 n=2 time=5min")[0], [1, 3, 4, 2, 2])  # what both do


# The packet leaves the port once, so it is the same for all members, whichever process they are in.
def test_what_is_for_everyone_meets_faults_once():
    for kind in "group", "frame":
        for fault, wanted in (("packet=drop n=2", [1, 3, 4, 5]), ("packet=drop every=2 count=2", [2, 4, 5]), ("packet=corrupt n=5", [1, 2, 3, 4]),
                              ("packet=duplicate n=3", [1, 2, 3, 3, 4, 5]), ("packet=reorder by=2 n=1 time=5min", [2, 3, 1, 4, 5]),
                              ("packet=duplicate n=2; packet=reorder by=1 n=2 time=5min", [1, 3, 2, 2, 4, 5]),
                              ("packet=delay time=5min n=1", [2, 3, 4, 5]), ("packet=drop of=responses count=all", [1, 2, 3, 4, 5])):
            code, lines, told = run(kind, faults=fault.split("; "), program=EVERYONE)
            tap.equal(code, 0, told)
            for member in "1", "2":
                got = [int(line.split()[3]) for line in lines if line.split()[1] == member]
                tap.equal(got, [*wanted, 0], (kind, fault, member))
            assert fault.endswith("of=responses count=all") or "' applied: " in told, told
        code, lines, told = run(kind, faults=["packet=rate limit=100kbit"], program=EVERYONE)
        tap.equal([line.split()[3] for line in lines if line.split()[1] == "1"], list("123450"), kind)
    code, lines, told = run("frame", faults=["packet=mark count=all"], program=EVERYONE)
    assert code == 0 and "was never applied" in told, told


def test_a_lost_packet_for_a_receive_of_an_SRQ_is_sent_again():
    for which in "requests", "responses":
        with Running(kind="SRQ") as running:
            running.do("message")
            pid = running.pid if which == "requests" else running.far
            tap.equal(running.fault(f"packet=drop of={which} n=1 every=2", pid=pid), (0, [], ""))
            for word in "message", "write", "message":
                assert running.do(word)[1].endswith("status 0"), (which, word, running.status)
            tap.equal(running.do("last")[2:], [*(f"message {i} status 0" for i in (1, 2, 4, 0)), "state RTS", "state RTS"])
            assert running.qp()["retransmissions"] >= 3, which
            running.end()


def test_a_marked_packet_is_answered_by_a_cnp():
    def counted(fault):
        lines, told = meet("marks", SOFTHCA + " stats --json", faults=[fault])
        tap.equal(lines[:5], [f"near wr {i} status 0" for i in range(1, 6)])
        pid = int(lines[5].split()[1])
        return [process["network"] for process in json.loads("\n".join(lines[6:]))["processes"] if process["pid"] == pid][0]
    marked, other = counted("packet=mark of=requests count=all"), counted("packet=drop n=1000")
    tap.equal((marked["congested"], other["congested"], other["cnps_sent"]), (5, 0, 0))
    assert 1 <= marked["cnps_received"] <= 5 and marked["cnps_received"] == marked["cnps_sent"], marked


def test_one_qp_is_selected_by_its_order():
    if PATH != "same":
        raise tap.Skip("each process has one QP")
    near, far, states, events, told = pair("SEND", "completion=LOC_QP_OP_ERR qp=2")
    tap.equal(states, ("RTS", "RTS"))
    near, far, states, events, told = pair("SEND", "completion=LOC_QP_OP_ERR qp=1")
    tap.equal(near[1], QP_OP)


def test_the_same_seed_gives_the_same_run():
    runs = [pair("SEND", f"completion=LOC_QP_OP_ERR percent=40 seed={seed}")[0] for seed in (7, 7, 8, 9, 10, 11)]
    tap.equal(runs[0], runs[1])
    assert any(run != runs[0] for run in runs[2:]), runs


def connect(attempts, how, *faults):
    """Events of the client; of the server; what was told."""
    code, lines, told = run(str(attempts), how, faults=faults, program=CONNECTOR)
    tap.equal(code, 0, told)
    return *([line.split(maxsplit=1)[1] for line in lines if line.startswith(who)] for who in ("client", "server")), told


RESOLVED = ["ADDR_RESOLVED 0", "ROUTE_RESOLVED 0"]
CONNECTED = [*RESOLVED, "ESTABLISHED 0", "DISCONNECTED 0"]
SERVED = ["CONNECT_REQUEST 0", "ESTABLISHED 0", "DISCONNECTED 0"]


def without_timewait(events):
    return [event for event in events if event != "TIMEWAIT_EXIT 0"]


def test_addresses_and_routes_are_not_resolved():
    client, server, told = connect(3, "leave", "cm=ADDR_ERROR n=2", "cm=ROUTE_ERROR n=2 errno=ENETUNREACH")
    tap.equal(client, [*CONNECTED, f"ADDR_ERROR {-errno.ETIMEDOUT}", "ADDR_RESOLVED 0", f"ROUTE_ERROR {-errno.ENETUNREACH}"])
    tap.equal(without_timewait(server), SERVED)
    assert one_line(told, "rdma_resolve_addr").endswith("call 2 of rdma_resolve_addr ends with RDMA_CM_EVENT_ADDR_ERROR, status -ETIMEDOUT"), told


def test_a_request_is_rejected_with_a_reason():
    for side in "active", "passive":
        client, server, told = connect(2, "leave", f"cm=REJECTED n=1 side={side}")
        tap.equal((client, without_timewait(server)), ([*RESOLVED, "REJECTED 28", *CONNECTED], SERVED), side)
        client, server, told = connect(1, "leave", f"cm=REJECTED reason=stale_connection side={side}")
        tap.equal((client, server), ([*RESOLVED, "REJECTED 10"], []), side)
        assert "request (REQ) 1 ends with RDMA_CM_EVENT_REJECTED at its sender, reason 10 (STALE_CONNECTION)" in one_line(told, "' applied:"), told


def test_a_connection_is_ended_for_both():
    for fault in "cm=DISCONNECTED n=5", "cm=DISCONNECTED at=ibv_post_send qp=1 n=5", "cm=DISCONNECTED time=30ms exe=connector":
        client, server, told = connect(1, "wait", fault)
        tap.equal((client, without_timewait(server)), (CONNECTED, SERVED), fault)
    assert "disconnected, because the time that the fault names has passed" in told, told


def test_a_request_that_is_never_answered():
    if PATH != "ring":
        raise tap.Skip("takes as long as 16 tries of a REQ, and is the same on each path: only on ring")
    client, server, told = connect(2, "leave", "cm=UNREACHABLE")
    tap.equal((client, without_timewait(server)), ([*RESOLVED, f"UNREACHABLE {-errno.ETIMEDOUT}", *CONNECTED], SERVED))


class Running:
    """A victim that obeys, and softhca fault for it."""

    def __init__(self, *faults, kind="RC"):
        specs = [word for fault in faults for word in ("--fault", fault)]
        self.process = subprocess.Popen([SOFTHCA, "run", "--no-shim", *specs, "--", VICTIM, "obey", kind, *(["same"] if PATH == "same" else [])],
                                        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, self.pid, _, self.far = self.process.stdout.readline().split()
        self.count = self.atomics = 0
        self.status = ""

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def do(self, word):
        """What it says until the result."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        self.count += 1
        lines = []
        while not lines or not lines[-1].startswith(f"{word} {self.count} "):
            lines.append(self.process.stdout.readline().strip())
            assert lines[-1], self.process.communicate()
        self.atomics += word == "atomic"
        self.status = lines[0]
        return [" ".join(lines[-1].split()[2:]), *(line.split(maxsplit=1)[1] for line in lines[:-1])]

    def warm_up(self):
        """The quickest way is in use."""
        for _ in range(300):
            tap.equal(self.do("write")[0], "ok")
        for word in "read", "atomic":
            tap.equal(self.do(word)[0], "ok")

    def qp(self, pid=None, number=0):
        """What softhca ps says of a QP: the near end's, or the far one's (1), which in one process is the second."""
        shown = subprocess.run([SOFTHCA, "ps", "--json", pid or self.pid], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        found = [entry for process in json.loads(shown.stdout)["processes"] for entry in process["objects"] if entry["kind"] == "QP"]
        return sorted(found, key=lambda entry: entry["number"])[number if PATH == "same" else 0]

    def fault(self, *arguments, pid=None):
        result = subprocess.run([SOFTHCA, "fault", pid or self.pid, *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout.splitlines(), result.stderr

    def end(self):
        told = self.process.communicate(timeout=60)[1]
        tap.equal(self.process.returncode, 0, told)
        return told


def test_a_limit_that_strikes_at_its_first_use_is_counted_once():
    with Running() as running:
        tap.equal(running.fault("limit=max_mr value=0"), (0, [], ""))
        assert running.do("register")[0] != "ok"
        tap.equal(running.fault(), (0, ["'limit=max_mr value=0': applied 1 times; matched 1 times"], ""))
        running.end()


def test_faults_are_loaded_into_a_running_process_and_removed():
    with Running() as running:
        for word in "write", "send", "register":
            tap.equal(running.do(word)[0], "ok")
        tap.equal(running.fault(), (0, [], ""))
        tap.equal(running.fault("call=ibv_post_send errno=ENOMEM n=2", "call=ibv_reg_mr errno=EIO count=all"), (0, [], ""))
        tap.equal([running.do(word)[0] for word in ("write", "write", "send", "register")], ["ok", "ENOMEM", "ok", "EIO"])
        tap.equal(running.fault("call=ibv_post_send errno=EINVAL n=2"), (0, [], ""))  # beside the others
        tap.equal([running.do(word)[0] for word in ("send", "send", "send", "register")], ["ok", "EINVAL", "ok", "EIO"])
        counts = ["'call=ibv_post_send errno=ENOMEM n=2': applied 1 times; matched 6 times",
                  "'call=ibv_reg_mr errno=EIO count=all': applied 2 times; matched 2 times",
                  "'call=ibv_post_send errno=EINVAL n=2': applied 1 times; matched 3 times"]
        tap.equal(running.fault(), (0, counts, ""))
        tap.equal(running.fault("--clear"), (0, counts, ""))
        tap.equal(running.fault("--clear"), (0, [], ""))
        tap.equal([running.do(word)[0] for word in ("write", "send", "register")], ["ok", "ok", "ok"])
        told = running.end()
    tap.equal(len([line for line in told.splitlines() if "' applied: call" in line]), 4, told)
    assert "was never applied" not in told, told


def test_a_completion_of_a_running_process_fails():
    with Running() as running:
        for _ in range(300):  # so that the quickest way is in use
            tap.equal(running.do("write")[0], "ok")
        tap.equal(running.fault("completion=REM_ACCESS_ERR opcode=RDMA_WRITE n=2")[0], 0)
        tap.equal([running.do("write")[1].split()[-1] for _ in range(3)], [str(OK), str(REM_ACCESS), str(FLUSHED)])
        assert "caused by an injected fault" in running.end()


def test_clear_brings_a_port_up():
    with Running() as running:
        tap.equal(running.do("write"), ["ok", "wr 1 status 0"])
        tap.equal(running.fault("event=port_down at=ibv_reg_mr")[0], 0)
        tap.equal((running.do("port"), running.do("register"), running.do("port")), (["ok", "port ACTIVE"], ["ok"], ["ok", "port DOWN"]))
        tap.equal(running.fault("--clear"), (0, ["'event=port_down at=ibv_reg_mr': applied 1 times; matched 1 times"], ""))
        tap.equal(running.do("port"), ["ok", "port ACTIVE"])
        tap.equal(running.do("write"), ["ok", "wr 6 status 0"])
        running.end()


def test_a_completion_that_is_held_back_or_withheld_is_named():
    for fault, key, words in (("completion=delayed time=5min", "held_completions", "held back by an injected fault"),
                              ("completion=never", "withheld_completions", "without a completion (completion=never)")):
        with Running() as running:
            running.warm_up()
            running.fault(fault)
            running.process.stdin.write("write\n")
            running.process.stdin.flush()
            while not running.qp()[key]:  # it is posted
                pass
            tap.equal((running.qp()[key], running.qp()["outstanding_sends"]), (1, 0), fault)
            why = subprocess.run([SOFTHCA, "why", running.pid], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
            assert words in why.stdout, (fault, why)


# On one host the QP leaves direct execution, at both ends, and the machine of a lossy link makes good what is lost.
REQUESTS = "write", "send", "read", "atomic"
ON_HOST = PATH != "wire"


def test_a_lost_packet_of_a_running_process_is_sent_again():
    for which in "requests", "responses":
        with Running() as running:
            running.warm_up()
            pid = running.pid if which == "requests" else running.far
            tap.equal(running.fault(f"packet=drop of={which} n=1 every=2", pid=pid), (0, [], ""))
            for word in REQUESTS:
                tap.equal(running.do(word)[0], "ok")
                assert running.status.endswith("status 0"), (which, word, running.status)
            near = running.qp()
            assert near["retransmissions"] >= len(REQUESTS), (which, near)
            if ON_HOST:
                tap.equal((near["path"], "injected faults" in near["not_mapped_because"]), ("self" if PATH == "same" else "ring", True))
            running.end()


def test_when_nothing_of_a_running_process_arrives_the_retries_end():
    for word in REQUESTS:
        with Running() as running:
            running.warm_up()
            running.fault("packet=drop of=requests count=all")
            assert running.do(word)[1].endswith(f"status {RETRY}"), word
            assert running.qp()["ack_timeouts"] == 8 and "caused by an injected fault" in running.end(), word


def test_what_comes_twice_or_broken_is_executed_once():
    for fault in "packet=duplicate count=all", "packet=corrupt percent=30 seed=3", "packet=delay time=3ms every=2", "packet=mark count=all":
        with Running() as running:
            running.warm_up()
            running.fault(fault)
            for _ in range(4):
                for word in *REQUESTS, "burst":
                    assert running.do(word)[1].endswith("status 0"), (fault, word)
            tap.equal(running.do("sum")[2], f"sum {running.atomics}")
            if fault.startswith("packet=duplicate"):
                assert running.qp(running.far, 1)["duplicate_requests"] >= 16, fault
            running.end()


def test_a_gap_is_answered_by_a_nak():
    with Running() as running:
        running.warm_up()
        running.fault("packet=reorder by=1 of=requests every=4 time=5min")
        for _ in range(4):
            assert running.do("burst")[1].endswith("status 0")
        near, far = running.qp(), running.qp(running.far, 1)
        assert near["sequence_naks_received"] and near["retransmissions"] and far["duplicate_requests"] + far["dropped_requests"], (near, far)
        running.end()


def test_a_receiver_that_is_not_ready_says_so_over_a_lossy_path():
    with Running() as running:
        running.fault("packet=drop every=5")
        for _ in range(8):  # all that the peer has posted
            assert running.do("send")[1].endswith("status 0")
        assert running.do("send")[1].endswith(f"status {RNR}")  # rnr_retry is 0
        assert running.qp()["rnr_naks_received"] == 1
        running.end()


def test_clear_lets_a_qp_return():
    if not ON_HOST:
        raise tap.Skip("a QP on the network stays there")
    with Running() as running:
        running.warm_up()
        before = running.qp()
        running.fault("packet=drop of=requests every=2")
        running.do("write")
        assert running.qp()["path"] in ("ring", "self") and "not_mapped_because" in running.qp()
        running.fault("--clear")
        running.warm_up()
        running.do("send")  # the far end hears that nothing gets lost any more
        after, far = running.qp(), running.qp(running.far, 1)
        tap.equal((after["path"], after.get("not_mapped_because")), (before["path"], before.get("not_mapped_because")))
        assert "injected" not in far.get("not_mapped_because", ""), far
        running.end()


# What is lost is lost (IBA 9.8.2.2): no retry, no error, and later messages arrive.
def test_a_lost_message_of_UC_is_lost():
    with Running(kind="UC") as running:
        tap.equal(running.do("message"), ["ok", "wr 1 status 0"])
        running.fault("packet=drop of=requests n=2")
        for i in 2, 3, 4:
            tap.equal(running.do("message"), ["ok", f"wr {i} status 0"])
        tap.equal(running.do("last"), ["ok", "wr 0 status 0", *(f"message {i} status 0" for i in (1, 2, 4, 0)), "state RTS", "state RTS"])
        running.fault("--clear")
        running.fault("packet=drop of=requests count=all")
        for i in 6, 7:
            tap.equal(running.do("message"), ["ok", f"wr {i} status 0"])
        near = running.qp()
        if ON_HOST:
            tap.equal((near["path"], "injected faults" in near["not_mapped_because"]), ("self" if PATH == "same" else "ring", True))
        running.fault("--clear")
        tap.equal(running.do("last"), ["ok", "wr 0 status 0", "message 0 status 0", "state RTS", "state RTS"])
        tap.equal((near["retransmissions"], near["ack_timeouts"]), (0, 0))
        running.end()


def test_a_lost_packet_of_XRC_is_sent_again():
    for which in "requests", "responses":
        with Running(kind="XRC") as running:
            running.do("message")
            pid = running.pid if which == "requests" else running.far
            tap.equal(running.fault(f"packet=drop of={which} n=1 every=2", pid=pid), (0, [], ""))
            for word in "write", "read", "atomic", "message":
                assert running.do(word)[1].endswith("status 0"), (which, word, running.status)
            tap.equal(running.do("last")[2:], [*(f"message {i} status 0" for i in (1, 5, 0)), "state RTS", "state RTS"])
            tap.equal(running.do("sum")[2], f"sum {running.atomics}")
            near = running.qp()
            assert near["retransmissions"] >= 4, (which, near)
            if ON_HOST:
                assert "injected faults" in near["not_mapped_because"], near
            running.end()


def test_when_nothing_of_XRC_arrives_the_retries_end():
    for word in "write", "read", "atomic", "message":
        with Running(kind="XRC") as running:
            running.do("write")
            running.fault("packet=drop of=requests count=all")
            tap.equal(running.do(word), ["ok", f"wr 2 status {RETRY}"])
            near = running.qp()
            tap.equal((near["state"], near["ack_timeouts"], running.qp(running.far, 1)["state"]), ("ERR", 8, "RTS"))
            assert "caused by an injected fault" in running.end(), word


def test_what_cannot_be_loaded_is_refused_and_changes_nothing():
    with Running("call=ibv_create_flow errno=EIO") as running:
        for specs, part in (["call=ibv_regmr errno=EIO"], "the nearest is 'ibv_reg_mr'"), (["packet=drop exe=other"], "names another program"), \
                           (["call=ibv_reg_mr errno=EIO", "call=ibv_reg_mr errno=EIO pid=1"], "names another program or process"), \
                           (["call=ibv_reg_mr errno=EIO"] * 32, "32 faults are loaded"), (["--clear", "event=qp_fatal"], "takes no fault"):
            code, lines, told = running.fault(*specs)
            assert code != 0 and not lines and part in told, (specs, code, lines, told)
        tap.equal(running.fault(), (0, ["'call=ibv_create_flow errno=EIO': applied 0 times; matched 0 times"], ""))
        code, lines, told = running.fault(pid=str(os.getpid()))
        assert code == 1 and told.startswith(f"softhca: process {os.getpid()}: "), told
        tap.equal(running.do("register"), ["ok"])
        assert "was never applied" in running.end()


def test_json_tells_the_same():
    code, lines, told = run("pair", "SEND", *(["same"] if PATH == "same" else []), faults=["completion=LOC_QP_OP_ERR n=2"],
                            options=["--explain", "json"])
    tap.equal(code, 0, told)
    found = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    applied = [entry for entry in found if entry["explanation"] == "injected" and entry["applied"]]
    tap.equal([(entry["fault"], entry["match"], entry["wr_id"]) for entry in applied], [("completion=LOC_QP_OP_ERR n=2", 2, 2)])
    assert [entry["fault"]["injected"] for entry in found if entry["explanation"] == "fault"] == [True], told
    for fault in "event=port_down n=2", "packet=drop of=requests count=all qp=1":
        code, lines, told = run("pair", "SEND", *(["same"] if PATH == "same" else []), faults=[fault], options=["--explain", "json"])
        found = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        assert [entry["fault"]["injected"] for entry in found if entry["explanation"] == "fault"] == [True], told


def test_a_file_has_a_fault_on_each_line():
    with tempfile.NamedTemporaryFile("w", suffix=".faults") as file:
        file.write("# the first registration\ncall=ibv_reg_mr errno=ENOMEM n=2\n\ncall=ibv_alloc_pd errno=EIO n=2 # and this\n")
        file.flush()
        lines, told = meet("calls", faults=["@" + file.name])
    tap.equal([line for line in lines if not line.endswith(" ok")], ["ibv_alloc_pd 1 EIO", "ibv_reg_mr 1 ENOMEM"])


def test_what_cannot_be_meant_is_refused_before_the_program_runs():
    for fault, part in (("call=ibv_regmr errno=ENOMEM", "the nearest is 'ibv_reg_mr'"),
                        ("completion=RNR_RETRY_EXC_ERR opcode=RDMA_READ", "cannot end with RNR_RETRY_EXC_ERR"),
                        ("completion=REM_OP_ERR", "comes from the peer"),
                        ("completion=RETRY_EXC_ERR side=receive", "no receive can end"), ("event=qp_fatal at=ibv_reg_mr", "happens to a QP"), ("packet=drop of=request", "nearest is 'requests'"), ("event=qp_fatl", "nearest is 'qp_fatal'"), ("cm=REJECTED reason=stale_conection", "nearest is 'STALE_CONNECTION'"), ("packet=delay", "needs 'time', for example 'time=5ms'"), ("completion=delayed", "needs 'time', for example 'time=5ms'"), ("completion=never time=1s", "'time' has no meaning with 'completion=never'"), ("packet=delay time=5", "not a time"),
                        ("packet=drop by=3", "'by' has no meaning with 'packet=drop'"), ("packet=rate limit=10Mbit n=3", "'n' has no meaning"), ("@/none", "cannot read /none")):
        code, lines, told = run("calls", faults=[fault])
        tap.equal((code, lines), (125, []), fault)
        assert part in told, told


module = sys.modules[__name__]
for name in [name for name in vars(module) if name.startswith("test_") and CHOSEN and name not in CHOSEN]:
    delattr(module, name)
tap.main(module)
