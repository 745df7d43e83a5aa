#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""UCX, as packaged, over the verbs: two processes each time. UCX finds the devices through the path shim.

usage: test_ucx.py SOFTHCA
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time

import tap

SOFTHCA = os.path.abspath(sys.argv[1])
PATIENCE = 120


def listening(port):
    """Whether a TCP socket listens: connecting would be taken for the client."""
    for name in "/proc/net/tcp", "/proc/net/tcp6":
        for line in open(name, encoding="ascii").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                return True
    return False


def talk(*options, iterations, env=None):
    if not shutil.which("ucx_perftest"):
        raise tap.Skip("ucx_perftest is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [SOFTHCA, "run", "--", "ucx_perftest", *options, "-n", str(iterations), "-w", "10", "-p", str(port)]
    environment = dict(os.environ, **(env or {}))
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    client = None
    try:
        limit = time.monotonic() + PATIENCE
        while not listening(port):
            if server.poll() is not None or time.monotonic() > limit:
                raise AssertionError("the server does not listen:\n" + (server.communicate()[0] if server.poll() else ""))
            time.sleep(0.02)
        client = subprocess.Popen(command + ["127.0.0.1"], env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = client.communicate(timeout=PATIENCE)[0]
        tap.equal(client.returncode, 0, told)
        told_by_server = server.communicate(timeout=PATIENCE)[0]
        tap.equal(server.returncode, 0, told_by_server)
        assert re.search(rf"^Final: +{iterations} ", told, re.M), told
    finally:
        for process in server, client:
            if process and process.poll() is None:
                process.kill()
                process.wait()


def ucp(test, transport, size, iterations, **env):
    # The auxiliary transport is needed to wire up, so that plain "rc_verbs" would not do.
    talk("-t", test, "-s", str(size), iterations=iterations,
         env=dict(UCX_NET_DEVICES="softhca0:1", UCX_TLS=transport, **env))


def test_rc_active_messages():
    talk("-x", "rc_verbs", "-d", "softhca0:1", "-t", "am_lat", iterations=1000)


def test_ud_active_messages():
    talk("-x", "ud_verbs", "-d", "softhca0:1", "-t", "am_lat", iterations=200)


def test_rc_put_and_get():
    talk("-x", "rc_verbs", "-d", "softhca0:1", "-t", "put_lat", iterations=1000)
    talk("-x", "rc_verbs", "-d", "softhca0:1", "-t", "get", "-D", "bcopy", iterations=1000)


def test_rc_atomics():
    try:
        talk("-x", "rc_verbs", "-d", "softhca0:1", "-t", "fadd", iterations=1000)
    except AssertionError as error:
        if "does not support required 64-bit atomic" not in str(error):
            raise
        raise tap.Skip("UCX uses atomics only of a device that says IBV_ATOMIC_HCA, and ours says IBV_ATOMIC_GLOB") from None


def test_tagged_messages_over_rc():
    ucp("tag_lat", "rc_v", 8, 1000)
    ucp("tag_bw", "rc_v", 65536, 200)


def test_transports_as_the_manual_names_them():
    ucp("tag_lat", "self,rc_v", 8, 500)


def test_rc_alone_has_no_auxiliary_transport():
    """What docs/running.md says of it: should it come to work, the page is to be changed."""
    try:
        ucp("tag_lat", "self,rc_verbs", 8, 10)
    except AssertionError as error:
        assert "no auxiliary transport" in str(error), error
    else:
        raise AssertionError("it works")


def test_tagged_messages_over_ud():
    ucp("tag_lat", "ud_v", 8, 200)
    ucp("tag_bw", "ud_v", 65536, 50)


def test_streams_over_rc():
    ucp("stream_bw", "rc_v", 65536, 200)


def test_mapped_memory():
    ucp("tag_bw", "rc_v", 1 << 20, 50, SOFTHCA_LOCAL="mapped")
    ucp("ucp_put_lat", "rc_v", 4096, 500, SOFTHCA_LOCAL="mapped")
    ucp("ucp_get", "rc_v", 65536, 200, SOFTHCA_LOCAL="mapped")


if __name__ == "__main__":
    tap.main(sys.modules[__name__])
