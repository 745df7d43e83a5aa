#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Senders that stream faster than receivers take, between two hosts: how much of it arrives as whole messages, and what becomes of
a reliable connection beside it. Unreliable services lose some, which is theirs to do; but what arrives must not collapse: it is
held against what a reliable connection transfers alone. A sender that sends less, because its processor has other work, is no
collapse where most of it arrives. Prints TAP.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'programs'))
sys.dont_write_bytecode = True

import hosts  # noqa: E402
import judge  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402

LIMIT_S = 120
LEAST = 0.05  # of what the reliable connection transfers alone


@dataclass
class Stream:
    service: str = 'RC'
    size: int = 65536
    qps: int = 1

    @property
    def name(self):
        size = f'{self.size >> 20} MiB' if self.size >> 20 else f'{self.size >> 10} KiB'
        return f'{self.service} {size}' + (f', {self.qps} QPs' if self.qps > 1 else '')

    def command(self, port, seconds):
        return ['ib_send_bw', '-F', '-x', '0', '-p', str(port), '-D', str(seconds), '-c', self.service, '-s', str(self.size),
                *(['-q', str(self.qps)] if self.qps > 1 else [])]


def cases():
    """(streams at once, processes that are busy with something else)"""
    alone = [Stream(), Stream('UC'), Stream('UC', 1 << 20), Stream('UC', qps=16), Stream('UC', 1 << 20, 16), Stream('UD', 1024),
             Stream('UD', 1024, 16)]
    return [([s], 0) for s in alone] + [([Stream()], 2), ([Stream('UC')], 2), ([Stream('UD', 1024)], 2),
                                        ([Stream(), Stream('UC')], 0), ([Stream(), Stream('UD', 1024)], 0),
                                        ([Stream('UC')] * 4, 0)]


def name_of(streams, busy):
    words = ' beside '.join(s.name for s in streams) if len({s.name for s in streams}) > 1 else streams[0].name
    return words + (f', {len(streams)} times' if len(streams) > 1 and ' beside ' not in words else '') + (
        f', {busy} busy processes' if busy else '')


def rate(side):
    """MiB/s."""
    rows = judge.perftest_rows(side.text())
    if len(rows) != 1:
        raise pairs.Failure(f'no result: {side.text()}')
    return rows[0][3]


class Pair:
    def __init__(self, opt, host, two, stream):
        port = pairs.free_port()
        command = stream.command(port, opt.seconds)
        self.stream, self.sides = stream, [pairs.Side(host, command)]
        deadline = time.monotonic() + LIMIT_S
        while not pairs.listening(port, self.sides[0].pid):
            if self.sides[0].p.poll() is not None or time.monotonic() > deadline:
                raise pairs.Failure(f'server did not listen: {self.sides[0].text()}')
            time.sleep(pairs.POLL_S)
        self.sides.append(pairs.Side(host, command + [hosts.NEAR[0]], prefix=two.there()))

    def finish(self):
        """(sent, arrived)"""
        deadline = time.monotonic() + LIMIT_S
        for side, name in zip(self.sides, ('server', 'client')):
            if (status := side.wait(deadline)) != 0:
                raise pairs.Failure(f'{self.stream.name}: {name} status {status}: {side.text()}')
        return rate(self.sides[1]), rate(self.sides[0])

    def close(self):
        for side in self.sides:
            side.kill()
            side.out.close()


def run(opt, host, two, streams, busy):
    others = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(busy)]
    running = []
    try:
        for stream in streams:
            running.append(Pair(opt, host, two, stream))
        return [p.finish() for p in running]
    finally:
        for p in running:
            p.close()
        for p in others:
            p.kill()
            p.wait()


def run_all(opt, host, two):
    todo, failed, bar = cases(), 0, 0
    print(f'1..{len(todo)}', flush=True)
    for number, (streams, busy) in enumerate(todo, 1):
        began = time.monotonic()
        try:
            rates = run(opt, host, two, streams, busy)
            for stream, (sent, arrived) in zip(streams, rates):
                if not sent:
                    raise pairs.Failure(f'{stream.name}: nothing was sent in {opt.seconds} s')
                share = f', {100 * arrived / sent:.0f} %' if stream.service != 'RC' else ''
                print(f'# {stream.name}: {sent:.0f} MiB/s sent, {arrived:.0f} arrive{share}')
            sent, arrived = (sum(column) for column in zip(*rates))
            if (streams, busy) == ([Stream()], 0):
                bar = LEAST * arrived
            if arrived < bar and (arrived < sent / 2 or any(s.service == 'RC' for s in streams)):
                raise pairs.Failure(f'{arrived:.0f} MiB/s arrive in all, at least {bar:.0f} should')
            tap.result(number, name_of(streams, busy), began, slow=LIMIT_S)
        except pairs.Failure as e:
            failed += 1
            tap.result(number, name_of(streams, busy), began, failure=e)
    return failed


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True, help='directory of libibverbs.so.1')
    ap.add_argument('--seconds', type=int, default=4, help='of each stream')
    opt = ap.parse_args()
    two = hosts.entered(1500)
    if not two:
        return 0
    host = pairs.Host(opt.lib, users=hosts.has_users())
    try:
        return 1 if run_all(opt, host, two) else 0
    finally:
        two.close()
        host.close()


if __name__ == '__main__':
    sys.exit(main())
