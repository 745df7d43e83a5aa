#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Starts the server of a program, waits until it listens, starts its client, and ends as they do.

usage: pair.py PORT SERVER... -- CLIENT...
PORT: TCP; a name: the server is ready when the abstract socket with it in its name is there; #bytes: when it says that.
"""

import os
import re
import subprocess
import sys
import threading
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
    says = port.startswith("#")
    ours, its = os.openpty() if says else (None, None)  # to a pipe it would write when it ends
    server = subprocess.Popen(sys.argv[2:split], stdin=subprocess.DEVNULL, stdout=its)
    deadline = time.monotonic() + 60
    if says:
        text = open(ours, "rb", buffering=0)
        said = b""
        while port.encode() not in said:
            said += text.read(4096)
        threading.Thread(target=text.read, args=(1 << 20,), daemon=True).start()
    while not says and not listens(port):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the server does not listen: {server.poll()}")
        time.sleep(0.01)
    client = subprocess.run(sys.argv[split + 1:], stdin=subprocess.DEVNULL, check=False)
    if client.returncode:
        server.kill()
    sys.exit(client.returncode or server.wait(60))


main()
