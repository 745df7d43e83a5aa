#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Wireshark as an independent judge of what we say: every kind of packet, out of the codecs and out of a network."""

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'hosts'), os.path.join(HERE, '..', 'tools')]
sys.dont_write_bytecode = True

import capture  # noqa: E402
import hosts  # noqa: E402
import tap  # noqa: E402

BUILD = os.path.abspath(os.environ['SOFTHCA_BUILD'])
# An RC SEND of 100 bytes as Linux' rdma_rxe has sent it.
RXE = bytes.fromhex('450000904c1c40004011d2ecc0a84d01c0a84d02c12112b7007c0000'
                    '0400ffff00000011' '8062eb49') + b'\x7b' * 100 + bytes.fromhex('37751350')
SENDS = {service | operation for service in (0x00, 0x20, 0x60) for operation in (0, 1, 2, 3, 4, 5, 0x16, 0x17)}
# IBA has no SEND with invalidate for UC (docs/wire.md), so nobody but us knows that a key follows.
OURS_ALONE = {0x36, 0x37}
# Of packets of XRC (annex A14), FLUSH and ATOMIC WRITE (A19) Wireshark 4.0 reads the BTH and nothing behind it.
BTH_ALONE = {*range(0xa0, 0xc0), 0x1c, 0x1d}
SEND_WITHOUT_WORDS = 4
WORD_AS_TEXT = len('00:11:22:33:')
# What the behaviour tests below are known to send: opcodes, and of acknowledgements the syndromes.
EXPECTED = {0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x12, 0x14, 0x17,
            0x20, 0x21, 0x22, 0x24, 0x2a, 0x64, 0x65, 'ACK', 'RNR NAK', 'NAK 1', 'NAK 2', 'NAK 3'}
TOPICS = ('status', 'ud', 'srq', 'effects', 'mw')
OF_EACH_KIND = 40
WARNING = 0x600000  # of Wireshark's severities; it has lighter thoughts about source ports
LIMIT = 600

hosts_refused = None


# --- reading what tshark says

def tshark(path):
    """Its opinion of each packet: field → values as text."""
    tool = shutil.which('tshark')
    if not tool:
        raise tap.Skip('tshark is not installed')
    with tempfile.TemporaryDirectory(prefix='softhca-wire-') as home:
        done = subprocess.run([tool, '-n', '-r', path, '-T', 'json'], capture_output=True, text=True, timeout=LIMIT,
                              stdin=subprocess.DEVNULL, env=dict(os.environ, HOME=home))
    if done.returncode:
        raise AssertionError(done.stderr)
    return [flat(packet, collections.defaultdict(list)) for packet in json.loads(done.stdout, object_pairs_hook=list)]


def flat(node, out):
    """Names occur more than once, which a dict would not keep."""
    for name, value in node:
        if isinstance(value, list):
            if value and isinstance(value[0], tuple):
                flat(value, out)
            else:
                out[name] += value
        else:
            out[name].append(value)
    return out


def is_short_send(packet):
    """Wireshark looks for an EtherType in the first bytes of what is sent, and calls the packet malformed where there are
    none: the one complaint that is not about us."""
    begin = capture.ip_length(packet) + 8
    return packet[begin] in SENDS and len(packet) - begin - 4 <= 12 + 8 + 4 + SEND_WITHOUT_WORDS


def complaints(packet, fields):
    if is_short_send(packet):
        return []
    words = [message for message, severity in zip(fields['_ws.expert.message'], fields['_ws.expert.severity'])
             if int(severity, 0) >= WARNING]
    return words + [name for name in fields if name.startswith('_ws.malformed')]


def differences(said, fields):
    for name, value in said.items():
        got = fields.get(name, [])
        if name == 'name':
            continue
        if name == 'payload':
            # Wireshark shows padding, too, and takes some first words for a protocol's.
            data = fields.get('data.data', [''])[0]
            if data and value and not data.startswith(value) and not data.startswith(value[WORD_AS_TEXT:]):
                yield f'{name} is {data[:60]}…, {value[:60]}… was sent'
        elif not any(text == value if isinstance(value, str) else int(text, 0) == value for text in got):
            yield f'{name} is {got}, {value} was sent'


def kind(packet):
    begin = capture.ip_length(packet) + 8
    if packet[begin] != 0x11:
        return packet[begin]
    syndrome = packet[begin + 12]
    return {0: 'ACK', 1: 'RNR NAK'}.get(syndrome >> 5, f'NAK {syndrome & 0x1f}')


