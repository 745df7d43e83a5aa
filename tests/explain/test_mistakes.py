#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What sent a QP to ERR (mistakes.c): both ends say the cause in their first line, on each path, on stderr and to
`softhca why`.

usage: test_mistakes.py MISTAKES SOFTHCA
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

MISTAKES, SOFTHCA = (os.path.abspath(path) for path in sys.argv[1:3])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 60

# A network namespace of its own, for other people's processes and for UDP port 4791.
ALONE = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]

PATHS = {
    "ring": {"SOFTHCA_LOCAL": "ring"},
    "cma": {"SOFTHCA_LOCAL": "cma"},
    "mapped": {"SOFTHCA_LOCAL": "mapped"},
    "wire": {"SOFTHCA_PATH": "wire"},
    "same": {},
}

QP = r"QP 0x[0-9a-f]{6}"
MR = r"the MR with lkey 0x[0-9a-f]{8} \(4096 bytes at 0x[0-9a-f]+\)"
REMOTE = MR.replace("lkey", "rkey")  # as the access named it
NEAR = r"wr_id 4711 \(0x1267\), "
WRITE = r"RDMA WRITE of (64|200) bytes to 0x[0-9a-f]+ with rkey 0x[0-9a-f]{8}"
READ = r"RDMA READ of 64 bytes from 0x[0-9a-f]+ with rkey 0x[0-9a-f]{8}"
ATOMIC = r"fetch and add of 8 bytes to 0x[0-9a-f]+ with rkey 0x[0-9a-f]{8}"
SGE = r", \d+ bytes at 0x[0-9a-f]+ with lkey 0x[0-9a-f]{8}: "
REFUSED = f"{QP} at 127.0.0.1 refused it "
WHICH = r"\. If the peer runs SoftHCA, run softhca why PID of its process on that host to see the cause$"
FLAG = {WRITE: "IBV_ACCESS_REMOTE_WRITE", READ: "IBV_ACCESS_REMOTE_READ", ATOMIC: "IBV_ACCESS_REMOTE_ATOMIC"}
# Only of a message that takes more than one packet at some path MTU.
MTU = r"or path_mtu of that QP is not \d+ bytes, which it is here" + WHICH
INVALID = REFUSED + r"\(invalid request\): probably "
SILENT = (fr"{QP} at 127.0.0.1 gave no answer in 3 tries, each of at least 4\.2 ms \(timeout code 10, retry_cnt 2\): check that dest_qp_num and the "
          r"GIDs are right at both ends, that the peer's process runs \(is not stopped, hung or ended\), that its QP is in RTR or RTS, and that the "
          "network lets UDP port 4791 through" + WHICH)

RNR = rf"{QP} at 127.0.0.1 answered RNR NAK \(it had no receive posted, or is a NIC that resolved a page fault of an on-demand MR\)"
IMMEDIATE = r"\(an RDMA WRITE with immediate takes a receive, as a SEND does\)$"

BY = r"by thread \d+ \(\S+\)"
SENDER = "SENDER"  # by path: over the network the packets do not say of which QP they are
REQUESTS = rf"\d+ requests? {SENDER}(, the last|,) [\d.]+ m?s ago"


class Mistake:
    """What both ends say behind "went to ERR: ". wire: what the near end says if it sees packets only; None: the same.
    silent: what `why` says of the far end's process, which has dropped the requests without an answer."""

    def __init__(self, near, far=None, wire=None, request="", first=NEAR, paths=tuple(PATHS), silent=None):
        self.silent = silent
        self.near, self.far, self.wire, self.paths = near and first + request + near, far, wire, paths
        self.wire = self.near if wire is None else wire and first + request + wire
        if self.far and request:
            self.far = f"incoming {request[:-2]} from {QP}.*: {far}"


def access(reason, request=WRITE):
    """The far end finds the mistake; the near end is told of it where it may look."""
    refused = (fr"{REFUSED}\(remote access error\): either no MR or bound MW there has this rkey \(a wrong value, an lkey, or it was "
               fr"deregistered, invalidated, bound again or never bound\), or it is of another PD than that QP, or it lacks {FLAG[request]}, or the range is not inside of it{WHICH}")
    return Mistake(reason, reason, refused, request + ": ")


