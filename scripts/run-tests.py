#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Builds and runs everything that `make check` stands for, and ends with `N passed, N failed, N skipped`.

A stage is a build directory: the plain gcc build with all tests, a clang build, and the sanitizer builds with the tests
that make sense there. Cases are counted one by one: TAP and cmocka output are read from meson's log; a test with other
output is one case, and exit code 77 with a last line of output is a skip with its reason. docs/testing.md lists the
suites and what each target runs.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# name, build directory, C compiler, meson options, suites (None: all), timeout multiplier: a test ends itself when it
# hangs; meson does it where the machine has so much else to do that nothing else would help
STAGES = [
    ("gcc", "build", "gcc", [], None, 4),
    ("clang", "build-clang", "clang", [], ["unit", "sim", "abi"], 4),
    # -O1: its compiler takes twice as long for -O2, and what is optimized away is not looked at.
    ("asan", "build-asan", "gcc", ["-Db_sanitize=address,undefined", "-Dc_args=-O1"],
     ["unit", "sim", "process", "ring", "stress", "addresses"], 8),
    ("tsan", "build-tsan", "clang", ["-Db_sanitize=thread", "-Db_lundef=false"],
     ["unit", "behaviour", "room", "stress"], 10),
]

# The suites of `make quick`; those in "quick" are the behaviour topics, each on one path.
QUICK = ["unit", "sim", "abi", "quick"]
# The suites of what only check-long runs in a stage, because another path of the same topic runs in check.
MATRIX = {"asan": "matrix-asan", "tsan": "matrix-tsan"}
# What the stages with chosen suites run besides them in check-long.
LONG_TOO = ["sim", "behaviour", "stress"]

