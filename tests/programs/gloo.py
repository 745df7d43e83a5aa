# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Processes of gloo, over its ibverbs transport."""

import contextlib
import re
import time

import special
import systems
from pairs import Failure

WAYS = ('mapped', 'auto', 'cma', 'ring')
LIMIT = 60
program = None


def prepare(folder):
    global program
    program = systems.compiled(folder, 'g++', 'collectives.cc', '-lgloo')


def collectives(ranks):
    def check(place):
        device = sorted(special.devices(place.host))[0]
        deadline = time.monotonic() + LIMIT
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(place.start([program, place.folder, str(rank), str(ranks), device]))
                     for rank in range(ranks)]
            for rank, side in enumerate(sides):
                status = side.wait(deadline)
                if status != 0 or not re.search(rf'^rank {rank} of {ranks}: [1-9]\d* words$', side.text(), re.M):
                    raise Failure(f'rank {rank}: ' + (f'not done within {LIMIT} s' if status is None else f'exit status {status}'))
    return check


CHECKS = tuple((f'collective operations of {ranks} processes', collectives(ranks)) for ranks in (2, 3, 4))