EXPECTED = {
    "rkey-is-lkey": access(r"an lkey was given instead of an rkey: it is the lkey of the MR of 4096 bytes at 0x[0-9a-f]+, whose rkey is 0x[0-9a-f]{8}$"),
    "rkey-swapped": access(r"the rkey is byte-swapped: 0x[0-9a-f]{8} is the rkey of " + REMOTE, READ),
    "rkey-unknown": access(r"no MR or bound MW has this rkey$"),
    "range-too-long": access(r"the range ends 100 bytes past the end of " + REMOTE),
    "range-too-early": access(r"the range begins 16 bytes before the start of " + REMOTE),
    "address-swapped": access(r"the address is byte-swapped: 0x0000[0-9a-f]{12} is in " + REMOTE),
    "address-truncated": access(r"the address has lost its upper 32 bits: 0x[0-9a-f]{9,12} is in " + REMOTE),
    "no-remote-write": access(REMOTE + r" lacks IBV_ACCESS_REMOTE_WRITE, it was registered with IBV_ACCESS_LOCAL_WRITE \| "
                                   r"IBV_ACCESS_REMOTE_READ \| IBV_ACCESS_REMOTE_ATOMIC$"),
    "no-remote-read": access(REMOTE + r" lacks IBV_ACCESS_REMOTE_READ", READ),
    "no-remote-atomic": access(REMOTE + r" lacks IBV_ACCESS_REMOTE_ATOMIC", ATOMIC),
    "qp-without-remote-write": Mistake(fr"qp_access_flags of {QP} lack IBV_ACCESS_REMOTE_WRITE$",
                                       fr"qp_access_flags of {QP} lack IBV_ACCESS_REMOTE_WRITE$",
                                       f"{INVALID}qp_access_flags of that QP lack IBV_ACCESS_REMOTE_WRITE{WHICH}", WRITE + ": "),
    "far-deregistered": access(r"the MR of this rkey was deregistered \d.* ago by thread \d+"),
    "far-other-pd": access(REMOTE + r" belongs to PD \d+, but (the QP|the responder's QP) belongs to PD \d+$"),
    "window-rebound": access(r"the MW was bound again, its rkey is 0x[0-9a-f]{8} now$"),
    "window-unbound": access(r"the MW of this rkey is not bound any more: it was invalidated, or bound with length 0$"),
    "window-never-bound": access(r"the MW of this rkey was never bound \(ibv_bind_mw, IBV_WR_BIND_MW\)$"),
    "too-many-reads": Mistake(fr"wr_id 471\d .*: more RDMA READs and atomics at once than max_dest_rd_atomic of {QP} permits \(1\): "
                              fr"max_rd_atomic of {QP} is 8, but may be at most 1$",
                              fr"incoming {READ} from {QP}.*: more RDMA READs and atomics at once than max_dest_rd_atomic of {QP} "
                              fr"permits \(1\): max_rd_atomic of {QP} (is 8, but )?may be at most 1$",
                              rf"wr_id 471\d .*: {INVALID}qp_access_flags of that QP lack IBV_ACCESS_REMOTE_READ, "
                              rf"or max_dest_rd_atomic of that QP is less than 8, which is max_rd_atomic here{WHICH}",
                              first=""),
    "no-reads-granted": Mistake(READ + r": max_rd_atomic of the QP is 0 \(set by ibv_modify_qp to RTS\), so it cannot send an RDMA READ or an atomic$"),
    "receive-too-small": Mistake(fr"SEND of 256 bytes: the receive wr_id 77 \(0x4d\) of {QP} has 100 bytes, 156 too few",
                                 r"receive wr_id 77 \(0x4d\): it has 100 bytes, 156 too few",
                                 fr"SEND of 256 bytes: {INVALID}the receive posted there has fewer than 256 bytes{WHICH}"),
    "datagram-without-grh": Mistake(None, r"receive wr_id 77 \(0x4d\): it has 100 bytes, 40 too few: post receives of at least 140, "
                                          r"40 for the GRH in front and 100 for the message$"),
    "receive-not-writable": Mistake(fr"SEND of 64 bytes: {QP}.* cannot use its posted receive wr_id 77 \(0x4d\){SGE}{MR} lacks "
                                    "IBV_ACCESS_LOCAL_WRITE, it was registered with no access flags$",
                                    fr"receive wr_id 77 \(0x4d\){SGE}{MR} lacks IBV_ACCESS_LOCAL_WRITE",
                                    fr"SEND of 64 bytes: {REFUSED}\(remote operational error\): that process could not write "
                                    f"into the buffer of its posted receive.*IBV_ACCESS_LOCAL_WRITE.*{WHICH}"),
    "no-receive": Mistake(fr"SEND of 64 bytes: {QP}.* had no receive posted \(RNR NAK\), and rnr_retry is 0$", None,
                          fr"SEND of 64 bytes: {RNR}, and rnr_retry is 0$"),
    "no-receive-for-immediate": Mistake(fr"RDMA WRITE with immediate of 64 bytes to .*: {QP}.* had no receive posted \(RNR NAK\), and "
                                        fr"rnr_retry is 0 {IMMEDIATE}", None,
                                        fr"RDMA WRITE with immediate of 64 bytes to .*: {RNR}, and rnr_retry is 0 {IMMEDIATE}"),
    "lkey-is-rkey": Mistake(fr"RDMA WRITE{SGE}an rkey was given instead of an lkey: it is the rkey of the MR of 4096 bytes at 0x[0-9a-f]+, whose lkey is "
                            r"0x[0-9a-f]{8}$"),
    "lkey-unknown": Mistake(fr"SEND{SGE}no MR has this lkey$"),
    "local-too-long": Mistake(fr"SEND{SGE}the range ends 100 bytes past the end of {MR}$"),
    "near-other-pd": Mistake(fr"SEND{SGE}{MR} belongs to PD \d+, but (the QP|the responder's QP) belongs to PD \d+$"),
    "read-without-local-write": Mistake(fr"RDMA READ{SGE}{MR} lacks IBV_ACCESS_LOCAL_WRITE, it was registered with no access "
                                        "flags$"),
    "far-destroyed": Mistake(fr"{WRITE}: {QP}.* was destroyed [\d.]+ m?s ago {BY}$", None,
                             fr"{WRITE}: {SILENT}",
                             silent=fr"^this process dropped {REQUESTS}: {QP} was destroyed [\d.]+ m?s ago {BY}"),
    "far-reset": Mistake(fr"{WRITE}: {QP}.* is in RESET \(for [\d.]+ m?s: ibv_modify_qp\(\) {BY}\), where it drops all "
                         r"requests$", None,
                         fr"{WRITE}: {SILENT}",
                         silent=fr"^{QP} has been in RESET for [\d.]+ m?s: ibv_modify_qp\(\) {BY}; it has dropped {REQUESTS}"),
    "far-in-error": Mistake(fr"{WRITE}: {QP}.* went to ERR .*: ibv_modify_qp\(IBV_QPS_ERR\) by thread", None,
                            fr"{WRITE}: {SILENT}",
                            silent=fr"^{QP} went to ERR( [\d.]+ m?s ago)?: ibv_modify_qp\(IBV_QPS_ERR\) {BY}; it has dropped {REQUESTS}"),
    "far-left": Mistake(fr"SEND of 64 bytes: (no process of this host owns {QP}: dest_qp_num is wrong, or its owner is not running "
                        r"yet or has ended|peer process \d+ has ended)$", None,
                        fr"SEND of 64 bytes: {SILENT}", paths=("ring", "cma", "mapped", "wire")),
    "far-stopped": Mistake(fr"SEND of 64 bytes: {SILENT}", paths=("wire",)),
    "wrong-psn": Mistake(fr"SEND of 64 bytes: the PSNs differ: sq_psn here is 0x0003ef, rq_psn of {QP} is 0x0003e8$", None,
                         fr"SEND of 64 bytes: {QP} at 127.0.0.1 answers with PSN sequence errors: sq_psn here \(0x0003ef\) "
                         r"probably differs from rq_psn there \(retry_cnt 2\)$"),
    "wrong-qpn": Mistake(fr"SEND of 64 bytes: no process of this host owns {QP}: dest_qp_num is wrong", None,
                         fr"SEND of 64 bytes: {SILENT}",
                         silent=fr"^(this process|this host) dropped {REQUESTS}: no process of (this host|it) owns {QP}"),
    "wrong-mtu": Mistake(fr"SEND of 2048 bytes: path_mtu of the two ends differs: it is 1024 bytes at {QP}, and 2048 at {QP}$",
                         fr"incoming SEND from {QP}.*: path_mtu of the two ends (differs: it is 1024 bytes at {QP}, and (2048|more) at|"
                         fr"probably differs: it is 1024 bytes at {QP}, and a packet with 2048 bytes of payload came from) {QP}$",
                         fr"SEND of 2048 bytes: {INVALID}the receive posted there has fewer than 2048 bytes, {MTU}"),
}


