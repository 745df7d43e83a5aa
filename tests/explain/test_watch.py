#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What softhca watch says of programs that go wrong: the same as SoftHCA says of itself (test_explain.py), where no fact of
the adapter is needed.

usage: test_watch.py SITUATIONS SOFTHCA SITUATIONS_CM WATCHED OPENS ours|system [ADDRESS]

ours: over SoftHCA; system: over the libibverbs and the adapter that the machine has. ADDRESS: of that adapter.
"""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import tap  # noqa: E402
import left_out  # noqa: E402
import started  # noqa: E402
import test_explain as alone  # noqa: E402
import test_mistakes as mistakes  # noqa: E402
import test_refused as refused  # noqa: E402
from test_explain import PATIENCE, SITUATIONS, SITUATIONS_CM, SOFTHCA, functions, matches, only, run  # noqa: E402

WATCHED, OPENS = (os.path.abspath(path) for path in sys.argv[4:6])
OURS = sys.argv[6] == "ours"
ADDRESS = sys.argv[7] if len(sys.argv) > 7 else "127.0.0.1"

plain_environment = alone.environment


def environment(**more):
    env = plain_environment(**more)
    if not OURS:
        del env["LD_LIBRARY_PATH"]
    return env


class Situation(alone.Situation):
    def __init__(self, name, form="json", program=SITUATIONS, options=("--all",), **more):
        form = ("--explain", form) if form else ()
        if program == SITUATIONS_CM:
            # The address goes behind the name, which is the last word of the command.
            command, program, name = [SOFTHCA, "watch", *options, *form, "--", program], name, ADDRESS
        else:
            command = [SOFTHCA, "watch", *options, *form, "--"]
        super().__init__(name, None, command=command, program=program, **more)


# Its functions ask for these by name.
alone.Situation, alone.environment = Situation, environment
mistakes.MISTAKES = os.path.join(os.path.dirname(SITUATIONS), "mistakes")
refused.REFUSED = os.path.join(os.path.dirname(SITUATIONS), "refused")

# --- the same first lines

SAME = [
    alone.test_pd_with_an_mr_left_behind,
    alone.test_cq_destroyed_before_its_qp,
    alone.test_wrong_order,
    alone.test_mr_freed_before_its_users,
    alone.test_leaks_at_close_device,
    alone.test_leaks_at_exit,
    alone.test_forgotten_id,
    alone.test_text_is_a_line_and_indented_detail,
    alone.test_nothing_is_said_of_a_program_that_does_well,
]
if OURS:
    SAME += [
        alone.test_wrong_cq_acknowledged,
        alone.test_domains_destroyed_before_their_users,
        alone.test_xrc_domain_closed_before_its_users,
        alone.test_device_memory_freed_before_its_mr,
        alone.test_raw_qp_and_counters_destroyed_before_their_flow,
        alone.test_unacknowledged_event,
        alone.test_thread_that_waits_for_itself,
    ]
for function in SAME:
    globals()[function.__name__] = function


def softhca(*arguments):
    return subprocess.run([SOFTHCA, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE, check=True).stdout


def why(pid, *what):
    return softhca("why", pid, *what).splitlines()[0]


def until_why(pattern, pid, *what):
    until = time.monotonic() + PATIENCE
    while not re.search(pattern, text := softhca("why", pid, *what)):
        if time.monotonic() > until:
            matches(pattern, text)
        time.sleep(0.02)
    return text


# --- connections

BLOCKED = r"^rdma_destroy_id\(cm_id \d+ from \S+ port \d+ to \S+ port \d+\) is blocked: RDMA_CM_EVENT_%s was read and not acknowledged \(rdma_ack_cm_event\)"


def check_connection(name, event):
    with Situation(name, program=SITUATIONS_CM) as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        matches(BLOCKED % event, told["cause"])
        assert "next_event" in functions(told["event"]["stack"]), told
        matches(BLOCKED % event, why(situation.pid))
        situation.end()


def test_error_event_of_a_connection():
    check_connection("error-event", "REJECTED")


def test_event_that_the_destroyer_keeps():
    check_connection("kept-event", "DISCONNECTED")


# --- events


def test_event_of_an_srq():
    with Situation("srq-limit", program=WATCHED) as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        cause = (r"^ibv_destroy_srq\(SRQ \d+\) is blocked: IBV_EVENT_SRQ_LIMIT_REACHED was read and not acknowledged "
                 r"\(ibv_ack_async_event\); the thread that read it is the one that is blocked")
        matches(cause, told["cause"])
        matches(cause, why(situation.pid))
        situation.end()


def test_acknowledged_too_often():
    if OURS:
        raise tap.Skip("SoftHCA does not block then")
    with Situation("wrong-cq-acknowledged") as situation:
        situation.until_it_hangs()
        matches(r"^ibv_destroy_cq\(CQ 0\) is blocked: 1 completion event was read and not acknowledged .*the events of this one were "
                r"acknowledged there$", situation.next_explanation()["cause"])
        situation.process.stdin.write("\n")
        situation.process.stdin.flush()
        matches(r"is no longer blocked after", situation.next_explanation()["cause"])
        matches(r"^ibv_destroy_cq\(CQ 1\) is blocked: 1 event was read, and 2 acknowledged .*they never will be$",
                situation.next_explanation()["cause"])
        matches(r"^ibv_destroy_cq\(CQ 1\) is blocked: 1 event was read, and 2", why(situation.pid))


def test_thread_that_waits_and_nothing_is_armed():
    with Situation("unarmed", "text", program=WATCHED, options=()) as situation:
        situation.until_it_hangs()
        until_why(r"has waited in ibv_get_cq_event\(channel \d+\) for .*: no event comes before one of its 1 CQs is armed",
                  situation.pid)
        tap.equal(situation.end(), "")


# --- work requests


def test_send_queue_full_of_unsignaled():
    with Situation("full-of-unsignaled", program=WATCHED) as situation:
        word, number = situation.process.stdout.readline().split()
        qpn = int(number, 16)
        if word == "accepted":  # by an adapter that frees slots without completions: it is not unseen
            assert "unseen" not in situation.end()
            return
        told = situation.next_explanation()
        matches(fr"^ibv_post_send\(QP 0x{qpn:06x}\) fails with ENOMEM: all \d+ slots of the send queue hold unsignaled", told["cause"])
        matches(r": \d+ sends without a polled completion.*no completion will free a slot", softhca("why", situation.pid))
        situation.end()


def test_first_completion_in_error():
    with Situation("wrong-rkey", "text", program=WATCHED, options=()) as situation:
        qpn = situation.until_it_hangs()
        text = softhca("why", situation.pid)
        matches(fr"QP 0x{qpn:06x} went to ERR( \S+ \S+ ago)?: wr_id 4711 \(0x1267\), RDMA WRITE of 64 bytes to 0x1000 with rkey 0x[0-9a-f]+: "
                r"QP 0x[0-9a-f]+ at \S+ refused it \(remote access error\): either ", text)
        matches(r"status IBV_WC_REM_ACCESS_ERR, vendor_err 0x[0-9a-f]+", text)  # the adapter's
        matches(fr"^softhca\[\d+\]: QP 0x{qpn:06x} went to ERR: wr_id 4711", situation.end())


# What the near end of a connection says of the first error of its QP is what SoftHCA says where it sees packets only.
def look_at_mistake(name):
    pattern = r"^QP 0x[0-9a-f]{6} went to ERR( \S+ \S+ ago)?: " + mistakes.EXPECTED[name].wire.replace("127.0.0.1", r"\S+")
    command = [] if not OURS else started.own_network()  # whose lo has the path MTU
    process = subprocess.Popen([*command, SOFTHCA, "watch", "--explain=json", "--", mistakes.MISTAKES, name], env=environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().split()
        tap.equal(line[:1], ["done"], line or process.stderr.read())
        matches(pattern, why(line[1]))
        _, text = process.communicate("\n", timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    told = [one["cause"] for one in map(json.loads, text.splitlines()) if one["explanation"] == "fault" and one["pid"] == int(line[1])]
    tap.equal(len(told), 1, text)
    matches(pattern, told[0])


# Refused calls, by rules of the specification and by what the adapter says of itself.


def look_at_refused(name):
    with started.Waiting([SOFTHCA, "watch", "--explain=json", "--", refused.REFUSED, name], environment()) as process:
        outside = softhca("why", "--json", process.pid)
        _, text = process.process.communicate("\n", timeout=PATIENCE)
    refused.matches(refused.CAUSES[name], refused.refusals(text))
    refused.matches(refused.CAUSES[name], refused.refusals(outside))


def run_under(expected, program, look):
    """Those whose first line needs no fact of the adapter."""
    for name in expected:
        if name in left_out.REASONS[program] or (not OURS and name in left_out.NOT_ON_RXE[program]):
            continue

        def test(name=name):
            look(name)
        globals()[f"test_{program}_" + name.replace("-", "_")] = test


run_under(mistakes.EXPECTED, "mistakes", look_at_mistake)
run_under(refused.CAUSES, "refused", look_at_refused)


def test_every_program_is_run_or_left_out_for_a_reason():
    tried = {**left_out.RUN, "mistakes": mistakes.EXPECTED, "refused": refused.CAUSES}
    folder = os.path.dirname(SITUATIONS)
    for program, reasons in left_out.REASONS.items():
        names = started.names(os.path.join(folder, program), alone.LIBRARY)
        assert names, program
        run = [name for name in tried.get(program, ()) if name not in reasons]
        tap.equal(sorted(names), sorted([*run, *reasons]), program)


def test_refused_transition():
    text = run("refused-modify", "text", program=WATCHED, options=())
    matches(r"^softhca\[\d+\]: ibv_modify_qp\(QP 0x[0-9a-f]{6}\) fails with EINVAL: INIT to RTS is not a transition of a QP of this "
            r"type \(from INIT: to ", text)
    matches(r"\nsofthca\[\d+\]: ibv_modify_qp\(QP 0x[0-9a-f]{6}\) fails with EINVAL: INIT to RTR of a QP of type RC needs "
            r"IBV_QP_MIN_RNR_TIMER, which attr_mask lacks\n", text)


def test_cq_that_can_overrun():
    with Situation("small-cq", program=WATCHED) as situation:
        situation.until_it_hangs()
        matches(r"CQ \d+ can overrun: \d+ posted work requests complete into it, and it has \d+ entries", softhca("why", situation.pid))
        situation.end()


def test_what_only_the_adapter_knows():
    with Situation("no-receive") as situation:
        qpn = situation.until_it_hangs()
        matches(fr"^QP 0x{qpn:06x}: 2 sends without a polled completion.*2 signaled: in progress in the NIC, or completed and not "
                r"polled \(softhca watch cannot see which\); to QP .*rnr_retry is 7", why(situation.pid))
        matches(r"^wr_id 256 \(0x100\), SEND of QP .*its completion was not polled", why(situation.pid, 256))
        matches(r"\d+ polled \(", softhca("ps", situation.pid))
        situation.end()


def test_extended_qps_and_cqs():
    with Situation("extended", program=WATCHED) as situation:
        line = situation.process.stdout.readline().split()
        if line[:1] != ["hangs"]:
            raise tap.Skip("the adapter has none")
        matches(fr"^QP {line[1]}: 2 sends without a polled completion.*1 signaled", why(situation.pid))
        matches(r"^wr_id 1099 .*RDMA WRITE", why(situation.pid, 1099))
        situation.end()


# --- programs of every kind


def test_threads_that_share_a_cq():
    with Situation("threads", "text", program=WATCHED, options=()) as situation:
        situation.until_it_hangs()
        matches(r"^idle, as far as softhca watch can see", why(situation.pid))
        tap.equal(situation.end(), "")


def test_parent_and_child():
    told = [one for one in run("forks", program=WATCHED) if one["explanation"] == "busy"]
    tap.equal(len({one["pid"] for one in told}), 2, told)
    for one in told:
        matches(r"^ibv_destroy_cq\(CQ \d+\) fails with EBUSY: (QP 0x[0-9a-f]{6}|2 QPs) still completes? into it$", one["cause"])


def opened(how):
    told = run(how, program=OPENS)
    tap.equal([one["explanation"] for one in told], ["busy", "busy"])  # the second has another MR
    matches(r"^ibv_dealloc_pd\(PD \d+\) fails with EBUSY: MR of 4096 bytes with lkey 0x[0-9a-f]+ is still registered", told[0]["cause"])


def test_library_opened_at_run_time():
    opened("dlsym")


def test_library_opened_at_run_time_by_version():
    opened("dlvsym")


def test_off_and_other_programs():
    tap.equal(run("wrong-order", "off"), "")
    done = subprocess.run([SOFTHCA, "watch", "--", "cat", "/proc/self/comm"], capture_output=True, text=True, env=environment())
    tap.equal((done.stdout, done.stderr, done.returncode), ("cat\n", "", 0))


if __name__ == "__main__":
    tap.main(sys.modules[__name__])
