#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs rdma-core's own tests (Debian's python3-pyverbs ships them) through `softhca run`; TAP on stdout.

docs/conformance.md lists which tests are skipped, for whom, and what they would need. A skip that is not listed fails; so
does a listed one that passes, so that the list stays true, unless it lacks something that some machines have. Nothing
else may fail. As root, it lends the suite huge pages where the machine has none.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PLACES = ["/usr/share/doc/rdma-core/tests", os.path.join(TOP, "build-deps", "rdma-core-tests")]
LIST = os.path.join(TOP, "docs", "conformance.md")

# Every test of these passes, but for those that need one of NOT_OFFERED.
COMPLETE = ["test_addr", "test_atomic", "test_cq", "test_cq_events", "test_cqex", "test_device", "test_mr", "test_pd",
            "test_qp", "test_qpex", "test_rdmacm", "test_relaxed_ordering", "test_fork",
            "test_tag_matching"]
NOT_OFFERED = ["dma-buf", "raw packet", "rate limits", "privileged Q_Key"]
# What a machine has or has not: whoever lacks only this passes where it is there.
OF_THE_MACHINE = ["huge pages", "dma-buf", "hardware clock"]

# Tests of suites before 44 that do not try what they say: both ends send to the group that they are in; the new key of a
# window has another index than the window.
FAULTY = {
    "tests.test_rdmacm.CMTestCase.test_rdmacm_async_multicast_traffic": "each end takes its own datagram for the other's",
    "tests.test_rdmacm.CMTestCase.test_rdmacm_async_ex_multicast_traffic": "each end takes its own datagram for the other's",
    "tests.test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw": "binds the window to a key made of the region's",
}

# Whom the suite is run as. In a user namespace it sees uid 0, and has no privileges outside.
USERS = ["root", "ordinary", "namespace"]
AS_USER = os.path.join(TOP, "scripts", "as-user.sh")

HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB"
HUGE_PAGES_WANTED = 8

RUN_SECONDS = 15 * 60  # in all


def excluded(module):
    """Modules that are not run at all, with the reason."""
    if re.match(r"test_(mlx5_|efa)", module):
        return "tests another vendor's device"
    if module == "test_cuda_dmabuf":
        return "tests a GPU's memory"
    return None


def needs(reason, test):
    """What a skipped test lacks: from its name, or where that says nothing, from the suite's words."""
    for pattern, name in [(r"huge pages", "huge pages"), (r"test_flow", "flows"), (r"test_rss", "RSS"), (r"test_tag", "tag matching"),
                          (r"dma-?buf", "dma-buf"), (r"raw", "raw packet"),
                          (r"test_odp", "ODP")]:
        if re.search(pattern, test + " " + reason, re.I):
            return name
    return "?"


def read_number(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


# Gives back when its standard input ends, which it does whatever becomes of us, SIGKILL included. Not if somebody else has
# changed the number meanwhile.
GIVE_BACK = """
import sys
path, lent, before = sys.argv[1:]
sys.stdin.read()
if int(before) < int(open(path).read()) <= int(lent):
    open(path, "w").write(before)
"""


class HugePages:
    """So many free huge pages as the suite needs, for the time being, if we may configure them."""

    def __enter__(self):
        self.keeper = None
        path = os.path.join(HUGE_PAGES, "nr_hugepages")
        before, free = read_number(path), read_number(os.path.join(HUGE_PAGES, "free_hugepages"))
        if before is None or free is None or free >= HUGE_PAGES_WANTED:
            return self
        lent = before + HUGE_PAGES_WANTED - free
        if not os.access(path, os.W_OK):
            return self
        # First whoever gives them back, in a session that no Ctrl-C reaches.
        self.keeper = subprocess.Popen([sys.executable, "-c", GIVE_BACK, path, str(lent), str(before)],
                                       stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(lent))
            if read_number(path) != lent:  # memory in pieces: some would be seen, and run out
                with open(path, "w", encoding="ascii") as file:
                    file.write(str(before))
        except OSError:
            pass  # a container's /sys
        return self

    def __exit__(self, *_):
        if self.keeper:
            self.keeper.stdin.close()
            self.keeper.wait()


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def point(self, passed, name, comment="", directive=""):
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}" + (f" # {directive}" if directive else ""))
        for line in comment.splitlines():
            print(f"# {line}")
        sys.stdout.flush()

    def end(self):
        print(f"1..{self.count}", flush=True)
        return 1 if self.failed else 0


def users_of(cell):
    return USERS if cell == "all" else cell.split(", ")


