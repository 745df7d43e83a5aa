# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Two processes of librpma."""

import re
import time

import cm
import systems
from pairs import Failure, Skip, free_port

WAYS = ('mapped', 'auto', 'cma', 'ring')
LIMIT = 60
program = None


def prepare(folder):
    global program
    program = systems.compiled(folder, 'gcc', 'rpma_pair.c', '-lrpma', '-libverbs')


def pair(way):
    def check(place):
        port = free_port()
        # It asks rdma_bind_addr() for the device, which gives none for a loopback address, as in the kernel.
        address = next((a for a in cm.interface_addresses() if '.' in a), None)
        if not address:
            raise Skip('no interface but lo has an IPv4 address')
        with place.start([program, 'server', address, str(port), way]) as server:
            systems.until(lambda: 'listening' in server.text(), LIMIT, 'listening server', server)
            place.output([program, 'client', address, str(port), way], limit=LIMIT)
            status = server.wait(time.monotonic() + LIMIT)
            if status != 0 or not re.search(r'^\d+ rounds on \d+ connections$', server.text(), re.M):
                raise Failure('the server ' + (f'is not done within {LIMIT} s' if status is None else f'ends with {status}'))
    return check


CHECKS = (
    ('write, flush, read, messages and immediates', pair('plain')),
    ('with one completion channel for both queues', pair('shared')),
    ('with a shared receive queue', pair('srq')),
)
