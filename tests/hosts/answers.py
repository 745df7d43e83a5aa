#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What a live process answers to packets that somebody makes up: never more bytes than they cost to send, and nothing at all to
strangers but in connection management; and it needs no more memory for them. Prints TAP.

An acknowledgement (20 bytes of UDP payload) is four bytes longer than the smallest request (16); a connected peer may have
those, and answers to its READs.
"""

import argparse
import collections
import ipaddress
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'programs'))
sys.dont_write_bytecode = True

import hosts  # noqa: E402
import pairs  # noqa: E402
import tap  # noqa: E402

PORT = 4791
LIMIT_S = 120
RC_QPS, UC_QPS, PEER_QPN, QKEY = 24, 2, 0x100, 0x11111111  # target.c
PULSE = 0  # the RC QP that is asked for signs of life, and nothing else
SERVED, UNSERVED = (20, 21), (22, 23)  # at the exit; the cases leave them alone
AT_ONCE = 32  # packets between two of those: fewer than any receive buffer takes
SMALL, ANSWER = 16, 20
GROWTH_KIB, GROWTH_FDS = 16 << 10, 32  # of the process, whatever it gets
LATE_S = 2
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2

OP_SEND_ONLY, OP_WRITE_ONLY, OP_READ, OP_ACKNOWLEDGE, OP_ATOMICS = 0x04, 0x0a, 0x0c, 0x11, (0x13, 0x14)
UC, UD, CNP, BECN = 0x20, 0x60, 0x81, 0x40
RETH_OPS = (0x06, 0x0a, 0x0b, 0x0c)
MAD_QKEY = 0x80010000
CM_REQ, CM_SIDR_REQ, PS_TCP = 0x10, 0x17, 0x0106


MARKED = 'packets that a router has marked'


class Wrong(pairs.Failure):
    pass


def as_gid(address):
    ip = ipaddress.ip_address(address)
    return (ipaddress.IPv6Address(f'::ffff:{ip}') if ip.version == 4 else ip).packed


def bth(opcode, qpn, psn, *, pkey=0xffff, ack=False, pad=0, flags=0):
    return struct.pack('>BBHII', opcode, 0x40 | pad << 4 | flags, pkey, qpn, (0x80000000 if ack else 0) | psn & 0xffffff)


def dest_qpn(packet):
    return int.from_bytes(packet[5:8], 'big')


class Wire:
    """The peer: its sockets, and what has come to them."""

    def __init__(self, near, far):
        self.near, self.far = near, far
        self.is_ipv4 = ipaddress.ip_address(near).version == 4
        self.socket = socket.socket(socket.AF_INET if self.is_ipv4 else socket.AF_INET6, socket.SOCK_DGRAM)
        if self.is_ipv4:  # so that the identification is 0 (docs/wire.md)
            self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.socket.setblocking(False)
        self.socket.bind((near, PORT))
        self.sent = self.came = 0  # bytes

    def icrc(self, payload):
        length = 8 + len(payload) + 4
        a, b = (ipaddress.ip_address(x).packed for x in (self.near, self.far))
        if self.is_ipv4:
            head = struct.pack('>BBHHHBBH', 0x45, 0xff, 20 + length, 0, 0x4000, 0xff, 17, 0xffff) + a + b
        else:
            head = struct.pack('>IHBB', 0x6fffffff, length, 17, 0xff) + a + b
        covered = bytearray(b'\xff' * 8 + head + struct.pack('>HHHH', PORT, PORT, length, 0xffff) + payload)
        covered[8 + len(head) + 8 + 4] = 0xff
        return struct.pack('<I', zlib.crc32(covered))

    def mark(self, marked):
        """As a router does whose queue is getting full (ECN)."""
        if self.is_ipv4:
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 3 if marked else 0)

    def send(self, payload):
        packet = payload + self.icrc(payload)
        while True:
            try:
                self.socket.sendto(packet, (self.far, PORT))
                break
            except BlockingIOError:
                select.select([], [self.socket], [], 1)
        self.sent += len(packet)

    def take(self):
        """Packets that have come."""
        out = []
        while True:
            try:
                out.append(self.socket.recv(1 << 16))
            except BlockingIOError:
                return out

    def unsend(self, payload):
        self.sent -= len(payload) + 4


class Target:
    def __init__(self, opt, two, host):
        gid = as_gid(hosts.NEAR[0]).hex()
        users = ('setpriv', '--reuid=61001', '--regid=61001', '--clear-groups', '--') if host.root else ()
        self.p = subprocess.Popen([*two.there(), *users, os.path.abspath(opt.target), gid], cwd='/', env=host.env(), text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        words = self.p.stdout.readline().split()
        if words[:1] != ['card']:
            raise Wrong(f'the target says {words} {self.p.stdout.read()}')
        numbers = [int(w) for w in words[1:]]
        self.connected, (self.ud, self.rkey, self.address, self.length, self.port) = numbers[:-5], numbers[-5:]
        self.pulse_psn = 0
        self.rc, self.uc = self.connected[:RC_QPS], self.connected[RC_QPS:]

    def memory_kib(self):
        with open(f'/proc/{self.p.pid}/status', encoding='ascii') as f:
            return sum(int(line.split()[1]) for line in f if line.startswith(('RssAnon:', 'RssShmem:')))

    def descriptors(self):
        return len(os.listdir(f'/proc/{self.p.pid}/fd'))

    def check_alive(self):
        if self.p.poll() is not None:
            raise Wrong(f'the target has ended, status {self.p.returncode}: {self.p.stdout.read()}')

    def exit(self):
        """Returns from main(), with its QPs as they are."""
        self.p.stdin.close()
        if self.p.wait(LIMIT_S):
            raise Wrong(f'the target has exited with {self.p.returncode}: {self.p.stdout.read()}')

    def close(self):
        self.p.kill()
        self.p.wait()


class Attack:
    def __init__(self, target, wire, peer, seed):
        self.target, self.wire, self.peer, self.random = target, wire, peer, random.Random(seed)
        self.answered = []
        self.settle()

    def settle(self):
        """Until all that was sent was taken and answered: twice, since what is answered at the end of a batch may overtake."""
        for _ in range(2):
            # WRITE of nothing: takes no receive, needs no key.
            pulse = bth(OP_WRITE_ONLY, self.target.rc[PULSE], self.target.pulse_psn, ack=True) + struct.pack('>QII', 0, 0, 0)
            deadline = time.monotonic() + LIMIT_S
            while not self._beats(pulse):
                self.target.check_alive()
                if time.monotonic() > deadline:
                    raise Wrong(f'no sign of life within {LIMIT_S} s')
            self.target.pulse_psn += 1

    def _beats(self, pulse):
        self.peer.send(pulse)
        self.peer.unsend(pulse)
        select.select([self.peer.socket], [], [], 1)
        return any(packet[9:12] == pulse[9:12] for packet in self.take())

    def run(self, what, packets, allowance):
        """allowance: bytes per packet that an answer may be longer; None: nobody is to be answered."""
        begin_sent, begin_came, count = self.sent(), self.came(), 0
        self.answered = []
        for payload in packets:
            self.wire.send(payload)
            count += 1
            if count % AT_ONCE == 0:
                self.settle()
        self.settle()
        self.take()
        sent, came = self.sent() - begin_sent, self.came() - begin_came
        told = f'{what}: {count} packets of {sent} bytes, answered with {len(self.answered)} of {came}'
        print(f'# {told}', flush=True)
        if allowance is None and any(dest_qpn(p) != 1 for p in self.answered):
            raise Wrong('strangers were answered: ' + told)
        # So many bytes again are in front of each, of IP and UDP.
        if came > sent + (allowance or 0) * count or len(self.answered) > count:
            raise Wrong(told)

    def sent(self):
        return self.wire.sent + (self.peer.sent if self.peer is not self.wire else 0)

    def came(self):
        return self.wire.came + (self.peer.came if self.peer is not self.wire else 0)

    def take(self):
        """What has come but for the answers to pulses, which are returned."""
        pulses = []
        for wire in {self.wire, self.peer}:
            for packet in wire.take():
                if dest_qpn(packet) == PEER_QPN + PULSE:
                    pulses.append(packet)
                else:
                    wire.came += len(packet)
                    self.answered.append(packet)
        return pulses

    # --- packets

    def number(self, bits):
        return self.random.getrandbits(bits)

    def payload(self):
        return self.random.randbytes(self.random.choice((0, 0, 0, 4, 8, 64, 256, 1024, 1024)))

    def headers_of(self, opcode):
        """Mostly those that the operation has."""
        t = self.target
        operation = opcode & 0x1f
        if self.number(4) == 0:
            return self.random.randbytes(4 * self.number(3))
        out = b''
        if opcode >> 5 == 3:
            out += struct.pack('>II', self.random.choice((QKEY, self.number(32))), self.number(24))
        if operation in RETH_OPS:
            out += struct.pack('>QII', t.address + self.number(6), self.random.choice((t.rkey, self.number(32))),
                               self.random.choice((0, 8, 1024, t.length, self.number(32))))
        if operation in OP_ATOMICS:
            out += struct.pack('>QIQQ', t.address + 8 * self.number(3), t.rkey, self.number(64), self.number(64))
        if 0x0d <= operation <= 0x12 and operation != 0x0e:
            out += struct.pack('>BBH', self.random.choice((0, 0x1f, 0x20, 0x2e, 0x60, 0x61, 0x62, self.number(8))), 0, self.number(8))
        return out

    def request(self, qpn, opcode, psn):
        payload = self.payload()
        return bth(opcode, qpn, psn, ack=self.number(1), pad=-len(payload) % 4, flags=self.number(1) << 7,
                   pkey=0xffff if self.number(4) else self.number(16)) + self.headers_of(opcode) + payload

    def any(self, qpns, opcodes, count):
        """PSNs mostly go up, as a peer's would, one stream for each QP."""
        psns = dict.fromkeys(qpns, 0)
        for _ in range(count):
            qpn = self.random.choice(qpns)
            near = self.random.choice((0, 0, 0, 0, 1, -1, 5, -3, 1 << 23, self.number(24)))
            yield self.request(qpn, self.random.choice(opcodes), psns[qpn] + near)
            psns[qpn] += near == 0

    def mad(self, attribute, body):
        head = struct.pack('>BBBBHHQHHI', 1, 7, 2, 3, 0, 0, self.number(64), attribute, 0, 0)
        return bth(UD | OP_SEND_ONLY, 1, 0) + struct.pack('>II', MAD_QKEY, 1) + (head + body).ljust(256, b'\0')[:256]

    def as_private(self, gid):
        return bytes(12) + gid[12:] if self.wire.is_ipv4 else gid

    def connection_request(self, service):
        near, far = (as_gid(a) for a in (self.wire.near, self.wire.far))
        path = struct.pack('>HH', 0, 0) + near + far + struct.pack('>IBBBB', 3, 0, 64, 0, 14 << 3)
        body = struct.pack('>IIQQII', self.number(32), 0, service, self.number(64), 0, 0)
        body += struct.pack('>IIII', self.number(24) << 8 | 1, 1, 8 << 3, self.number(24) << 8 | 8 << 3 | 7)
        body += struct.pack('>HBB', 0xffff, 3 << 4 | 7, 15 << 4) + path + bytes(44)
        header = struct.pack('>BBH', 0, (4 if self.wire.is_ipv4 else 6) << 4, self.number(16)) + self.as_private(near) + self.as_private(far)
        return self.mad(CM_REQ, body + header)