def prefix_for(user):
    """What makes a command run as this user."""
    if user == "root":
        return []
    if user == "ordinary":
        return [AS_USER]
    # Not as the user who stands for all that a namespace does not know: whom the kernel tells of might be somebody else.
    return [AS_USER] + (["-2"] if os.geteuid() == 0 else []) + ["unshare", "--user", "--map-root-user", "--"]


def why_not(user):
    """What this machine lacks to run anything as this user."""
    if user == "root":
        return None if os.geteuid() == 0 else "needs root"
    if user == "namespace":
        probe = subprocess.run(prefix_for(user) + ["true"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if probe.returncode:
            return f"no user namespaces for ordinary users here: {probe.stderr.strip()}"
    return None


def read_list(path, who):
    """docs/conformance.md: test → (needs, suite's reason) for this user; and the tests that older suites do not have."""
    listed, newer, is_newer = {}, set(), False
    for line in open(path, encoding="utf-8"):
        is_newer = is_newer or line.startswith("<!-- newer -->")
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.match(r"`tests\.", cells[0]):
            test = cells[0].strip("`")
            if is_newer:
                newer.add(test)
            if who in users_of(cells[1]):
                listed[test] = (cells[2], cells[3])
    return listed, newer


def unpack(place, directory):
    target = os.path.join(directory, "tests")
    shutil.copytree(place, target)
    for name in os.listdir(target):
        path = os.path.join(target, name)
        if name.endswith(".gz"):
            with gzip.open(path) as packed, open(path[:-3], "wb") as plain:
                shutil.copyfileobj(packed, plain)
            os.unlink(path)
    for folder, _, names in os.walk(directory):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)
    return sorted(name[:-3] for name in os.listdir(target) if re.match(r"test_\w+\.py$", name))


def run_once(command, events, patience, deadline):
    """Returns (exit status, True if it had to be killed). Ends only what it has started."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
                               start_new_session=True)
    size, news = 0, time.monotonic()
    while True:
        try:
            return process.wait(timeout=0.5), False
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if os.path.getsize(events) != size:
            size, news = os.path.getsize(events), now
        if now - news > patience or now > deadline:
            # Python's faulthandler shows where it stands.
            os.killpg(process.pid, signal.SIGABRT)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return process.returncode, True


def read_events(path):
    """Test → (what, detail), in order; and the test that was running at the end."""
    results, running = {}, None
    for line in open(path, encoding="utf-8"):
        event = json.loads(line)
        test = event["test"]
        if event["what"] == "start":
            running = test
            continue
        # A test that fails may also be told to have passed its other half; setUpClass has an id in words.
        if results.get(test, ("",))[0] != "fail":
            results[test] = (event["what"], event["detail"])
        running = None
    return results, running


def collect(options, directory, modules):
    """Runs the suite to its end, crash after crash. Test → (what, detail)."""
    driver = os.path.join(directory, "driver.py")
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "driver.py"), driver)
    os.chmod(driver, 0o644)
    os.environ["SOFTHCA_RAW"] = "host"  # made-up frames are nothing for the machine's network
    command = prefix_for(options.user)
    command += [options.softhca, "run", "--", "/usr/bin/python3", "-X", "faulthandler", "-B", driver, directory]
    arguments = ["-v"] + (["--dev", options.dev] if options.dev else [])

    listing = subprocess.run(command + ["/dev/null", "--list-tests"] + arguments, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=120)
    every = [line for line in listing.stdout.splitlines() if re.match(r"tests\.test_\w+\.\w+\.\w+$", line)]
    wanted = [test for test in every if test.split(".")[1] in modules]
    if options.only:
        wanted = [test for test in wanted if re.search(options.only, test)]
    if not wanted:
        return {"listing": ("fail", listing.stdout + listing.stderr)}
    faulty = [test for test in wanted if options.older and test in FAULTY]
    results = {test: ("faulty", FAULTY[test]) for test in faulty}
    wanted = [test for test in wanted if test not in faulty]
    deadline = time.monotonic() + RUN_SECONDS
    left = wanted
    while left and time.monotonic() < deadline:
        events = os.path.join(directory, "events")
        with open(events, "w", encoding="utf-8"):
            os.chmod(events, 0o666)
        status, killed = run_once(command + [events] + arguments + left, events, options.patience, deadline)
        told, running = read_events(events)
        results.update(told)
        if running:
            results[running] = ("fail", "hangs" if killed else f"ends the process (exit status {status})")
        elif not any(test in told for test in left):
            results.setdefault("run_tests.py", ("fail", f"exit status {status}"))
            break
        left = [test for test in left if test not in results]
    for test in left:
        results[test] = ("fail", "was not run")
    return results


def judge(tap, results, listed, newer, all_there):
    for test, (what, detail) in sorted(results.items()):
        module = test.split(".")[1] if test.startswith("tests.") else ""
        if what == "skip":
            if test not in listed:
                tap.point(False, test, f"skipped: {detail}\ndocs/conformance.md does not list this skip")
            elif not any(words.lower() in detail.lower() for words in listed[test][1].split("; or ")):
                tap.point(False, test, f"skipped: {detail}\ndocs/conformance.md has another reason: {listed[test][1]}")
            elif module in COMPLETE and listed[test][0] not in NOT_OFFERED:
                tap.point(False, test, f"skipped: {detail}\nevery test of {module} must pass")
            else:
                tap.point(True, test, directive=f"SKIP needs {listed[test][0]}: {detail}".replace("\n", " "))
        elif what == "faulty":
            tap.point(True, test, directive=f"SKIP {detail} (mended in rdma-core 44)")
        elif what == "pass":
            if test in listed and listed[test][0] not in OF_THE_MACHINE:
                tap.point(False, test, "passes, but docs/conformance.md lists it as skipped")
            else:
                tap.point(True, test)
        else:
            tap.point(False, test, detail)
    for test in sorted(set(listed) - set(results) - newer):
        if all_there:
            tap.point(False, test, "docs/conformance.md lists it, but the suite has no such test")


def update_list(path, results, who):
    """Writes the rows of this user anew, and keeps the words of those that are still right."""
    text = open(path, encoding="utf-8").read()
    head, _, rest = text.partition("<!-- rows -->\n")
    rows, tail = rest.split("<!-- end -->\n", 1) if "<!-- end -->" in rest else ("", "")
    table = {}
    for row in rows.splitlines()[2:]:
        test, users, lack, reason = [cell.strip() for cell in row.strip("|").split("|")]
        for user in users_of(users):
            table[test.strip("`"), user] = (lack, reason)
    old = {test: words for (test, user), words in table.items() if user == who}
    table = {key: words for key, words in table.items() if key[1] != who or words[0] in OF_THE_MACHINE}
    newer = read_list(path, who)[1]
    for test, (what, detail) in results.items():
        if what == "skip" and test not in newer:
            words = old.get(test, ("", "\0"))
            if not any(part.lower() in detail.lower() for part in words[1].split("; or ")):
                words = (needs(detail, test), detail.splitlines()[0])
            table[test, who] = words
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + "<!-- rows -->\n| test | skipped for | needs | the suite says |\n|---|---|---|---|\n")
        for test in sorted({key[0] for key in table}):
            for words in dict.fromkeys(table[test, user] for user in USERS if (test, user) in table):
                users = [user for user in USERS if table.get((test, user)) == words]
                file.write(f"| `{test}` | {'all' if users == USERS else ', '.join(users)} | {words[0]} | {words[1]} |\n")
        file.write("<!-- end -->\n" + tail)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--softhca", default=os.path.join(TOP, "build", "softhca"))
    parser.add_argument("--user", choices=USERS, default="root" if os.geteuid() == 0 else "ordinary")
    parser.add_argument("--dev", help="device (default: the first)")
    parser.add_argument("--only", help="regular expression over test names")
    parser.add_argument("--patience", type=float, default=90, metavar="SECONDS",
                        help="a test that takes longer hangs (default %(default)s)")
    parser.add_argument("--older", action="store_true", help="the suite is older than 44's, and need not have all that is listed")
    parser.add_argument("--tests", help="directory with the tests", action="append")
    parser.add_argument("--list", default=LIST, help="the list of skips")
    parser.add_argument("--update", action="store_true", help="rewrite the list of skips instead of judging by it")
    options = parser.parse_args()
    options.softhca = os.path.abspath(options.softhca)

    place = next((place for place in options.tests or PLACES if os.path.isdir(place)), None)
    if not place:
        print("1..0 # SKIP rdma-core's tests are not here (scripts/install-deps.sh check)")
        return 0
    if lacking := why_not(options.user):
        print(f"1..0 # SKIP {lacking}")
        return 0
    tap = Tap()
    directory = tempfile.mkdtemp(prefix="softhca-conformance-")
    try:
        os.chmod(directory, 0o755)
        modules = unpack(place, directory)
        run = [module for module in modules if not excluded(module)]
        if not options.update and not options.only:
            for reason in sorted({excluded(module) for module in modules} - {None}):
                names = [module for module in modules if excluded(module) == reason]
                tap.point(True, " ".join(names), directive=f"SKIP {reason}")
        with HugePages():
            results = collect(options, directory, run)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.update:
        update_list(options.list, results, options.user)
        return 0
    judge(tap, results, *read_list(options.list, options.user), not options.only and not options.older)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
