#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""UCX's server of connections by address, and a client that goes away before it is accepted; prints TAP."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time

import cm
import pairs
import special
import tap

ROUNDS = 5
LIMIT_S = 30


class Leaver:
    """leaver.c, which waits for a line after each of its own."""

    def __init__(self, host, program, address, port, server):
        who = {} if not host.root else dict(user=pairs.USERS['a'], group=pairs.USERS['a'], extra_groups=[])
        self.p = subprocess.Popen([program, address, str(port), str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=host.env(), text=True, **who)

    def step(self):
        """The port that it has asked from."""
        line = self.p.stdout.readline()
        if asked := re.match(r'asked from port (\d+)$', line):
            return int(asked[1])
        if self.p.wait() == 77:
            raise pairs.Skip(line.strip())
        raise pairs.Failure(f'the client that leaves: status {self.p.returncode}: {line}{self.p.stdout.read()}')

    def go_on(self):
        self.p.stdin.write('\n')
        self.p.stdin.flush()

    def close(self):
        self.p.kill()
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()


def ports_of(host, pid):
    """Where the connections that a program was told of come from."""
    text = subprocess.run([host.softhca, 'ps', '--json', str(pid)], capture_output=True, text=True).stdout
    processes = json.loads(text)['processes'] if text.strip() else []
    return {o.get('destination_port') for p in processes for o in p['objects'] if o['kind'] == 'cm_id'}


def wait_until_told(host, server, port):
    deadline = time.monotonic() + LIMIT_S
    while port not in ports_of(host, server.pid):
        if server.p.poll() is not None:
            raise pairs.Failure(f'the server ended, status {server.p.returncode}: {server.text()[-2000:]}')
        if time.monotonic() > deadline:
            raise pairs.Failure(f'the server was not told of the request from port {port} within {LIMIT_S} s: '
                                + server.text()[-2000:])
        time.sleep(pairs.POLL_S)


def leave(host, program, address, port, server):
    leaver = Leaver(host, program, address, port, server.pid)
    try:
        for _ in range(2):
            wait_until_told(host, server, leaver.step())
            leaver.go_on()
        if leaver.p.wait(LIMIT_S):
            raise pairs.Failure(f'the client that leaves: status {leaver.p.returncode}')
    finally:
        leaver.close()


def run(host, program, address, device):
    """The server must be as it was: the next client is served."""
    case = cm.ucx(address, device)
    port = case.ready[1]
    server = pairs.Side(host, case.server, env=case.env, launch=case.launch)
    deadline = time.monotonic() + LIMIT_S
    try:
        while not cm.is_ready(case, server):
            if server.p.poll() is not None or time.monotonic() > deadline:
                raise pairs.Failure('the server is not ready: ' + server.text())
            time.sleep(pairs.POLL_S)
        for _ in range(ROUNDS):
            leave(host, program, address, port, server)
        text = special.output(host, case.client, launch=case.launch, env=case.env, limit=LIMIT_S)
        for wanted in case.says:
            if wanted not in text:
                raise pairs.Failure(f'the client after it does not say {wanted!r}: {text}')
        if server.p.poll() is not None:
            raise pairs.Failure(f'the server ended, status {server.p.returncode}: {server.text()[-2000:]}')
    finally:
        server.kill()
        server.out.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs.add_options(ap)
    ap.add_argument('--leaver', required=True, help='the program of leaver.c')
    opt = ap.parse_args()
    host = pairs.host_of(opt)
    name = 'UCX: clients that go away before they are accepted'
    began = time.monotonic()
    print('1..1', flush=True)
    try:
        devices = cm.devices_by_address(host)
        address = next((a for a in [*cm.interface_addresses(), '127.0.0.1'] if a in devices and '.' in a), None)
        if not shutil.which('io_demo') or not address:
            raise pairs.Skip('io_demo is not installed' if address else 'no device has an IPv4 address')
        run(host, opt.leaver, address, devices[address])
        tap.result(1, name, began)
    except pairs.Skip as e:
        tap.result(1, name, began, skip=str(e))
    except pairs.Failure as e:
        tap.result(1, name, began, e)
        return 1
    finally:
        host.close()
    return 0


if __name__ == '__main__':
    sys.exit(main())
