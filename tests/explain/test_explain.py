#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What programs that go wrong (situations.c, situations_cm.c) say of themselves.

usage: test_explain.py SITUATIONS SOFTHCA SITUATIONS_CM
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import started  # noqa: E402
import tap  # noqa: E402

SITUATIONS, SOFTHCA, SITUATIONS_CM = (os.path.abspath(path) for path in sys.argv[1:4])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
PATIENCE = 120


def environment(**more):
    return started.environment(LIBRARY, **{"SOFTHCA_LOCAL": "ring", **more})


class Situation:
    """A situation that runs. Those that hang go on at end()."""

    def __init__(self, name, form="json", command=(), program=SITUATIONS, stderr=subprocess.PIPE, **more):
        env = environment(**more)
        if form:
            env["SOFTHCA_EXPLAIN"] = form
        env.setdefault("SOFTHCA_EXPLAIN_WHAT", "all")
        self.process = subprocess.Popen([*command, program, name], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.pid = self.process.pid
        self.told = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def until_it_hangs(self):
        line = self.process.stdout.readline().split()
        tap.equal(line[:1], ["hangs"], self.process.stderr.read() if not line else line)
        return int(line[1], 16) if len(line) > 1 else None

    def next_explanation(self):
        """The next one in JSON; waits for it."""
        self.told.append(json.loads(self.process.stderr.readline()))
        return self.told[-1]

    def end(self):
        """Lets it go on, and returns what it said since."""
        _, text = self.process.communicate("\n", timeout=PATIENCE)
        tap.equal(self.process.returncode, 0, text)
        return text


def run(name, form="json", **more):
    with Situation(name, form, **more) as situation:
        text = situation.end()
    return [json.loads(line) for line in text.splitlines()] if form == "json" else text


def only(explanations, kind):
    found = [one for one in explanations if one["explanation"] == kind]
    tap.equal(len(found), 1, explanations)
    return found[0]


def functions(stack):
    return [frame.get("function", "").split(".")[0] for frame in stack]


def matches(pattern, text):
    if not re.search(pattern, text):
        raise AssertionError(f"{text!r} does not match {pattern!r}")


# --- EBUSY names the holders


def test_pd_with_an_mr_left_behind():  # linux-rdma/perftest#77
    told = only(run("mr-left-behind"), "busy")  # asked twice, told once
    matches(r"^ibv_dealloc_pd\(PD \d+\) fails with EBUSY: MR of 4096 bytes with lkey 0x[0-9a-f]+ is still registered",
            told["cause"])
    tap.equal(told["used_by_total"], 1)
    holder = told["used_by"][0]
    tap.equal((holder["kind"], holder["length"]), ("MR", 4096))
    assert "mr_left_behind" in functions(holder["created"]["stack"]), holder


def test_cq_destroyed_before_its_qp():  # fio, Valkey
    told = only(run("cq-before-qp"), "busy")
    matches(r"^ibv_destroy_cq\(CQ \d+\) fails with EBUSY: QP 0x[0-9a-f]{6} still completes into it$", told["cause"])
    holder = told["used_by"][0]
    tap.equal((holder["type"], holder["state"]), ("RC", "RESET"))
    assert "make_qp" in functions(holder["created"]["stack"]), holder


def test_wrong_order():  # ska-sa/spead2#134
    told = run("wrong-order")
    tap.equal([one["call"] for one in told if one["explanation"] == "busy"],
              ["ibv_dealloc_pd", "ibv_destroy_comp_channel", "ibv_destroy_cq"])
    matches(r"1 MR and 1 QP still belong to it", told[0]["cause"])
    leaks = only(told, "leaks")
    matches(r"^ibv_close_device\(context \d+ of \S+\) left 1 PD, 1 CQ and 1 channel not destroyed$", leaks["cause"])


def causes(name, pattern):
    """Of each refused destroy, in order; and each holder says who made it."""
    told = [one for one in run(name) if one["explanation"] == "busy"]
    for one in told:
        assert one["used_by"] and len(one["used_by"]) == one["used_by_total"], one
        for holder in one["used_by"]:
            assert name.replace("-", "_") in functions(holder["created"]["stack"]), holder
    matches("^" + pattern + "$", "; ".join(one["cause"].replace(" fails with EBUSY", "") for one in told))


def test_domains_destroyed_before_their_users():
    causes("domain-in-use",
           r"ibv_dealloc_td\(TD \d+\): parent domain \d+ still uses it; "
           r"ibv_dealloc_pd\(PD \d+\): 1 PD and 1 MR still belong to it; "
           r"ibv_dealloc_pd\(parent domain \d+\): 1 MR and 1 CQ still belong to it; "
           r"ibv_dealloc_pd\(parent domain \d+\): CQ \d+ still belongs to it")


def test_xrc_domain_closed_before_its_users():
    causes("xrcd-in-use",
           r"ibv_destroy_cq\(CQ \d+\): SRQ \d+ still completes into it; "
           r"ibv_close_xrcd\(XRCD \d+\): 1 QP and 1 SRQ still use it; "
           r"ibv_close_xrcd\(XRCD \d+\): QP 0x[0-9a-f]{6} still uses it")


def test_device_memory_freed_before_its_mr():
    causes("dm-in-use", r"ibv_free_dm\(DM \d+ of 4096 bytes\): MR of 128 bytes with lkey 0x[0-9a-f]+ still uses it")


def test_raw_qp_and_counters_destroyed_before_their_flow():
    causes("flow-in-use", r"ibv_destroy_qp\(QP 0x[0-9a-f]{6}\): flow \d+ still directs packets to it; "
                          r"ibv_destroy_counters\(set of counters \d+\): flow \d+ is still attached to it")


def test_mr_freed_before_its_users():  # the-tcpdump-group/libpcap#1532
    told = only(run("mr-freed-before-users"), "in_use")
    matches(r"^ibv_dereg_mr\(MR .*\): 8 outstanding work requests still use its lkey, in the receive queue of QP",
            told["cause"])
    tap.equal(told["queues"][0]["wr_ids"], "100..107")


# --- a destroy that blocks


def test_wrong_cq_acknowledged():  # openucx/ucx#1039
    with Situation("wrong-cq-acknowledged") as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        tap.equal(told["explanation"], "blocked")
        matches(r"^ibv_destroy_cq\(CQ 0\) is blocked: 1 completion event was read and not acknowledged .*"
                r"; CQ 1 was acknowledged 1 time too often: probably the events of this one were acknowledged there$", told["cause"])
        assert "wrong_cq_acknowledged" in functions(told["event"]["stack"]), told
        assert "wrong_cq_acknowledged" in functions(told["destroy"]["stack"]), told
        tap.equal(told["destroy"]["thread"], situation.pid)
        after = [json.loads(line) for line in situation.end().splitlines()]
    resumed = only(after, "resumed")
    matches(r"^ibv_destroy_cq\(CQ 0\) is no longer blocked after .*: the events were acknowledged by thread \d+", resumed["cause"])
    assert resumed["acknowledged_by"] != situation.pid, resumed


def test_unacknowledged_event():
    with Situation("unacknowledged-event") as situation:
        qpn = situation.until_it_hangs()
        told = situation.next_explanation()
        matches(fr"^ibv_destroy_qp\(QP 0x{qpn:06x}\) is blocked: IBV_EVENT_QP_LAST_WQE_REACHED was read and not "
                r"acknowledged \(ibv_ack_async_event\)$", told["cause"])
        assert "read_event" in functions(told["event"]["stack"]), told
        assert told["event"]["thread"] != situation.pid, told
        situation.end()


def test_thread_that_waits_for_itself():
    with Situation("own-event") as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        matches(r"; the thread that read it is the one that is blocked, so only another thread can acknowledge it$", told["cause"])
        tap.equal(told["event"]["thread"], told["destroy"]["thread"])
        situation.end()


def test_error_event_of_a_connection_not_acknowledged():  # linux-rdma/perftest#60
    with Situation("error-event", program=SITUATIONS_CM) as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        matches(r"^rdma_destroy_id\(cm_id \d+ from 127.0.0.1 port \d+ to 127.0.0.1 port \d+\) is blocked: RDMA_CM_EVENT_REJECTED was "
                r"read and not acknowledged \(rdma_ack_cm_event\)", told["cause"])
        assert "next_event" in functions(told["event"]["stack"]), told
        assert "destroy_with_event" in functions(told["destroy"]["stack"]), told
        after = [json.loads(line) for line in situation.end().splitlines()]
    matches(r"^rdma_destroy_id\(cm_id .*\) is no longer blocked after .* were acknowledged by thread", only(after, "resumed")["cause"])


def test_event_of_a_connection_that_its_destroyer_keeps():  # spdk/spdk#3347
    with Situation("kept-event", program=SITUATIONS_CM) as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        matches(r"^rdma_destroy_id\(cm_id .*\) is blocked: RDMA_CM_EVENT_DISCONNECTED was read and not acknowledged "
                r"\(rdma_ack_cm_event\); the thread that read it is the one that is blocked, so only another thread can acknowledge it$", told["cause"])
        situation.end()


def test_receive_that_is_posted_after_the_accept():  # w180112/RDMA-example#4, spdk/spdk#2429
    cause = (r"^QP 0x[0-9a-f]{6} went to ERR( \S+ m?s ago)?: wr_id 4711 \(0x1267\), SEND of 0 bytes: QP 0x[0-9a-f]{6} had no receive posted "
             r"\(RNR NAK\), and rnr_retry is 0 \(rnr_retry_count of rdma_connect\(\) or rdma_accept\(\) in the process of QP 0x[0-9a-f]{6}\)$")
    with Situation("receive-after-accept", program=SITUATIONS_CM) as situation:
        matches(cause, situation.next_explanation()["cause"])
        situation.until_it_hangs()
        done = subprocess.run([SOFTHCA, "why", "--json", str(situation.pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE)
        matches(cause, json.loads(done.stdout.splitlines()[0])["cause"])
        situation.end()


# --- what is lost


def test_completion_lost_to_an_overrun():
    with Situation("overrun") as situation:
        situation.until_it_hangs()
        told = situation.next_explanation()
        tap.equal(told["explanation"], "overrun")
        matches(r"^CQ \d+ overrun: the completion of wr_id 1795 \(0x703\) of QP 0x[0-9a-f]{6} was lost: all 3 "
                r"entries held unpolled completions$", told["cause"])
        situation.end()


def test_lost_srq_receive():
    with Situation("lost-srq-receive") as situation:
        situation.until_it_hangs()
        told = only([json.loads(line) for line in situation.end().splitlines()], "losses")
    matches(r"^ibv_destroy_qp\(QP 0x[0-9a-f]{6}\) discarded 1 SRQ receive of a partly received message", told["cause"])
    tap.equal(told["srq_receives"], {"count": 1, "wr_ids": "81"})


def test_what_a_destroy_threw_away():
    with Situation("unsignaled") as situation:
        qpn = situation.until_it_hangs()
        told = only([json.loads(line) for line in situation.end().splitlines()], "losses")
    matches(fr"^ibv_destroy_qp\(QP 0x{qpn:06x}\) discarded 1 unpolled completion, 2 unused receives \(QP state RTS\)",
            told["cause"])
    tap.equal(told["completions"], {"count": 1, "wr_ids": "770"})
    tap.equal(told["failed_completions"], 0)
    tap.equal(told["receives"], {"count": 2, "wr_ids": "1024, 1025"})


# --- leaks


def check_leaks(told, cause):
    matches(cause, told["cause"])
    tap.equal(sorted(one["kind"] for one in told["objects"]), ["CQ", "MR", "PD", "QP"])
    qp = next(one for one in told["objects"] if one["kind"] == "QP")
    assert "make_a_qp_and_forget_it" in functions(qp["created"]["stack"]), qp


def test_leaks_at_close_device():
    # And not once more at the end of the process.
    check_leaks(only(run("leak-at-close"), "leaks"),
                r"^ibv_close_device\(context 0 of \S+\) left 1 PD, 1 MR, 1 CQ and 1 QP not destroyed$")


def test_leaks_at_exit():
    check_leaks(only(run("leak-at-exit"), "leaks"),
                r"^the process exits with 1 PD, 1 MR, 1 CQ and 1 QP not destroyed, 1 device not closed$")


def test_forgotten_id():
    told = only(run("forgotten-id", program=SITUATIONS_CM), "leaks")
    matches(r"^the process exits with 1 cm_id not destroyed$", told["cause"])
    matches(r"listening", told["objects"][0]["state"])
    assert "listen_somewhere" in functions(told["objects"][0]["created"]["stack"]), told


# --- where it is said


def test_text_is_a_line_and_indented_detail():
    lines = run("cq-before-qp", "text").splitlines()
    matches(r"^softhca\[\d+\]: ibv_destroy_cq\(CQ \d+\) fails with EBUSY: QP", lines[0])
    assert all(line.startswith("    ") for line in lines[1:]), lines
    assert any(re.match(r" +at make_qp\+0x[0-9a-f]+ \(situations\+0x[0-9a-f]+\)$", line) for line in lines), lines


def plain(lines):
    """Without what differs from run to run: numbers, times, addresses; and without our own functions in stacks."""
    joined = []
    for line in lines:
        if joined and re.match(r" {15}\S", line):
            joined[-1] += " " + line.strip()  # the page breaks long lines
        elif not re.match(r" +at .*\(lib", line):
            joined.append(line.rstrip())
    for number, line in enumerate(joined):
        line = re.sub(r"0x[0-9a-f]+", "0x", line)
        line = re.sub(r"\d+(\.\d+)? (ms|s|min)\b", "TIME", line)
        # A thread has its name until it ends, which may be sooner or later.
        joined[number] = re.sub(r"( \(situations(_cm)?\)|, which has ended)$", "", re.sub(r"\d+", "N", line))
    return joined


def differs(wanted, got):
    """The first line of the page that is not there in its place; `...` stands for any lines."""
    at, skip = 0, True
    for line in wanted:
        if line.strip() == "...":
            skip = True
        elif skip and line in got[at:]:
            at, skip = got.index(line, at) + 1, False
        elif not skip and at < len(got) and got[at] == line:
            at += 1
        else:
            return line
        skip = skip or line.startswith("softhca[") and not line.startswith(" ")
    return None


def written(file):
    return os.pread(file.fileno(), 1 << 20, 0).decode()  # the position is the writer's


def test_the_guide_shows_what_is_said():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "teardown.md")) as file:
        sections = re.split(r"^### ", file.read(), flags=re.M)[1:]
    compared = 0
    for section in sections:
        name = re.match(r".*\(`(situations_cm )?([a-z-]+)`", section)
        block = re.search(r"^```\n(softhca\[.*?)^```", section, re.M | re.S)
        if not name or not block:
            continue
        with tempfile.TemporaryFile(mode="w+") as stderr:
            with Situation(name.group(2), "text", program=SITUATIONS_CM if name.group(1) else SITUATIONS,
                           stderr=stderr) as situation:
                if "is blocked:" in block.group(1):
                    situation.until_it_hangs()
                    while "is blocked:" not in written(stderr):
                        time.sleep(0.01)  # it says so after a second
                situation.end()
            said = written(stderr)
        wrong = differs(plain(block.group(1).splitlines()), plain(said.splitlines()))
        assert wrong is None, f"{name.group(2)} says nothing like {wrong!r} there:\n{said}"
        compared += 1
    assert compared >= 10, compared


def test_each_promise_of_the_guide_has_its_tests():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(root, "docs", "teardown.md"), encoding="utf-8") as file:
        table = file.read().split("\n## The promises and their tests\n")[1]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20, rows
    for promise, cell in rows:
        for topic, tests in re.findall(r"`(\w+)`: ((?:`\w+`(?:, )?)+)", cell):
            with open(os.path.join(root, "tests", "behaviour", topic + ".c"), encoding="utf-8") as file:
                known = re.findall(r"TEST(?:_WITH)?\((\w+)", file.read())
            for name in re.findall(r"\w+", tests):
                assert name in known, f"{promise}: {topic}.c has no test {name}"
        assert not re.sub(r"`\w+`: (`\w+`(, )?)+(; )?", "", cell), cell