SANITIZER_ENV = {
    "asan": {"ASAN_OPTIONS": "abort_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1",
             "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
    "tsan": {"TSAN_OPTIONS": "atexit_sleep_ms=0:halt_on_error=1:second_deadlock_stack=1:history_size=4:"
                             "die_after_fork=0:suppressions="
                             + os.path.join(TOP, "tests", "support", "tsan.supp")},
}


OUT_OF_TIME = "not run: make check takes too long on this machine (make check-long has no limit)"


GOOD = ("OK", "EXPECTEDFAIL", "SKIP")
# More tests than this do not fail by accident.
ACCIDENTS = 4


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add(self, name, outcome, reason=""):
        if outcome == "pass":
            self.passed += 1
        elif outcome == "skip":
            self.skipped.append((name, reason or "no reason given"))
        else:
            self.failed.append((name, reason))


def say(text):
    print(text, flush=True)


def run(command, **kwargs):
    return subprocess.run(command, cwd=TOP, stdin=subprocess.DEVNULL, **kwargs)


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def tap_cases(text):
    """Yields (name, outcome, reason) for each test point, and a failure if the plan was not kept. What a test has to say
    about a failure comes in comments behind it."""
    plan, points, comment = None, [], ""
    for line in text.splitlines():
        match = re.match(r"1\.\.(\d+)(?:\s*#\s*SKIP\s*(.*))?", line, re.I)
        if match:
            plan = int(match.group(1))
            if plan == 0:
                points.append(["", "skip", match.group(2) or comment])
            continue
        if re.match(r"Bail out!", line):
            points.append(["", "fail", line])
            continue
        point = re.match(r"(not )?ok\b\s*(\d+)?\s*(?:-\s*)?(.*)$", line)
        if not point:
            text = line.lstrip("# ").strip()
            if not text or text.startswith("not ok"):
                continue
            # cmocka tells the place in a line of its own, behind what was printed.
            comment = f"{comment} {text}" if text.startswith("[") and comment else text
            if points and points[-1][1] == "fail" and line.startswith("#"):
                points[-1][2] = comment
            continue
        rest = point.group(3)
        directive = re.search(r"#\s*(SKIP|TODO)\S*\s*(.*)$", rest, re.I)
        if directive and directive.group(1).upper() == "SKIP":
            name = rest[:directive.start()].strip()
            # cmocka: "not ok 3 # SKIP name", the reason is what it printed before.
            points.append([name or directive.group(2), "skip", directive.group(2) if name else comment])
        elif directive:
            points.append([rest[:directive.start()].strip(), "pass", ""])
        else:
            points.append([rest.strip(), "fail" if point.group(1) else "pass", ""])
        comment = ""
    yield from points
    if plan is not None and plan > 0 and plan != len(points):
        yield "", "fail", f"{plan} test points planned, {len(points)} seen"


def cmocka_cases(text):
    for outcome, name in re.findall(r"^\[\s+(OK|SKIPPED|FAILED|ERROR)\s+\] (\w+)$", text, re.M):
        if outcome == "OK":
            yield name, "pass", ""
        elif outcome == "SKIPPED":
            yield name, "skip", ""


def count_record(tally, stage, record):
    # meson's name is "project:suite+suite / name".
    name = f"{stage}: {test_name(record['name'])}"
    result = record["result"]
    out, err = record.get("stdout", ""), record.get("stderr", "")
    counted = failed = 0
    if re.search(r"^1\.\.\d+", out, re.M):
        for case, outcome, reason in tap_cases(out):
            tally.add(f"{name}: {case}" if case else name, outcome, reason)
            counted += 1
            failed += outcome == "fail"
    elif re.search(r"^\[=+\] Running", out + err, re.M) and result == "OK":
        for case, outcome, reason in cmocka_cases(out + err):
            tally.add(f"{name}: {case}", outcome, reason)
            counted += 1
    if result in ("OK", "EXPECTEDFAIL"):
        if not counted:
            tally.add(name, "pass")
    elif result == "SKIP":
        if not counted:
            tally.add(name, "skip", last_line(out) or last_line(err))
    elif not failed:
        tally.add(name, "fail", f"{result.lower()}, exit status {record.get('returncode')}: {last_line(err or out)}")


def build(directory, compiler, options, niceness):
    path = os.path.join(TOP, directory)
    env = dict(os.environ, CC=compiler)
    if os.path.exists(os.path.join(path, "build.ninja")):
        step = run(["meson", "configure", directory, "-Dwerror=true", "-Dtests=true"], env=env, capture_output=True,
                   text=True)
    else:
        step = run(["meson", "setup", directory, "-Dwerror=true"] + options, env=env, capture_output=True, text=True)
    if step.returncode:
        return step.stdout + step.stderr
    step = run(["nice", "-n", str(niceness), "ninja", "-C", directory], capture_output=True, text=True)
    return step.stdout + step.stderr if step.returncode else None


def tests_of(directory):
    """Returns the tests of a build directory: name -> suites."""
    listing = run(["meson", "introspect", "--tests", directory], capture_output=True, text=True)
    return {test["name"]: {suite.split(":", 1)[-1] for suite in test["suite"]}
            for test in json.loads(listing.stdout or "[]")}


def is_of_topic(name, suites, pattern):
    """Whether the pattern is the test's name, the beginning of it up to a hyphen, space or comma, or a suite."""
    return bool(re.fullmatch(f"(?:{pattern})(?:[-, ].*)?", name)) or any(re.fullmatch(pattern, suite) for suite in suites)


def topics_of(tests):
    """Returns the words that stand for several tests each, and the suites."""
    return sorted({name.split("-")[0] for name in tests}), sorted(set().union(*tests.values()))


def run_until(command, deadline, env):
    """Returns the exit status of meson, or None if it had to be stopped (then it ends its tests itself)."""
    process = subprocess.Popen(command, cwd=TOP, stdin=subprocess.DEVNULL, env=env)
    try:
        return process.wait(timeout=None if deadline is None else max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def address_space_too_random():
    """The sanitizers of gcc 12 and clang 14 need their shadow where 32 bits of randomness may put something else."""
    try:
        bits = int(open("/proc/sys/vm/mmap_rnd_bits", encoding="ascii").read())
    except (OSError, ValueError):
        return False
    return bits > 28 and run(["setarch", "-R", "true"], capture_output=True).returncode == 0


def test_name(name):
    """Of meson's "project:suite+suite / name", in newer releases "suite+suite - project:name"."""
    _, separator, rest = name.partition(" - ")
    return rest.split(":", 1)[-1] if separator and " / " not in name else name.split(" / ", 1)[-1]


def read_records(log):
    records = {}
    if os.path.exists(log):
        for line in open(log, encoding="utf-8", errors="replace"):
            record = json.loads(line)
            records[record["name"]] = record
    return records


def selection(options, stage, suites, tests):
    """Returns the arguments that make meson run what the options ask for of this stage, None if that is nothing."""
    if options.only:
        names = [name for name, of in tests.items() if is_of_topic(name, of, options.only)
                 and (options.long or "long" not in of) and (stage == "gcc" or "plain" not in of)]
        return names or None
    chosen = []
    if options.quick:
        suites = QUICK
    elif suites is not None and options.long:
        suites = suites + LONG_TOO
    if suites is not None:
        present = set().union(*tests.values())
        chosen = [suite for suite in suites if suite in present]
        if not chosen:
            return None
    # A test in the suite "long" is for check-long, and so is, in this stage, one in MATRIX; one in "plain" only makes
    # sense without sanitizers.
    without = ([] if options.long else ["long", MATRIX.get(stage, "matrix")]) + ([] if stage == "gcc" else ["plain"])
    return [word for suite in chosen for word in ("--suite", suite)] + \
        [word for suite in without for word in ("--no-suite", suite)]


def run_stage(tally, built, stage, directory, suites, multiplier, options, deadline):
    began = time.monotonic()
    if deadline is not None and began > deadline:
        tally.add(f"{stage}: all tests", "fail", OUT_OF_TIME)
        return
    say(f"== {stage}: building in {directory}")
    errors = built.result()
    if errors is not None:
        say("\n".join(errors.splitlines()[-60:]))
        tally.add(f"{stage}: builds without warnings", "fail", last_line(errors))
        return
    tally.add(f"{stage}: builds without warnings", "pass")

    tests = tests_of(directory)
    selected = selection(options, stage, suites, tests)
    if selected is None:
        topics, suites = topics_of(tests)
        say(f"== {stage}: no test of {options.only or ', '.join(suites)}")
        if options.only:
            for kind, words in ("topics", topics), ("suites", suites):
                say(textwrap.fill(", ".join(words), 120, initial_indent=f"{kind}: ", subsequent_indent="    "))
            tally.add(f"{stage}: tests of {options.only}", "fail", "no such topic")
        return
    command = ["meson", "test", "-C", directory, "--no-rebuild", "--print-errorlogs",
               "--timeout-multiplier", str(multiplier * (4 if options.long else 1))]
    if stage in SANITIZER_ENV and address_space_too_random():
        command += ["--wrapper", "setarch -R"]
    if not options.long:
        # Most tests wait for most of their time.
        command += ["--num-processes", str(max(2, 3 * len(os.sched_getaffinity(0)) // 2))]
    log = os.path.join(TOP, directory, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.unlink(log)
    env = dict(os.environ, **SANITIZER_ENV.get(stage, {}))
    env.setdefault("CMOCKA_MESSAGE_OUTPUT", "TAP")
    if options.long:
        env["SOFTHCA_TEST_LONG"] = "1"
    for noise in ("MALLOC_PERTURB_",):
        env.setdefault(noise, "0")
    say(f"== {stage}: running")
    status = run_until(command + selected, deadline, env)
    if status is None:
        tally.add(f"{stage}: the rest of the tests", "fail", OUT_OF_TIME)
    records = read_records(log)
    bad = [name for name, record in records.items() if record["result"] not in GOOD]
    if status and 0 < len(bad) <= ACCIDENTS:
        # Among many others a test may have got too little of the machine. It has one more try, alone, and is told of.
        os.unlink(log)
        first = Tally()
        for name in bad:
            count_record(first, stage, records[name])
        for name, reason in first.failed:
            say(f"first try: {name}: {reason}")
        say(f"== {stage}: once more, alone: {', '.join(test_name(name) for name in bad)}")
        run_until(command + ["--num-processes", "1"] + [test_name(name) for name in bad], deadline, env)
        for name, record in read_records(log).items():
            if record["result"] in GOOD:
                say(f"unsteady: {stage}: {test_name(name)} failed among others and passed alone")
            records[name] = record
    for record in records.values():
        count_record(tally, stage, record)
    if not records and status:
        tally.add(f"{stage}: meson test", "fail", f"exit status {status}, no log")
    say(f"== {stage}: {time.monotonic() - began:.0f} s")


def lint(tally):
    say("== lint")
    step = run(["scripts/check-arrows.py"], capture_output=True, text=True)
    if step.stdout:
        say(step.stdout.rstrip())
    tally.add("lint: includes point down, every file names its licence", "fail" if step.returncode else "pass",
              last_line(step.stdout))
    step = run(["scripts/check-descriptors.py"], capture_output=True, text=True)
    if step.stdout:
        say(step.stdout.rstrip())
    tally.add("lint: no descriptor of ours is 0 to 2", "fail" if step.returncode else "pass", last_line(step.stdout))
    step = run(["scripts/check-references.py"], capture_output=True, text=True)
    if step.stdout:
        say(step.stdout.rstrip())
    tally.add("lint: what is cited is here", "fail" if step.returncode else "pass", last_line(step.stdout))
    version = shutil.which("clang-format") and run(["clang-format", "--version"], capture_output=True, text=True).stdout
    if not version or " version 14." not in " " + version:
        tally.add("lint: format", "skip", "needs clang-format 14: another version formats differently")
    else:
        step = run(["scripts/lint.sh", "--format"], capture_output=True, text=True)
        if step.returncode:
            say("\n".join((step.stdout + step.stderr).splitlines()[-20:]))
        tally.add("lint: format", "fail" if step.returncode else "pass", last_line(step.stdout + step.stderr))


def readable_by_everybody():
    """Tests between users need a checkout that an ordinary user can reach."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return True
    probe = run([os.path.join(TOP, "scripts", "as-user.sh"), "test", "-r", os.path.join(TOP, "Makefile")],
                capture_output=True)
    return probe.returncode == 0


def rerun_from_copy(arguments):
    """The checkout is in a directory that only root can enter (/root, a CI workspace): run a copy of it elsewhere."""
    copy = tempfile.mkdtemp(prefix="softhca-check-", dir="/var/tmp")
    os.chmod(copy, 0o755)
    try:
        tree = os.path.join(copy, "softhca")
        shutil.copytree(TOP, tree, symlinks=True,
                        ignore=lambda folder, names: [n for n in names if folder == TOP and n.startswith("build")
                                                      and n != "build-deps"])
        say(f"== the checkout cannot be read by an ordinary user: running from {tree}")
        os.environ.setdefault("SOFTHCA_TEST_TOP", TOP)
        return subprocess.run([os.path.join(tree, "scripts", "run-tests.py")] + arguments, cwd=tree,
                              stdin=subprocess.DEVNULL).returncode
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="no limit on time")
    parser.add_argument("--minutes", type=float, default=60,
                        help="stop after this time (default %(default)s; an idle machine with two processors needs about 20)")
    parser.add_argument("--quick", action="store_true", help="the gcc build with the unit tests, the simulations, the ABI "
                        "and the behaviour topics, each on one path")
    parser.add_argument("--only", metavar="TOPIC", help="the gcc build with the tests whose name, or the beginning of it up "
                        "to a hyphen, or a suite of which is this (a regular expression), on all their paths")
    parser.add_argument("--stage", action="append", help="only this stage (lint, " +
                        ", ".join(stage[0] for stage in STAGES) + ")")
    options = parser.parse_args()
    if (options.quick or options.only) and not options.stage:
        options.stage = ["gcc"]
    if not readable_by_everybody():
        return rerun_from_copy(sys.argv[1:])

    os.umask(0o022)
    began = time.monotonic()
    deadline = None if options.long else began + 60 * options.minutes
    tally = Tally()
    try:
        stages = [stage for stage in STAGES if not options.stage or stage[0] in options.stage]
        if not options.stage or "lint" in options.stage:
            lint(tally)
        # The tests of a stage wait more than they compute: meanwhile the later stages are built.
        builder = concurrent.futures.ThreadPoolExecutor(1)
        try:
            builds = [builder.submit(build, directory, compiler, meson_options, 15 if number else 0)
                      for number, (_, directory, compiler, meson_options, _, _) in enumerate(stages)]
            for built, (stage, directory, _, _, suites, multiplier) in zip(builds, stages):
                run_stage(tally, built, stage, directory, suites, multiplier, options, deadline)
        finally:
            builder.shutdown(cancel_futures=True)
    except Exception as error:  # the closing line is a promise, whatever goes wrong
        tally.add("run-tests.py", "fail", repr(error))

    say(f"== {time.monotonic() - began:.0f} s in all")
    for name, reason in tally.skipped:
        say(f"skipped: {name}: {reason}")
    for name, reason in tally.failed:
        say(f"failed: {name}" + (f": {reason}" if reason else ""))
    say(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
