#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Starts the server of a program, waits until it listens, starts its client, and ends as they do.

usage: pair.py PORT SERVER... -- CLIENT...
PORT: TCP; 0: the server is ready when it says so on stdout; a name: when the abstract socket with it in its name is there.
"""

import os
import re
import subprocess
import sys
import time


def listens(port):
    if not port.isdigit():
        with open("/proc/net/unix", encoding="ascii") as table:
            return port in table.read()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as table:
            if any(re.match(rf"\s*\d+: [0-9A-F]+:{int(port):04X} \S+ 0A ", line) for line in table):
                return True
    return False


def main():
    port, split = sys.argv[1], sys.argv.index("--")
    server = subprocess.Popen(sys.argv[2:split], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not listens(port):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the server does not listen: {server.poll()}")
        time.sleep(0.01)
    client = subprocess.run(sys.argv[split + 1:], stdin=subprocess.DEVNULL, check=False)
    if client.returncode:
        server.kill()
    sys.exit(client.returncode or server.wait(60))


main()