def free_of_peers(attack, connected):
    """Numbers that nobody has."""
    while True:
        n = attack.number(24)
        if n not in connected and n != attack.target.ud and n > 1:
            yield n


def cases(target, peer, strange):
    """(name, what is sent by whom, allowance)"""
    rc = [qpn for i, qpn in enumerate(target.rc) if i != PULSE]
    service = PS_TCP << 16 | target.port
    answers = [o for o in range(0x20) if 0x0d <= o <= 0x12]
    requests = [o for o in range(0x20) if o not in answers and o != OP_READ]

    def nobody(a):
        numbers = free_of_peers(a, target.connected)
        return (p for _ in range(1000) for p in a.any([next(numbers)], range(256), 1))

    yield 'requests of the connected peer', peer, lambda a: a.any(rc[:8], requests, 3000), ANSWER - SMALL
    yield 'made up answers, NAKs and operations', peer, lambda a: a.any(rc[8:16], range(0x0d, 0x100), 3000), ANSWER - SMALL
    yield 'notifications of congestion', peer, lambda a: (bth(CNP, q, 0) + bytes(16) for q in rc * 20), 0
    yield 'one request, again and again', peer, lambda a: [a.request(rc[16], OP_SEND_ONLY, 0)] * 500, ANSWER - SMALL
    yield 'requests to what has no receive any more', peer, lambda a: (
        bth(OP_SEND_ONLY, rc[17], n, ack=True) for n in range(300)), ANSWER - SMALL
    yield MARKED, peer, lambda a: (bth(OP_WRITE_ONLY, rc[18], n) + struct.pack('>QII', target.address, target.rkey, 64) + bytes(64)
                                   for n in range(500)), 0
    yield 'UC', peer, lambda a: a.any(target.uc, [UC | o for o in range(0x20)], 1000), 0
    yield 'UD', peer, lambda a: a.any([target.ud], [UD | o for o in range(0x20)], 1000), 0
    yield 'numbers that nobody has', peer, nobody, 0
    for wire, who in ((peer, 'from the peer\'s address'), (strange, 'from another address')):
        yield f'connection management made up {who}', wire, lambda a: (
            a.mad(a.random.choice((*range(CM_REQ, CM_REQ + 12), a.number(16))), a.random.randbytes(232)) for _ in range(1000)), 0
        yield f'not connection management {who}', wire, lambda a: (
            bth(UD | OP_SEND_ONLY, 1, 0) + struct.pack('>II', MAD_QKEY, 1) + a.random.randbytes(a.number(8)) for _ in range(500)), 0
    yield 'connection requests to a listener that does not answer', peer, lambda a: (
        a.connection_request(service) for n in range(3000)), 0
    yield 'strangers that know the numbers', strange, lambda a: a.any(target.connected[1:], range(256), 3000), None
    # The last, since answers come late.
    yield 'connection requests to nobody', strange, lambda a: (
        a.connection_request(service + n % 7 + 1) for n in range(200)), 0


