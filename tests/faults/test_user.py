#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca run --fault of packaged programs by an ordinary user with default limits: how they end, and what is told.

usage: test_user.py SOFTHCA
"""

import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import tap  # noqa: E402
from started import environment, own_network  # noqa: E402

SOFTHCA = os.path.abspath(sys.argv[1])
RUN = [os.path.join(HERE, "..", "..", "scripts", "as-user.sh"), SOFTHCA, "run"]
PORT, PATIENCE = 18700, 120
WRITES = ["ib_write_bw", "-p", str(PORT), "-F", "-n", "300", "-s", "3000"]
PINGS = ["rping", "-a", "127.0.0.1", "-C", "20"]
TABLES = {"ib_write_bw": ("/proc/net/tcp", f":{PORT:04X} 00000000:0000 0A"), "rping": ("/proc/net/unix", "softhca/1/")}


def is_ready(program):
    path, word = TABLES[program]
    with open(path, encoding="ascii") as table:
        return word in table.read()


def meet(server, client, fault, stays=False):
    """How the client ends, and the server unless it stays; what both have said."""
    if not shutil.which(client[0]):
        raise tap.Skip(f"{client[0]} is not installed")
    there = subprocess.Popen([*RUN, "--", *server], env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not is_ready(client[0]):
            assert there.poll() is None and time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.02)
        here = subprocess.run([*RUN, "--fault", fault, "--", *client], env=environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        if stays:
            assert there.poll() is None
            there.terminate()
        said = there.communicate(timeout=PATIENCE)[0]
    finally:
        if there.poll() is None:
            there.kill()
            there.communicate()
    assert f"injected fault '{fault}' applied: " in here.stderr, here.stderr
    assert "injected" not in said, said  # nobody blames a fault where none was asked for
    return here.returncode, None if stays else there.returncode, here.stdout + here.stderr


def writes(fault):
    return meet(WRITES, [*WRITES, "127.0.0.1"], fault)


def pings(fault, stays=False):
    return meet([*PINGS, "-s"], [*PINGS, "-c"], fault, stays)


def test_lost_packets_are_made_good():
    tap.equal(writes("packet=drop percent=5 seed=3")[:2], (0, 0))
    tap.equal(pings("packet=drop percent=10 seed=3")[:2], (0, 0))


def test_a_completion_that_fails_is_explained():
    here, there, text = writes("completion=RETRY_EXC_ERR n=50")
    tap.equal((here, there), (1, 1))
    assert "went to ERR: wr_id 0, RDMA WRITE of 3000 bytes" in text and ": an injected fault (softhca run --fault" in text, text
    here, there, text = pings("completion=RETRY_EXC_ERR n=2 opcode=SEND")
    assert here == 255 and there == 0 and "cq completion failed status 12" in text and ": an injected fault (" in text, text


def test_a_port_that_goes_down_is_explained():
    for ends, (here, there, text) in ((1, 1), writes("event=port_down n=50")), ((255, 0), pings("event=port_down n=10")):
        tap.equal((here, there), ends)
        assert "the port is down (injected fault event=port_down); caused by an injected fault" in text, text


def test_a_connection_that_is_rejected_is_told():
    here, _, text = pings("cm=REJECTED reason=NO_RESOURCES", stays=True)
    assert here == 255 and "RDMA_CM_EVENT_REJECTED, error 3" in text, text


if os.environ.get("TEST_USER_NETWORK") != "own":
    os.environ["TEST_USER_NETWORK"] = "own"
    command = own_network()
    os.execvp(command[0], [*command, sys.executable, *sys.argv])
tap.main(sys.modules[__name__])