def environment(path):
    return started.environment(LIBRARY, SOFTHCA_EXPLAIN="json", **PATHS[path])


class Run:
    """A mistake that has happened."""

    def __init__(self, name, path, *arguments):
        arguments = arguments or (("same",) if path == "same" else ())
        self.process = subprocess.Popen([*ALONE, MISTAKES, name, *arguments], env=environment(path), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.told, self.rest = [], b""

    def __enter__(self):
        line = self.process.stdout.readline().split()
        tap.equal(line[:1], [b"done"], (line, self.process.stderr.read() if not line else ""))
        self.near, self.far = int(line[1]), int(line[2])
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()

    def says(self, pid, pattern):
        """Waits until that process says of a QP what is expected."""
        pattern = re.compile(fr"^{QP} (went to ERR|went to SQE|had its first error)( \S+ \S+ ago)?: {pattern}")
        until = time.monotonic() + PATIENCE
        while not any(one["pid"] == pid and pattern.search(one["cause"]) for one in self.told):
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self.process.stderr.fileno(), 1 << 16) if ready else b""
            if not data:
                raise AssertionError(f"process {pid} does not say {pattern.pattern!r}: {[one['cause'] for one in self.told]}")
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.told += [json.loads(line) for line in lines if line.startswith(b"{")]
        for one in self.told:
            state = re.search("went to (ERR|SQE)", one["cause"])
            if state and one["pid"] == pid and pattern.search(one["cause"]):
                tap.equal(one["object"]["state"], state.group(1), one)
        self.why(pid, pattern)

    def why(self, pid, pattern):
        done = subprocess.run([SOFTHCA, "why", "--json", str(pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE)
        tap.equal(done.returncode, 0, done.stderr)
        causes = [json.loads(line)["cause"] for line in done.stdout.splitlines()]
        if not any(pattern.search(cause) for cause in causes):
            raise AssertionError(f"softhca why {pid} does not say {pattern.pattern!r}: {causes}")


def check(name, path):
    mistake = EXPECTED[name]
    with Run(name, path) as run:
        near = mistake.wire if path == "wire" else mistake.near
        if near:
            run.says(run.near, near)
        if mistake.far:
            run.says(run.far, mistake.far)
        if name == "far-stopped":
            run.why(run.far, re.compile(fr"^process {run.far} is stopped: until it is continued \(kill -CONT {run.far}\) it takes no SENDs"))
        if mistake.silent and (path == "wire" or name != "wrong-qpn"):
            run.why(run.far, re.compile(mistake.silent.replace(SENDER, r"from 127\.0\.0\.1" if path == "wire" else f"from {QP}")))


def test_each_program_has_its_words():
    listed = subprocess.run([MISTAKES], capture_output=True, text=True, check=False, env=environment("same")).stdout.split()
    tap.equal(sorted(listed), sorted(EXPECTED))


def test_the_end_without_a_receive_names_the_operation():
    for path in "ring", "wire":
        for name, operation in (("no-receive", "a SEND"), ("no-receive-for-immediate", "an RDMA WRITE with immediate")):
            with Run(name, path) as run:
                run.says(run.near, EXPECTED[name].wire if path == "wire" else EXPECTED[name].near)
                run.why(run.far, re.compile(f"^{QP} has no receive posted: {operation} of {QP}"))


def is_told_of_a_look_up(until):
    """False: the link was up before the peer was stopped, so nobody looks it up."""
    pattern = re.compile(fr"^{QP}: 1 outstanding send.*: looking up the process that owns {QP}, without an answer for [\d.]+ m?s: that is "
                         r"process (\d+), which is stopped and answers once it is continued \(kill -CONT \1\)")
    with subprocess.Popen([*ALONE, MISTAKES, "far-stopped"], env=environment("ring"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        try:
            found = None
            while not found:
                said = subprocess.run([SOFTHCA, "why", "--json", str(process.pid)], stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, timeout=PATIENCE, check=False).stdout
                causes = [json.loads(line)["cause"] for line in said.splitlines()]
                found = next(filter(None, map(pattern.search, causes)), None)
                if any("waiting for the acknowledgement" in cause for cause in causes):
                    process.kill()
                    return False
                if time.monotonic() > until:
                    raise AssertionError(f"{pattern.pattern!r} is none of {causes}")
            os.kill(int(found[1]), signal.SIGCONT)
            tap.equal(process.stdout.readline().split()[:1], [b"done"])
        except BaseException:
            process.kill()
            raise
    return True


def test_who_does_not_answer_a_look_up():
    until = time.monotonic() + PATIENCE
    while not is_told_of_a_look_up(until):
        assert time.monotonic() < until, "the link was always up first"


def test_another_user_hears_what_a_nak_says():
    if os.geteuid() != 0:
        raise tap.Skip("only root can become two users")
    with Run("rkey-is-lkey", "ring", "users") as run:
        run.says(run.far, f"incoming {WRITE} from {QP}.*: an lkey was given instead of an rkey")
        # The tool, as root, may look at both; the process itself may not.
        told, = [one["cause"] for one in run.told if one["pid"] == run.near] or [None]
        assert told and re.search(fr"{NEAR}{WRITE}: {QP}.* refused it \(remote access error", told), run.told
        assert "an lkey was given" not in told, told


for mistake_name, expected in EXPECTED.items():
    for path_name in expected.paths:
        def one(name=mistake_name, path=path_name):
            check(name, path)
        globals()[f"test_{mistake_name.replace('-', '_')}_on_{path_name}"] = one

if __name__ == "__main__":
    tap.main(sys.modules[__name__])
