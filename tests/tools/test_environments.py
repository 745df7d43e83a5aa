#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The mechanism that processes choose in each environment, and what softhca doctor says of it there: the list is that of
bench/environments.py.

usage: test_environments.py BUILD [--machine | --guest]
  --machine   only those that change a sysctl of the whole machine
  --guest     only those that need another kernel, in a guest of QEMU (tests/interop/lab.py)
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import tap  # of this folder: those that follow have one, too

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "bench"), os.path.join(TOP, "tests", "interop")]
sys.dont_write_bytecode = True

import environments  # noqa: E402
import lab  # noqa: E402

ANY = (-1, -1)  # processors
GUEST_LIMIT = 600

# What "this environment" of softhca doctor begins with.
ONE_SIDED = "RDMA WRITE, RDMA READ"
# Of a third of a second. On a busy machine one may end before its memory is mapped on demand, and says so.
RUNS = 3
TELLS = {environments.MAPPED: f"ok +this environment +{ONE_SIDED}, atomics: mapped memory ",
         environments.BY_THREADS: f"note +this environment +programs with one thread: {ONE_SIDED}, atomics: mapped memory .*\n"
                                  f" +programs with several threads: {ONE_SIDED}: kernel copy ",
         environments.MAPPED_OR_RING: f"note +this environment +programs with one thread: {ONE_SIDED}, atomics: mapped memory .*\n"
                                      f" +programs with several threads: {ONE_SIDED}, atomics, SEND: shared-memory ring ",
         environments.COPY: f"note +this environment +{ONE_SIDED}: kernel copy ",
         environments.RING: f"limited +this environment +{ONE_SIDED}, atomics, SEND: shared-memory ring "}
FIGURES = r"\n +\(figures: typical ones, docs/performance.md; not measured here\)"


def doctor_tells(said, environment):
    found = re.search(r"^\w+ +this environment .*(?:\n +programs .*)?" + FIGURES + r"(\n +remedy: .*)?", said, re.M)
    assert found, said
    assert re.match(TELLS[environment.doctor], found[0]), found[0]
    if environment.advice:
        assert re.search("remedy: .*" + environment.advice, found[0]), found[0]
    else:
        tap.equal(found[1], None)


def try_environment(build, environment):
    try:
        with environments.place(build, ANY, environment) as there:
            for _ in range(RUNS):
                _, (mechanism, why) = there.run("write", 8, "latency", "spin")
                if mechanism == environment.expected or "so far" not in why:
                    break
            tap.equal(mechanism, environment.expected, why)
            assert (mechanism == environments.MAPPED) == (why == ""), why
            doctor_tells(there.doctor(), environment)
    except environments.Unable as reason:
        raise tap.Skip(str(reason)) from None


def test_a_sysctl_is_set_back_when_the_program_is_killed():
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("before")
        file.flush()
        program = ("import environments, signal, sys\n"
                   "with environments.sysctl(sys.argv[1], 'meanwhile'):\n"
                   "    print(open(sys.argv[1]).read(), flush=True)\n"
                   "    signal.pause()\n")
        with subprocess.Popen([sys.executable, "-c", program, file.name], stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PYTHONPATH=os.path.join(TOP, "bench"))) as process:
            tap.equal(process.stdout.readline(), "meanwhile\n")
            process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while open(file.name, encoding="ascii").read() != "before":
            assert time.monotonic() < deadline, open(file.name, encoding="ascii").read()
            time.sleep(0.01)


def test_doctor_tells_of_a_choice_of_the_users(build):
    """SOFTHCA_LOCAL, of whoever runs this."""
    for chosen, tells in (("ring", environments.RING), ("cma", environments.RING), ("copy", environments.COPY)):
        said = subprocess.run([os.path.join(build, "softhca"), "doctor"], env=dict(os.environ, SOFTHCA_LOCAL=chosen),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout
        if tells == environments.COPY and not re.search("^ok +process_vm_readv", said, re.M):
            continue
        assert re.search("^" + TELLS[tells], said, re.M), said
        assert re.search(rf"remedy: unset SOFTHCA_LOCAL \(it is {chosen}\)$", said, re.M), said


def test_doctor_tells_of_users_without_a_name(build):
    said = subprocess.run(["unshare", "--user", "--net", os.path.join(build, "softhca"), "doctor"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    if said.returncode and not said.stdout:
        raise tap.Skip("user namespaces: " + lab.last_line(said.stderr))
    assert re.search("^limited +user +uid 65534 is the overflow uid", said.stdout, re.M), said.stdout
    assert re.search("^" + TELLS[environments.RING] + ".*" + FIGURES + r"\n +remedy: run with a uid that the user namespace maps", said.stdout, re.M), said.stdout


def test_doctor_tells_of_pid_namespaces(build):
    with contextlib.suppress(OSError):
        first = os.stat("/proc/self/ns/pid").st_ino == 0xeffffffc
        said = subprocess.run([os.path.join(build, "softhca"), "doctor"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60).stdout
        assert re.search("^ok +PID namespace +the initial PID namespace$" if first else "^note +PID namespace +its own", said,
                         re.M), said
    said = subprocess.run(["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", os.path.join(build, "softhca"), "doctor"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if said.returncode and not said.stdout:
        raise tap.Skip("PID namespaces: " + lab.last_line(said.stderr))
    assert re.search("^note +PID namespace +its own.*\n +remedy: .*shareProcessNamespace: true$", said.stdout, re.M), said.stdout


def add(module, name, function):
    setattr(module, "test_" + re.sub(r"[^\w*']+", "_", name), function)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build")
    ap.add_argument("--machine", action="store_true")
    ap.add_argument("--guest", action="store_true")
    ap.add_argument("--in-guest", metavar="TAP", help="used by this program itself: where the results go")
    opt = ap.parse_args()
    build = os.path.abspath(opt.build)
    if opt.guest:
        try:
            return lab.run(["python3", os.path.abspath(__file__), build, "--in-guest"], GUEST_LIMIT)
        except lab.Unable as e:
            print(f"1..0 # SKIP {e}", flush=True)
            return 0
    module = sys.modules[__name__]
    for name, function in list(vars(module).items()):
        if name.startswith("test_"):
            if opt.in_guest or opt.machine:
                delattr(module, name)
            elif function.__code__.co_argcount:
                setattr(module, name, lambda function=function: function(build))
    for environment in environments.IN_GUEST if opt.in_guest else environments.ENVIRONMENTS:
        if opt.in_guest or environment.changes == opt.machine:
            add(module, environment.name, lambda environment=environment: try_environment(build, environment))
    if opt.in_guest:
        sys.stdout = open(opt.in_guest, "w", encoding="utf-8", buffering=1)
    tap.main(module)


if __name__ == "__main__":
    sys.exit(main())
