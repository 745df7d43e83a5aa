# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Captures of IP packets (pcap without link layer): reading, writing, taking them off an interface, and their ICRC."""

import contextlib
import socket
import struct
import threading
import zlib

ROCE = 4791
HEAD = struct.Struct('<IHHIIII')
RECORD = struct.Struct('<IIII')
MAGIC, RAW_IP, ETHERNET = 0xa1b2c3d4, 101, 1
ETH_P_ALL, PACKET_OUTGOING = 3, 4
SO_RCVBUFFORCE = 33
BUFFER = 256 << 20


def read(path):
    """IP packets of the file."""
    with open(path, 'rb') as f:
        data = f.read()
    link = HEAD.unpack_from(data)[6]
    at, out = HEAD.size, []
    while at < len(data):
        length = RECORD.unpack_from(data, at)[2]
        at += RECORD.size
        out.append(data[at + (14 if link == ETHERNET else 0):at + length])
        at += length
    return out


def write(path, packets):
    with open(path, 'wb') as f:
        f.write(HEAD.pack(MAGIC, 2, 4, 0, 0, 1 << 18, RAW_IP))
        for packet in packets:
            f.write(RECORD.pack(0, 0, len(packet), len(packet)) + packet)


def ip_length(packet):
    return 20 if packet[0] >> 4 == 4 else 40


def is_roce(packet):
    udp = ip_length(packet)
    protocol = packet[9] if packet[0] >> 4 == 4 else packet[6]
    return protocol == 17 and struct.unpack_from('>H', packet, udp + 2)[0] == ROCE


def icrc_is_right(packet):
    """CRC-32 over eight bytes of ones, the headers with ones where routers may write, and the rest (IBA A17.3.3)."""
    covered = bytearray(packet[:-4])
    udp = ip_length(packet)
    if packet[0] >> 4 == 4:
        covered[1] = covered[8] = 0xff
        covered[10:12] = b'\xff\xff'
    else:
        covered[0] |= 0x0f
        covered[1:4] = b'\xff\xff\xff'
        covered[7] = 0xff
    covered[udp + 6:udp + 8] = b'\xff\xff'
    covered[udp + 8 + 4] = 0xff
    return struct.pack('<I', zlib.crc32(b'\xff' * 8 + covered)) == packet[-4:]


@contextlib.contextmanager
def of(interface):
    """Yields a list that RoCE packets on the interface come into until the end of the block."""
    packets, stop = [], threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as s:
        try:
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        except PermissionError:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        s.bind((interface, ETH_P_ALL))
        s.settimeout(0.1)

        def take():
            while True:
                try:
                    packet, where = s.recvfrom(1 << 18)
                except TimeoutError:
                    if stop.is_set():
                        return
                    continue
                # On lo each is seen going out and coming in.
                if where[2] != PACKET_OUTGOING and is_roce(packet):
                    packets.append(packet)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield packets
        finally:
            stop.set()
            thread.join()
