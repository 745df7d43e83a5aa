#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca ps and softhca why on processes that are stuck, stopped, hidden or hostile.

usage: test_outside.py SITUATIONS SOFTHCA SITUATIONS_CM
"""

import array
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402
from test_explain import PATIENCE, SITUATIONS_CM, SOFTHCA, Situation, functions, matches  # noqa: E402

SEGMENT_REQUEST = struct.Struct("=IHHI52x")
SEGMENT_REQUEST_MAGIC, SEGMENT_GRANTED = 0x41434853, 1
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4


def softhca(*arguments, status=0, command=(), **kwargs):
    result = subprocess.run([*command, SOFTHCA, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, timeout=PATIENCE, **kwargs)
    tap.equal(result.returncode, status, result.stdout + result.stderr)
    return result.stdout if status == 0 else result.stderr + result.stdout


def why(pid, *what, **kwargs):
    """The first line of what is said."""
    return softhca("why", pid, *what, **kwargs).splitlines()[0]


def eventually(pattern, pid, *what, **kwargs):
    """What is looked at moves: between two retries, for one, nothing waits for a timer."""
    until = time.monotonic() + PATIENCE
    while True:
        text = why(pid, *what, **kwargs)
        if re.search(pattern, text):
            return
        if time.monotonic() > until:
            matches(pattern, text)


def why_json(pid, *what, **kwargs):
    return [json.loads(line) for line in softhca("why", "--json", pid, *what, **kwargs).splitlines()]


def processes(**kwargs):
    return json.loads(softhca("ps", "--json", **kwargs))["processes"]


# --- stuck


def test_a_process_that_hangs_in_destroy_qp():
    with Situation("unacknowledged-event") as situation:
        qpn = situation.until_it_hangs()
        situation.next_explanation()  # so it waits for sure
        cause = fr"^ibv_destroy_qp\(QP 0x{qpn:06x}\) is blocked: IBV_EVENT_QP_LAST_WQE_REACHED was read and not acknowledged"
        matches(cause, why(situation.pid))
        matches(cause, why(situation.pid, f"qp:{qpn:#x}"))
        told, = why_json(situation.pid)
        assert "read_event" in functions(told["event"]["stack"]), told
        assert "unacknowledged_event" in functions(told["destroy"]["stack"]), told
        tap.equal(told["object"]["destroy_waits"], True)
        situation.end()


def test_one_that_was_started_without_explanations():
    with Situation("wrong-cq-acknowledged", None) as situation:
        situation.until_it_hangs()
        eventually("is blocked: ", situation.pid)  # it is about to
        told, = why_json(situation.pid)
        matches(r"is blocked: 1 completion event was read and not acknowledged .*acknowledged there$",
                told["cause"])
        tap.equal(told["event"]["thread"], situation.pid)  # threads and times are known, stacks are not
        assert "stack" not in told["event"], told
        situation.end()


def test_one_that_is_stopped():
    with Situation("own-event") as situation:
        situation.until_it_hangs()
        situation.next_explanation()
        os.kill(situation.pid, signal.SIGSTOP)
        matches(r"the thread that read it is the one that is blocked, so only another thread can acknowledge it$", why(situation.pid))
        os.kill(situation.pid, signal.SIGCONT)
        situation.end()


def test_one_that_hangs_in_rdma_destroy_id():
    with Situation("kept-event", program=SITUATIONS_CM) as situation:
        situation.until_it_hangs()
        situation.next_explanation()
        matches(r"^rdma_destroy_id\(cm_id \d+ from 127.0.0.1 port \d+ to 127.0.0.1 port \d+\) is blocked: "
                r"RDMA_CM_EVENT_DISCONNECTED was read and not acknowledged", why(situation.pid))
        text = softhca("ps", situation.pid)
        matches(r"cm_id \d+ from 127.0.0.1 port \d+: listening", text)
        matches(r"cm_id \d+ from .*: disconnected, 1 event read and not acknowledged, destroy is blocked", text)
        situation.end()


def test_nothing_is_stuck():
    with Situation("all-well") as situation:
        situation.until_it_hangs()
        matches(r"^idle: ", why(situation.pid))
        situation.end()


def test_a_qp_that_is_open_more_than_once():
    with Situation("xrc-qp-opened") as situation:
        situation.until_it_hangs()
        text = softhca("ps", situation.pid)
        matches(r"QP (0x[0-9a-f]{6}): XRC_RECV, RESET.*, 1 more handle from ibv_open_qp\(\); the process that created it has destroyed its handle", text)
        matches(r"QP (0x[0-9a-f]{6}): XRC_RECV, a handle from ibv_open_qp\(\)", text)
        situation.end()


# --- why a completion has not come


def test_receiver_not_ready():
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        eventually(fr"^wr_id 256 \(0x100\), SEND of QP 0x{qpn:06x}, was sent .* ago and is not acknowledged yet: QP 0x[0-9a-f]+ "
                   r"has no receive posted \(RNR\); rnr_retry is 7 \(unlimited\), \d+ RNR NAKs so far; that QP is in RTS with 0 receives posted$",
                   situation.pid, "0x100")
        told, = why_json(situation.pid, "0x101")
        tap.equal(told["places_total"], 1)
        place = told["places"][0]
        behind = re.search(r"queued behind (\d+) other", place["text"])
        tap.equal(place["opcode"], "RDMA WRITE")
        # It is begun with each retry.
        tap.equal(place["ahead"], {"in_flight": 1, "queued": int(behind[1]) if behind else 0}[place["phase"]], place)
        eventually(fr"^QP 0x{qpn:06x}: 2 outstanding sends, the oldest for .*: QP 0x[0-9a-f]+ has no receive posted",
                   situation.pid)
        situation.end()


def test_behind_a_fence():
    with Situation("fence") as situation:
        situation.until_it_hangs()
        matches(r"^wr_id 513 \(0x201\), RDMA WRITE .* has not been sent: fenced: waits for 1 earlier RDMA READ or atomic$", why(situation.pid, "0x201"))
        matches(r"^wr_id 514 \(0x202\), RDMA WRITE .* has not been sent: queued behind 1 other, first "
                r"wr_id 513 \(0x201\): fenced: waits for", why(situation.pid, "0x202"))
        matches(r"^wr_id 512 \(0x200\), RDMA READ .* waits for the response of QP 0x[0-9a-f]+ of process \d+, which is "
                r"stopped", why(situation.pid, "0x200"))
        situation.end()


def test_read_depth():
    with Situation("read-depth") as situation:
        situation.until_it_hangs()
        matches(r"has not been sent: 4 RDMA READs and atomics are in flight, and max_rd_atomic is 4$",
                why(situation.pid, "0x204"))
        situation.end()


def test_acknowledgement_of_a_stopped_peer():
    with Situation("stopped-peer") as situation:
        situation.until_it_hangs()
        matches(r"^wr_id 256 \(0x100\), SEND of QP .* waits for the acknowledgement of QP 0x[0-9a-f]+ of process \d+, which "
                r"is stopped; that QP is in RTS with \d+ receives? posted$", why(situation.pid, "0x100"))
        matches(r", to QP 0x[0-9a-f]+ of process \d+ \(path: shared-memory ring, peer's memory not mapped: this process does not map memory of peers, "
                r"and messages are copied instead \(softhca doctor has the reason\)\)", softhca("ps", situation.pid))
        situation.end()


def test_a_peer_whose_memory_is_read():
    # As far as this machine allows; and of a connection that is not mapped, it says why.
    for local, reasons in (("cma", "this process does not map memory"),
                           ("mapped", "no permission to read|the peer process does not share|no MR of the peer that was accessed")):
        with Situation("stopped-peer", SOFTHCA_LOCAL=local) as situation:
            situation.until_it_hangs()
            matches(rf", to QP 0x[0-9a-f]+ of process \d+ \(path: (mapped memory|(shared-memory ring|kernel copy), peer's memory not mapped: ({reasons})[^)]*)\)",
                    softhca("ps", situation.pid))
            situation.end()


def test_peer_gone():
    with Situation("dead-peer") as situation:
        situation.until_it_hangs()
        eventually(r"is not acknowledged yet: peer process \d+ has ended; local ACK timeout is 0: it waits forever for an answer that is lost$",
                   situation.pid, "0x100")  # the news is on its way
        situation.end()


def test_nobody_there():
    with Situation("nobody-there") as situation:
        situation.until_it_hangs()
        eventually("no process of this host owns QP", situation.pid, "0x100")  # it is looked up
        situation.end()


def test_send_queue_drained():
    with Situation("sqd") as situation:
        situation.until_it_hangs()
        matches(r"has not been sent: the QP is in SQD \(for [\d.]+ m?s: ibv_modify_qp\(\) by thread \d+ \(situations\)\): no new work request is started$", why(situation.pid, "0x100"))
        situation.end()


def test_posted_unsignaled_and_polled_and_unpolled():
    with Situation("unsignaled") as situation:
        qpn = situation.until_it_hangs()
        eventually("has completed with IBV_WC_SUCCESS; its completion is in CQ 0, not polled yet", situation.pid, "0x302")
        matches(r"has completed successfully, unsignaled: no completion is generated", why(situation.pid, "0x300"))
        matches(r"has completed with IBV_WC_SUCCESS; its completion was polled from CQ 0$", why(situation.pid, "0x301"))
        matches(r"a receive of QP 0x[0-9a-f]+, was posted .* ago and waits for a message, behind 1 other",
                why(situation.pid, "0x401", f"--qp={qpn:#x}"))
        matches(r"^wr_id 48879 \(0xbeef\) was not found", why(situation.pid, "0xbeef", status=1))
        situation.end()


def test_flushed_and_unpolled_and_lost():
    with Situation("overrun") as situation:
        situation.until_it_hangs()
        matches(r"has completed with IBV_WC_WR_FLUSH_ERR; its completion is in CQ 0, not polled yet, behind 1 other; "
            r"the QP went to ERR( \S+ \S+ ago)?: ibv_modify_qp\(IBV_QPS_ERR\) by thread \d+",
                why(situation.pid, "0x701"))
        matches(r"has completed, but the completion was lost: CQ 0 was full", why(situation.pid, "0x703"))
        matches(r"^CQ 0 overrun", why(situation.pid))
        situation.end()


def test_receive_taken_from_an_srq():
    with Situation("lost-srq-receive") as situation:
        situation.until_it_hangs()
        matches(r"was taken from SRQ 0 for a message that has not arrived completely$", why(situation.pid, "0x51"))
        situation.end()


# --- the same over the network, where nothing is known of the other end but what it answers


def over_the_network(name, **more):
    return Situation(name, command=started.own_network(), SOFTHCA_PATH="wire", **more)


def test_over_the_network_receiver_not_ready():
    with over_the_network("no-receive") as situation:
        qpn = situation.until_it_hangs()
        cause = r"QP 0x[0-9a-f]+ at \S+ answers RNR NAK \(it has no receive posted, or is a NIC that resolves a page fault of an on-demand MR\); rnr_retry is 7 \(unlimited\), \d+ RNR NAKs so far"
        eventually(fr"^wr_id 256 \(0x100\), SEND of QP 0x{qpn:06x}, was sent .* ago and is not acknowledged yet: {cause}$",
                   situation.pid, "0x100")
        eventually(fr"^QP 0x{qpn:06x}: 2 outstanding sends, the oldest for .*: {cause}; last packet from the peer .* ago$",
                   situation.pid)
        matches(fr"QP 0x{qpn:06x}: RC, RTS, 2 sends .* outstanding, to QP 0x[0-9a-f]+ at \S+ \(path: network\)",
                softhca("ps", situation.pid))
        listed, = json.loads(softhca("ps", "--json", situation.pid))["processes"]
        qp = next(thing for thing in listed["objects"] if thing.get("qpn") == qpn)
        tap.equal(qp["path"], "wire")
        assert qp["rnr_naks_received"] > 0, qp
        matches(fr"QP 0x{qpn:06x}: .*; .*RNR NAKs received: \d+", softhca("ps", situation.pid))
        matches(r"network: \d+ packets \(\d+ bytes\) sent, \d+ \(\d+ bytes\) received\n", softhca("ps", situation.pid))
        assert listed["network"]["packets_sent"] > 0 and listed["network"]["bad_icrc"] == 0, listed["network"]
        situation.end()


def test_over_the_network_nobody_acknowledges():
    for name in ("stopped-peer", "dead-peer"):  # which of them, only the other host could tell
        with over_the_network(name) as situation:
            situation.until_it_hangs()
            eventually(r"^wr_id 256 \(0x100\), SEND of QP .* was sent .* ago and waits for the acknowledgement of QP 0x[0-9a-f]+ "
                       r"at \S+; local ACK timeout is 0: it waits forever for an answer that is lost; last packet from the peer .* ago$", situation.pid, "0x100")
            eventually(r"^QP .*: 1 outstanding send for .*: sent, waiting for the acknowledgement of QP 0x[0-9a-f]+ at ", situation.pid)
            situation.end()


def test_over_the_network_behind_reads():
    with over_the_network("fence") as situation:
        situation.until_it_hangs()
        eventually(r"^wr_id 513 \(0x201\), RDMA WRITE .* has not been sent: fenced: waits for 1 earlier RDMA READ or atomic$", situation.pid, "0x201")
        eventually(r"^wr_id 512 \(0x200\), RDMA READ .* waits for the response of QP 0x[0-9a-f]+ at ", situation.pid, "0x200")
        situation.end()
    with over_the_network("read-depth") as situation:
        situation.until_it_hangs()
        eventually(r"has not been sent: .*(4 RDMA READs and atomics are in flight, and max_rd_atomic is 4|"
                   r"the congestion window \(packets that may be unacknowledged\) is full: waiting for acknowledgements from QP .* it waits for ever)", situation.pid, "0x204")
        situation.end()


def test_over_the_network_what_ended():
    with over_the_network("unsignaled") as situation:
        situation.until_it_hangs()
        eventually("has completed with IBV_WC_SUCCESS; its completion is in CQ 0, not polled yet", situation.pid, "0x302")
        matches(r"has completed successfully, unsignaled", why(situation.pid, "0x300"))
        matches(r"its completion was polled from CQ 0$", why(situation.pid, "0x301"))
        situation.end()
    with over_the_network("lost-srq-receive") as situation:
        situation.until_it_hangs()
        matches(r"was taken from SRQ 0 for a message that has not arrived completely$", why(situation.pid, "0x51"))
        situation.end()


# --- objects


def test_holders_from_outside():
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        tap.equal(why(situation.pid, "cq:0"), "CQ 0 is used by 2 QPs")
        tap.equal(why(situation.pid, "pd:0"), "PD 0 is used by 1 MR and 2 QPs")
        told, = why_json(situation.pid, f"qp:{qpn}")
        tap.equal((told["object"]["qpn"], told["used_by_total"]), (qpn, 0))
        matches(r"has no cq:77", softhca("why", situation.pid, "cq:77", status=1))
        matches(r"has no ind_table:0", softhca("why", situation.pid, "ind_table:0", status=1))
        matches(r"neither a wr_id nor an object.* ind_table, .*flows and counters cannot be asked for", softhca("why", situation.pid, "flow:1", status=2))
        situation.end()


def test_ps_lists_everything():
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        mine = [one for one in processes() if one["pid"] == situation.pid]
        tap.equal(len(mine), 1)
        kinds = [thing["kind"] for thing in mine[0]["objects"]]
        tap.equal(sorted(kinds), ["CQ", "MR", "PD", "QP", "QP", "context"])
        tap.equal((mine[0]["program"], mine[0]["uid"], mine[0]["explains"]), ("situations", os.geteuid(), True))
        qp = next(thing for thing in mine[0]["objects"] if thing.get("qpn") == qpn)
        tap.equal((qp["outstanding_sends"], qp["state"], qp["path"]), (2, "RTS", "self"))
        text = softhca("ps", situation.pid)
        matches(fr"QP 0x{qpn:06x}: RC, RTS, 2 sends .*, to QP 0x[0-9a-f]+ of process {situation.pid} \(path: same process\)", text)
        matches(fr"^{situation.pid} situations, uid \d+, up .*: 1 PD, 1 MR, 1 CQ and 2 QPs", text)
        matches(r"used by QP 0x[0-9a-f]+, QP 0x", text)
        situation.end()


def test_no_such_process():
    matches(r"it does not use SoftHCA", softhca("why", os.getpid(), status=1))
    matches(r"there is no such process", softhca("why", 2**22 + 1, status=1))
    matches(r"not a PID, nor @ and the four hex digits", softhca("why", "self", status=1))
    matches(r"there is no such process", softhca("ps", 2**22 + 1, status=1))


def test_a_process_that_is_killed_while_it_is_looked_at():
    for number in range(12):
        with Situation("no-receive") as situation:
            if number % 3:  # else it is killed on its way there
                situation.until_it_hangs()
            looks = [subprocess.Popen([SOFTHCA, *what], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
                     for what in (["why", "--json", str(situation.pid)], ["why", "--json", str(situation.pid), "0x100"],
                                  ["ps", "--json", str(situation.pid)], ["ps", "--json"])]
            situation.process.kill()
            for look in looks:
                told, complaint = look.communicate(timeout=PATIENCE)
                assert look.returncode in (0, 1), (look.args, look.returncode, complaint)
                for line in told.splitlines():
                    json.loads(line)


# --- where /proc does not help


def in_other_pids(users=False):
    """A command in front that runs the rest where our processes have no numbers; users: and in a user namespace of its own."""
    command = ["unshare", *(["--user", "--map-current-user"] if users else []), "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        raise tap.Skip("no pid namespace of our own is to be had")
    return command


def test_across_pid_namespaces():
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 11):
        raise tap.Skip("before Linux 6.11 the user namespace of the process that asks is not known")
    command = in_other_pids()
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        hidden = [one for one in processes(command=command)
                  if one.get("pid_in_namespace") == situation.pid and not one["pid_visible"]]
        tap.equal(len(hidden), 1)
        eventually(r"is not acknowledged yet: QP 0x[0-9a-f]+ has no receive posted", f"@{qpn >> 8:x}", "0x100", command=command)
        situation.end()


def test_another_user_namespace_sees_nothing():
    """There the same user has all capabilities, and here he has none by that."""
    command = in_other_pids(users=True)
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        matches(r"it cannot verify that softhca may ptrace it", softhca("why", f"@{qpn >> 8:x}", command=command, status=1))
        situation.end()


def test_fewer_capabilities_see_nothing():
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if os.geteuid() != 0:
        raise tap.Skip("an ordinary user has no capabilities to lose")
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        raise tap.Skip("setpriv cannot take capabilities away here")
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        matches(r"is not dumpable|cannot verify that softhca may ptrace it|belongs to uid", softhca("why", situation.pid, command=command, status=1))
        matches(r"it cannot verify that softhca may ptrace it", softhca("why", f"@{qpn >> 8:x}", command=command, status=1))
        situation.end()


def test_a_stopped_process_across_pid_namespaces_says_so():
    command = in_other_pids(users=os.geteuid() != 0)
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        os.kill(situation.pid, signal.SIGSTOP)
        matches(r"no answer within the timeout: the process may be stopped", softhca("why", f"@{qpn >> 8:x}", command=command, status=1))
        os.kill(situation.pid, signal.SIGCONT)
        situation.end()


def test_one_counter_has_one_name():
    same = {"dest_qpn", "outstanding_sends", "outstanding_receives", "retransmissions", "sequence_naks_received", "rnr_naks_received",
            "ack_timeouts", "probes", "congestion_notifications", "duplicate_requests", "dropped_requests"}
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        listed, = json.loads(softhca("ps", "--json", situation.pid))["processes"]
        counted, = [one for one in json.loads(softhca("stats", "--json"))["processes"] if one["pid"] == situation.pid]
        qps = [one for one in listed["objects"] + counted["qps"] if one.get("qpn") == qpn]
        tap.equal([same - one.keys() for one in qps], [set(), set()])
        situation.end()


def test_another_user_sees_nothing():
    if os.geteuid() != 0:
        raise tap.Skip("takes two users")
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    if subprocess.run([*command, SOFTHCA, "--version"], capture_output=True).returncode != 0:
        raise tap.Skip("another user cannot run build/softhca here")
    with Situation("no-receive") as situation:
        situation.until_it_hangs()
        matches(r"it belongs to uid \d+: run softhca as that user, or as root", softhca("why", situation.pid, command=command, status=1))
        text = softhca("ps", command=command)
        assert "RTS" not in text, text
        situation.end()


# --- hostile


class Impostor:
    """Holds a name of a block of QP numbers, and shows whatever it likes to whoever looks."""

    def __init__(self, content, seals=F_SEAL_SHRINK | F_SEAL_GROW, files=()):
        self.content, self.seals, self.files = content, seals, files
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while True:
            self.block = random.randrange(1, 0x8000)  # above, 32 blocks have one name
            try:
                self.listener.bind(f"\0softhca/2/qpn/{self.block:04x}")
                break
            except OSError:
                continue
        self.listener.listen(16)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def make(self):
        fd = os.memfd_create("softhca", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, self.content)
        os.ftruncate(fd, max(len(self.content), 4096))
        fcntl.fcntl(fd, F_ADD_SEALS, self.seals)
        return fd

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            try:
                self.answer(connection)
            except OSError:
                pass  # somebody else on this host, who expects a process here

    def answer(self, connection):
        with connection:
            connection.settimeout(10)
            if not connection.recv(64):
                return
            files = [os.dup(fd) for fd in self.files] or [self.make(), self.make()]
            try:
                connection.sendmsg([SEGMENT_REQUEST.pack(SEGMENT_REQUEST_MAGIC, 1, 4, SEGMENT_GRANTED)],
                                   [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            finally:
                for fd in files:
                    os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self.thread.join(PATIENCE)
        self.listener.close()


def test_garbage_instead_of_a_segment():
    for content in (b"", b"\0" * 8192, bytes(random.Random(1).randbytes(65536))):
        with Impostor(content) as impostor:
            matches(r"its published segment \(state that softhca reads\) is damaged", softhca("why", f"@{impostor.block:x}", status=1))
            softhca("ps")


def test_a_segment_that_could_be_cut_off_under_us():
    with Impostor(b"\0" * 8192, seals=0) as impostor:
        matches(r"its published segment \(state that softhca reads\) is not safe to read: not a memfd sealed against shrinking", softhca("why", f"@{impostor.block:x}", status=1))


def test_something_else_than_a_segment():
    for path in ("/dev/null", "/dev/zero", "/", __file__):
        fd = os.open(path, os.O_RDONLY)
        with Impostor(b"", files=[fd, fd]) as impostor:
            matches(r"its published segment \(state that softhca reads\) is not safe to read: not a memfd sealed against shrinking", softhca("why", f"@{impostor.block:x}", status=1))
        os.close(fd)


def published(pid):
    """The files of a real segment: tables, queues."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        found[os.readlink(f"/proc/{pid}/fd/{name}")] = f"/proc/{pid}/fd/{name}"
    return [os.open(found[f"/memfd:{name} (deleted)"], os.O_RDONLY) for name in ("softhca", "softhca-queues")]