def late_answers(number, attack):
    """What asks for a service that nobody has is refused after a while only. If it were not, it would not have been understood,
    and this test were worth nothing."""
    deadline = time.monotonic() + LIMIT_S
    while not any(dest_qpn(p) == 1 for p in attack.answered) and time.monotonic() < deadline:
        attack.settle()
    refused = any(dest_qpn(p) == 1 for p in attack.answered)
    time.sleep(LATE_S)
    attack.take()
    print(f'# all in all {attack.sent()} bytes, answered with {attack.came()}')
    good = refused and attack.came() <= attack.sent()
    print(f'{"ok" if good else "not ok"} {number} - refusals come, and all that was answered is less than what was sent', flush=True)
    return good


def last_words(attack):
    """When the program exits its QPs say their last acknowledgement again, for nobody can be asked for it then; where a lock was
    held all the time they do not. Those that have acknowledged nothing have nothing to say."""
    target, told = attack.target, collections.Counter()
    for i in SERVED:
        attack.peer.send(bth(OP_WRITE_ONLY, target.rc[i], 0, ack=True) + struct.pack('>QII', 0, 0, 0))
    attack.settle()
    attack.answered = []
    target.exit()
    deadline = time.monotonic() + LIMIT_S
    while not any(told[i] for i in SERVED) and time.monotonic() < deadline:
        select.select([attack.peer.socket], [], [], 1)
        attack.take()
        told = collections.Counter(dest_qpn(p) - PEER_QPN for p in attack.answered if p[0] == OP_ACKNOWLEDGE)
    print(f'# acknowledged again at the exit: {dict(told)}')
    if not any(told[i] for i in SERVED) or any(told[i] for i in UNSERVED):
        raise Wrong(f'of the QPs {SERVED}, which had acknowledged something, and {UNSERVED}, which had not, '
                    f'acknowledgements came at the exit: {dict(told)}')