def test_each_thread_of_the_guide_has_its_situation():
    root = os.path.dirname(os.path.abspath(__file__))
    programs = ""
    for name in os.listdir(root):
        if name.endswith(".c"):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                programs += file.read()
    with open(os.path.join(root, "..", "..", "docs", "teardown.md"), encoding="utf-8") as file:
        table = file.read().split("\n## The threads\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20, rows
    for threads, _, situations, _ in rows:
        for thread in re.findall(r"[\w.-]+/[\w.-]+#\d+", threads):
            assert thread in programs, f"no situation cites {thread}"
        for situation in re.findall(r"`([a-z0-9-]+)`", situations):
            assert f'"{situation}"' in programs, f"no program has {situation}"


def test_silent_unless_asked():
    tap.equal(run("wrong-order", None), "")
    tap.equal(run("wrong-order", None, SOFTHCA_LOG="error"), "")
    tap.equal(run("wrong-order", "off", SOFTHCA_LOG="error"), "")
    matches(r"fails with EBUSY", run("wrong-order", None, SOFTHCA_LOG="warn"))


def test_softhca_run_asks():
    with Situation("cq-before-qp", None, command=[SOFTHCA, "run", "--no-shim", "--all", "--"],
                   SOFTHCA_EXPLAIN_WHAT="wrong") as situation:
        matches(r"^softhca\[\d+\]: ibv_destroy_cq\(CQ \d+\) fails with EBUSY", situation.end())


# --- what is wrong, and what is counted


def ended(name, what, status):
    with Situation(name, "text", SOFTHCA_EXPLAIN_WHAT=what) as situation:
        _, text = situation.process.communicate("\n", timeout=PATIENCE)
        tap.equal(situation.process.returncode, status, text)
        return text


def test_what_is_normal_is_not_told_where_the_status_is_0():
    for name in "wrong-order", "cq-before-qp", "mr-left-behind", "mr-freed-before-users", "leak-at-exit", "leak-at-close":
        tap.equal(ended(name, "wrong", 0), "", name)
    with Situation("unsignaled", "text", SOFTHCA_EXPLAIN_WHAT="wrong") as situation:
        situation.until_it_hangs()
        tap.equal(situation.end(), "")


def test_what_was_counted_is_one_line_where_the_program_fails():
    matches(r"^softhca\[\d+\]: the program exits with status 3\. What may have contributed \(details: softhca run --all, "
            r"SOFTHCA_EXPLAIN_WHAT=all\): 4 refused destroys \(EBUSY\)\n$", ended("failing-program", "wrong", 3))
    tap.equal(ended("failing-quickly", "wrong", 3), "")


def test_a_call_site_is_told_of_once():
    lines = [line for line in ended("failing-program", "all", 3).splitlines() if not line.startswith(" ")]
    tap.equal(len(lines), 2, lines)
    matches(r"fails with EBUSY", lines[0])
    matches(r"the process exits with", lines[1])


def test_what_is_wrong_is_told_by_default():
    with Situation("overrun", "text", SOFTHCA_EXPLAIN_WHAT="wrong") as situation:
        situation.until_it_hangs()
        matches(r"^softhca\[\d+\]: CQ \d+ overrun: ", situation.process.stderr.readline())
        situation.end()
    with Situation("own-event", "text", SOFTHCA_EXPLAIN_WHAT="wrong") as situation:
        situation.until_it_hangs()
        matches(r"^softhca\[\d+\]: ibv_destroy_qp\(.*\) is blocked: ", situation.process.stderr.readline())
        situation.end()


def test_a_paragraph_begins_a_new_line_on_a_terminal():
    near, far = os.openpty()
    with Situation("cq-before-qp", "text", stderr=far) as situation:
        situation.process.communicate("\n", timeout=PATIENCE)
    os.close(far)
    matches(r"^\r\nsofthca\[\d+\]: ibv_destroy_cq", os.read(near, 4096).decode())
    os.close(near)


def test_nothing_is_said_of_a_program_that_does_well():
    with Situation("all-well", "text") as situation:
        situation.until_it_hangs()
        tap.equal(situation.end(), "")


if __name__ == "__main__":
    tap.main(sys.modules[__name__])