def copies_of(sources, change):
    """Sealed memfds with the same content, and bytes changed in what is not empty."""
    first, second = sources
    return [copy_of(first, change), copy_of(second, lambda at, content: change(at + os.fstat(first).st_size, content))]


def close_all(files):
    for fd in files:
        os.close(fd)


def test_one_file_of_two():
    with Situation("no-receive") as situation:
        situation.until_it_hangs()
        sources = published(situation.pid)
        with Impostor(b"", files=sources[:1]) as impostor:
            matches(r"its published segment \(state that softhca reads\) is not safe to read", softhca("why", f"@{impostor.block:x}", status=1))
        close_all(sources)
        situation.end()


def copy_of(source, change):
    """One of them."""
    fd = os.memfd_create("softhca", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size = os.fstat(source).st_size
    os.ftruncate(fd, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            content = bytearray(os.pread(source, min(end - at, 1 << 16), at))
            change(at, content)
            at += os.pwrite(fd, content, at)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    return fd


def test_a_segment_that_lies():
    """A real one, with random bytes in it: whatever it says, the tool ends well."""
    dice = random.Random(int(os.environ.get("SOFTHCA_TEST_SEED", "7")))
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        sources = published(situation.pid)
        for number in range(40):
            def change(at, content, density=dice.choice([2, 20, 200])):
                for _ in range(len(content) // 4096 * density // 10 + 1):
                    place = dice.randrange(len(content))
                    if at + place >= 1024:  # the header has tests of its own
                        content[place] = dice.randrange(256)
            files = copies_of(sources, change)
            with Impostor(b"", files=files) as impostor:
                for what in ([], ["0x100"], [f"qp:{qpn}"], ["cq:0"], ["pd:0"], ["srq:0"], ["channel:0"]):
                    result = subprocess.run([SOFTHCA, "why", "--json", f"@{impostor.block:x}", *what],
                                            capture_output=True, text=True, timeout=PATIENCE)
                    assert result.returncode in (0, 1), (number, what, result)
                    for line in result.stdout.splitlines():
                        json.loads(line)
            close_all(files)
        close_all(sources)
        situation.end()


def test_a_header_that_lies():
    dice = random.Random(11)
    with Situation("all-well") as situation:
        situation.until_it_hangs()
        sources = published(situation.pid)
        for place in range(16, 512, 4):  # behind magic and version
            def change(at, content, place=place):
                if at == 0:
                    content[place:place + 4] = struct.pack("=I", dice.choice([0, 1, 0x7fffffff, 0xffffffff,
                                                                              dice.randrange(1 << 32)]))
            files = copies_of(sources, change)
            with Impostor(b"", files=files) as impostor:
                result = subprocess.run([SOFTHCA, "why", f"@{impostor.block:x}"], capture_output=True, text=True,
                                        timeout=PATIENCE)
                assert result.returncode in (0, 1), (place, result)
            close_all(files)
        close_all(sources)
        situation.end()


if __name__ == "__main__":
    tap.main(sys.modules[__name__])