def report(found):
    if found:
        raise AssertionError('\n'.join(found[:20]) + f'\n{len(found)} in all')


# --- tests

def test_an_icrc_of_the_kernel_is_right_here_too():
    tap.equal(capture.icrc_is_right(RXE), True)
    tap.equal(any(capture.icrc_is_right(RXE[:i] + bytes([RXE[i] ^ 1]) + RXE[i + 1:])
                  for i in range(len(RXE)) if i not in (1, 8, 10, 11, 26, 27, 32)), False)


def test_every_kind_of_packet_is_what_the_codecs_say():
    with tempfile.TemporaryDirectory(prefix='softhca-wire-') as folder:
        path, told = os.path.join(folder, 'pcap'), os.path.join(folder, 'told')
        subprocess.run([os.path.join(BUILD, 'tests', 'wire', 'speak'), path, told], check=True)
        packets, opinions = capture.read(path), tshark(path)
        with open(told, encoding='ascii') as f:
            said = [json.loads(line) for line in f]
    tap.equal(len(packets), len(said))
    tap.equal(len(opinions), len(said))
    found = []
    for number, (packet, opinion, what) in enumerate(zip(packets, opinions, said), 1):
        wrong = complaints(packet, opinion)
        if what['infiniband.bth.opcode'] in OURS_ALONE | BTH_ALONE:
            what = {name: value for name, value in what.items() if 'bth' in name}
        wrong += differences(what, opinion)
        if not capture.icrc_is_right(packet):
            wrong.append('wrong ICRC')
        found += [f'packet {number} ({said[number - 1]["name"]}): {w}' for w in wrong]
    report(found)


def watch(commands):
    """Packets on lo while the commands run, which use it as a network."""
    if hosts_refused:
        raise tap.Skip(hosts_refused)
    try:
        with capture.of('lo') as packets:
            for argv, env in commands:
                done = subprocess.run(argv, env=dict(os.environ, **env), capture_output=True, text=True,
                                      stdin=subprocess.DEVNULL, timeout=LIMIT)
                if done.returncode:
                    raise AssertionError(f'{" ".join(argv)}: exit status {done.returncode}\n{done.stdout}{done.stderr}')
    except PermissionError as e:
        raise tap.Skip(f'no capture here: {e}') from None
    return packets


def judge(packets):
    """Of many alike the first ones."""
    by_kind = collections.defaultdict(list)
    for packet in packets:
        by_kind[capture.ip_length(packet), kind(packet)].append(packet)
    few = [packet for alike in by_kind.values() for packet in alike[:OF_EACH_KIND]]
    found = [f'{kind(packet)}: wrong ICRC' for packet in packets if not capture.icrc_is_right(packet)]
    with tempfile.TemporaryDirectory(prefix='softhca-wire-') as folder:
        path = os.path.join(folder, 'pcap')
        capture.write(path, few)
        opinions = tshark(path)
    tap.equal(len(opinions), len(few))
    for packet, opinion in zip(few, opinions):
        found += [f'{kind(packet)}: {c}' for c in complaints(packet, opinion)]
        if 'infiniband.bth.psn' not in opinion:
            found.append(f"{kind(packet)}: not taken for a packet: {dict(opinion)}"[:500])
    report(found)
    return {k for _, k in by_kind}


def test_what_goes_over_a_network_is_right():
    env = {'SOFTHCA_TEST_PATH': 'wire', 'SOFTHCA_TEST_WATCHED': '1',
           'LD_LIBRARY_PATH': os.path.join(BUILD, 'lib')}
    folder = os.path.join(BUILD, 'tests', 'behaviour')
    seen = judge(watch([([os.path.join(folder, f'behaviour_{topic}')], env) for topic in TOPICS]))
    tap.equal(sorted(map(str, EXPECTED - seen)), [], 'never seen')


def main():
    global hosts_refused
    try:
        hosts.enter()
        hosts.run('ip', 'link', 'set', 'lo', 'up')
        # What the kernel would cut on the way out of an interface is cut before it is captured.
        hosts.run('ip', 'link', 'set', 'dev', 'lo', 'gso_max_segs', '1')
    except hosts.Unable as e:
        hosts_refused = str(e)
    tap.main(sys.modules[__name__])


if __name__ == '__main__':
    main()
