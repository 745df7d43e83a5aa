# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Reads pcapng files, and RoCEv2 packets in them: without our code and without Wireshark's."""

import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "wire"))
from capture import icrc_is_right, ip_length, is_roce  # noqa: E402

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
COMMENT, NAME, RECEIVED, DROPPED, RESOLUTION = 1, 2, 4, 5, 9
SERVICES = {0: "RC", 1: "UC", 3: "UD", 5: "XRC", 4: "CNP"}
# Operation: name, bytes of extension headers without those of the service, has a payload.
OPERATIONS = {0: ("SEND first", 0, True), 1: ("SEND middle", 0, True), 2: ("SEND last", 0, True),
              3: ("SEND last imm", 4, True), 4: ("SEND only", 0, True), 5: ("SEND only imm", 4, True),
              6: ("WRITE first", 16, True), 7: ("WRITE middle", 0, True), 8: ("WRITE last", 0, True),
              9: ("WRITE last imm", 4, True), 10: ("WRITE only", 16, True), 11: ("WRITE only imm", 20, True),
              12: ("READ request", 16, False), 13: ("READ response first", 4, True),
              14: ("READ response middle", 0, True), 15: ("READ response last", 4, True),
              16: ("READ response only", 4, True), 17: ("acknowledge", 4, False), 18: ("atomic acknowledge", 12, False),
              19: ("compare and swap", 28, False), 20: ("fetch and add", 28, False)}
ANSWERS = range(13, 19)
CNP = 0x81  # IBA A17.9.3: BTH and 16 reserved bytes


def options(data):
    at, found = 0, {}
    while at + 4 <= len(data):
        code, length = struct.unpack_from("<HH", data, at)
        if not code:
            break
        found[code] = data[at + 4:at + 4 + length]
        at += 4 + (length + 3) // 4 * 4
    return found


class Packet:
    def __init__(self, interface, time, length, frame, comment):
        self.interface, self.time, self.length, self.comment = interface, time, length, comment
        self.frame, self.ip = frame, frame[14:]
        self.is_whole, self.is_answer = len(frame) == length, False
        self.is_roce = len(frame) > 42 and frame[12:14] in (b"\x08\x00", b"\x86\xdd") and is_roce(self.ip)
        if not self.is_roce:
            self.service = self.name = "frame"
            return
        bth = self.bth = self.ip[ip_length(self.ip) + 8:]
        self.opcode = bth[0]
        self.service, self.operation = SERVICES[bth[0] >> 5], bth[0] & 0x1f
        self.name, extensions, self.has_payload = ("CNP", 0, True) if bth[0] == CNP else OPERATIONS[self.operation]
        is_answer = self.operation in ANSWERS and bth[0] != CNP
        if self.service == "UD":
            extensions += 8
        if self.service == "XRC" and not is_answer:
            extensions += 4
        self.is_answer = is_answer
        self.solicited, self.pad = bth[1] >> 7, bth[1] >> 4 & 3
        self.dest_qpn = int.from_bytes(bth[5:8], "big")
        self.ack_request, self.psn = bth[8] >> 7, int.from_bytes(bth[9:12], "big")
        self.extensions = bth[12:12 + extensions]
        self.payload = bth[12 + extensions:-4 - self.pad] if self.is_whole else bth[12 + extensions:]
        first = self.ip[0] >> 4 == 4
        self.source = self.ip[12:16] if first else self.ip[8:24]
        self.destination = self.ip[16:20] if first else self.ip[24:40]

    def syndrome(self):
        return self.extensions[0]

    def src_qpn(self):
        """UD only."""
        return int.from_bytes(self.extensions[5:8], "big")

    def icrc_is_right(self):
        return not self.is_roce or icrc_is_right(self.ip)

    def __repr__(self):
        if not self.is_roce:
            return f"frame of {self.length} bytes"
        return f"{self.service} {self.name} QP=0x{self.dest_qpn:06x} PSN={self.psn} {len(self.payload)} bytes"


def read(path):
    """Packets, names of the interfaces, and statistics of each: (received, dropped)."""
    with open(path, "rb") as file:
        data = file.read()
    at, packets, interfaces, statistics = 0, [], [], {}
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0 and length >= 12 and struct.unpack_from("<I", data, at + length - 4)[0] == length
        body = data[at + 8:at + length - 4]
        if at == 0:
            assert kind == SECTION and body[:8] == struct.pack("<IHH", 0x1A2B3C4D, 1, 0)
        elif kind == INTERFACE:
            assert body[0] == 1 and options(body[8:])[RESOLUTION] == b"\x09"
            interfaces.append(options(body[8:])[NAME].decode())
        elif kind == PACKET:
            interface, high, low, captured, total = struct.unpack_from("<IIIII", body)
            assert interface < len(interfaces)
            rest = options(body[20 + (captured + 3) // 4 * 4:])
            packets.append(Packet(interface, high << 32 | low, total, body[20:20 + captured], rest.get(COMMENT, b"").decode()))
        elif kind == STATISTICS:
            rest = options(body[12:])
            statistics[struct.unpack_from("<I", body)[0]] = (struct.unpack("<Q", rest[RECEIVED])[0],
                                                            struct.unpack("<Q", rest[DROPPED])[0])
        at += length
    return packets, interfaces, statistics