def run(opt, two, host):
    target = Target(opt, two, host)
    peer, strange = Wire(hosts.NEAR[0], hosts.FAR[0]), Wire(hosts.NEAR[1], hosts.FAR[1])
    try:
        todo = list(cases(target, peer, strange))
        print(f'1..{len(todo) + 3}', flush=True)
        failed, before, number, attack = 0, None, 0, None
        for number, (name, wire, packets, allowance) in enumerate(todo, 1):
            began = time.monotonic()
            try:
                attack = Attack(target, wire, peer, opt.seed * 100 + number)
                before = before or (target.memory_kib(), target.descriptors())
                wire.mark(name == MARKED)
                attack.run(name, packets(attack), allowance)
                if name == MARKED and not any(packet[0] == CNP and packet[4] == BECN for packet in attack.answered):
                    raise Wrong('nobody is notified of congestion')
                wire.mark(False)
                tap.result(number, name, began)
            except Wrong as e:
                failed += 1
                tap.result(number, name, began, e)
        failed += not late_answers(number + 1, attack)
        after = target.memory_kib(), target.descriptors()
        print(f'# memory: {before[0]} KiB before, {after[0]} after; descriptors: {before[1]}, {after[1]}')
        grown = after[0] - before[0] > GROWTH_KIB or after[1] - before[1] > GROWTH_FDS
        print(f'{"not ok" if grown else "ok"} {number + 2} - memory and descriptors of the process are what they were')
        began = time.monotonic()
        try:
            last_words(attack)
            tap.result(number + 3, 'last acknowledgements of a program that exits', began)
        except Wrong as e:
            failed += 1
            tap.result(number + 3, 'last acknowledgements of a program that exits', began, e)
        return failed + grown
    finally:
        target.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--lib', required=True, help='directory of our libraries')
    ap.add_argument('--target', required=True, help='the program that is attacked')
    ap.add_argument('--seed', type=int, default=1)
    opt = ap.parse_args()
    two = hosts.entered(4300)
    if not two:
        return 0
    host = pairs.Host(opt.lib, users=hosts.has_users())
    try:
        return 1 if run(opt, two, host) else 0
    except Wrong as e:
        print(f'Bail out! {e}')
        return 1
    finally:
        two.close()
        host.close()


if __name__ == '__main__':
    sys.exit(main())
