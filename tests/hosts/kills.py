#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Many processes of one host talk over the network to as many of another at once, each to each, while one after the other is
killed and started again: the others lose nothing, repeat nothing and mix nothing up, and the new one is talked to. Prints TAP.
"""

import argparse
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'programs'))
sys.dont_write_bytecode = True

import hosts  # noqa: E402
import pairs  # noqa: E402

LIMIT_S = 300  # for anything to come to pass; two processors may be busy with other things
BEAT_S = 1  # between kills, at least


class Wrong(Exception):
    pass


class Talker:
    """A process, and what it has said so far."""

    def __init__(self, crowd, host, number):
        self.crowd, self.host, self.number = crowd, host, number
        self.card = self.report = None
        self.ready, self.stopped, self.over = {}, False, False
        self.p = subprocess.Popen([*crowd.prefix(host), crowd.program, str(number), str(crowd.size)], cwd='/',
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=crowd.env, bufsize=1)
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def name(self):
        return f'{"near far".split()[self.host]} {self.number}'

    def _listen(self):
        for line in self.p.stdout:
            with self.crowd.news:
                self._take(line.split())
                self.crowd.news.notify_all()
        with self.crowd.news:
            self.over = True
            self.crowd.news.notify_all()

    def _take(self, words):
        if words[0] == 'card':
            self.card = words[1], [int(w) for w in words[2:]]
        elif words[0] == 'ready':
            self.ready[int(words[1])] = int(words[2])
        elif words[0] == 'report':
            self.report = {int(p): (int(c), int(m)) for p, c, m in (w.split(':') for w in words[1:])}
        elif words[0] == 'stopped':
            self.stopped = True
        elif words[0] == 'lost':
            self.crowd.lost.append((self.host, self.number, int(words[1]), int(words[2]), ' '.join(words[3:])))
        else:
            self.crowd.complaints.append(f'{self.name}: {" ".join(words)}')

    def tell(self, text):
        try:
            self.p.stdin.write(text + '\n')
            self.p.stdin.flush()
        except BrokenPipeError:
            pass  # it says why, or is missed

    def kill(self):
        self.p.kill()
        self.p.wait()


class Crowd:
    def __init__(self, opt, two, host):
        self.size, self.program, self.two = opt.processes, os.path.abspath(opt.talker), two
        self.env = dict(host.env(), SOFTHCA_LOG='error', SOFTHCA_EXPLAIN='off', SOFTHCA_UDP_LOSS=opt.loss)
        self.users = ('setpriv', '--reuid=61001', '--regid=61001', '--clear-groups', '--') if host.root else ()
        self.news = threading.Condition()
        self.complaints, self.lost, self.dead = [], [], set()
        self.connections = 0
        self.connection = {}  # (near, far) → number
        self.sides = [[Talker(self, h, n) for n in range(self.size)] for h in (0, 1)]

    def prefix(self, host):
        return (*(self.two.there() if host else ()), *self.users)

    def wait(self, what, condition):
        deadline = time.monotonic() + LIMIT_S
        with self.news:
            while not condition():
                self._check()
                if not self.news.wait(deadline - time.monotonic()) and time.monotonic() > deadline:
                    raise Wrong(f'within {LIMIT_S} s: not {what}')
            self._check()

    def _check(self):
        if self.complaints:
            raise Wrong('; '.join(self.complaints[:5]))
        for host, number, peer, connection, status in self.lost:
            if connection not in self.dead:
                raise Wrong(f'{self.sides[host][number].name} lost {peer}: {status}, and nobody was killed')
        for side in self.sides:
            for talker in side:
                if talker.over:
                    raise Wrong(f'{talker.name} has ended, exit status {talker.p.poll()}')

    def connect(self, pairs_of):
        """Ready to receive on both sides first, so that nothing comes too early."""
        for pair in pairs_of:
            self.connections += 1
            self.dead.add(self.connection.get(pair))
            self.connection[pair] = self.connections
        for near, far in pairs_of:
            number = self.connection[near, far]
            a, b = self.sides[0][near], self.sides[1][far]
            a.tell(f'rtr {far} {number} {b.card[0]} {b.card[1][near]}')
            b.tell(f'rtr {near} {number} {a.card[0]} {a.card[1][far]}')
        self.wait('all are ready', lambda: all(self.sides[0][n].ready.get(f) == self.connection[n, f] and
                                               self.sides[1][f].ready.get(n) == self.connection[n, f]
                                               for n, f in pairs_of))
        for near, far in pairs_of:
            self.sides[0][near].tell(f'rts {far}')
            self.sides[1][far].tell(f'rts {near}')

    def cards(self):
        self.wait('all have opened', lambda: all(t.card for side in self.sides for t in side))

    def reports(self):
        everybody = [t for side in self.sides for t in side]
        for t in everybody:
            t.report = None
            t.tell('report')
        self.wait('all report', lambda: all(t.report for t in everybody))

    def received(self, near, far):
        """The fewer of both directions, of the connection that there is now."""
        number = self.connection[near, far]
        got = [t.report[p] for t, p in ((self.sides[0][near], far), (self.sides[1][far], near))]
        return min((m if c == number else 0) for c, m in got)

    def wait_talking(self, pairs_of, messages):
        """Both ways, so many more than now."""
        self.reports()
        goal = {pair: self.received(*pair) + messages for pair in pairs_of}
        deadline = time.monotonic() + LIMIT_S
        while behind := [p for p in pairs_of if self.received(*p) < goal[p]]:
            if time.monotonic() > deadline:
                raise Wrong(f'within {LIMIT_S} s: {len(behind)} pairs do not talk, such as {behind[0]}')
            time.sleep(0.1)
            self.reports()

    def all_pairs(self):
        return [(n, f) for n in range(self.size) for f in range(self.size)]

    def replace(self, host, number):
        with self.news:
            mine = [p for p in self.all_pairs() if p[host] == number]
            self.dead.update(self.connection[p] for p in mine)
            self.sides[host][number].kill()
            self.sides[host][number] = Talker(self, host, number)
        self.cards()
        self.connect(mine)

    def end(self):
        everybody = [t for side in self.sides for t in side]
        for t in everybody:
            t.tell('stop')
        self.wait('all have stopped', lambda: all(t.stopped for t in everybody))
        for t in everybody:
            t.tell('quit')
        for t in everybody:
            if t.p.wait(LIMIT_S):
                raise Wrong(f'{t.name}: exit status {t.p.returncode}')

    def close(self):
        for side in self.sides:
            for t in side:
                t.kill()


def run(opt, two, host):
    chance = random.Random(opt.seed)
    crowd = Crowd(opt, two, host)
    try:
        crowd.cards()
        crowd.connect(crowd.all_pairs())
        crowd.wait_talking(crowd.all_pairs(), 1)
        for _ in range(opt.kills):
            began = time.monotonic()
            crowd.replace(chance.randrange(2), chance.randrange(opt.processes))
            time.sleep(max(0, began + BEAT_S - time.monotonic()))
        crowd.wait_talking(crowd.all_pairs(), 2)
        total = sum(m for side in crowd.sides for t in side for _, m in t.report.values())
        crowd.end()
        return total
    finally:
        crowd.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True, help='directory of libibverbs.so.1')
    ap.add_argument('--talker', required=True, help='the program of each process')
    ap.add_argument('--processes', type=int, default=32, help='of each host')
    ap.add_argument('--kills', type=int, default=8)
    ap.add_argument('--seed', type=int, default=1)
    ap.add_argument('--loss', default='0', help='SOFTHCA_UDP_LOSS of all')
    opt = ap.parse_args()
    two = hosts.entered(1500)
    if not two:
        return 0
    print('1..1', flush=True)
    host = pairs.Host(opt.lib, users=hosts.has_users())
    loss = f', {opt.loss} % of all packets are lost' if opt.loss != '0' else ''
    name = f'{opt.processes} talk to {opt.processes}, {opt.kills} are killed{loss}'
    began = time.monotonic()
    try:
        total = run(opt, two, host)
        print(f'ok 1 - {name}\n# {total} messages of the last connections, {time.monotonic() - began:.1f} s')
        return 0
    except Wrong as e:
        print(f'not ok 1 - {name}\n# {e}')
        return 1
    finally:
        two.close()
        host.close()


if __name__ == '__main__':
    sys.exit(main())
