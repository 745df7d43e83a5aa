# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""dtest of uDAPL, over the two of its providers that connect RC QPs: by rdma_cm, and by a TCP connection of its own."""

import glob
import re
import time

import special
import systems
from pairs import Failure, Skip, listening

WAYS = ('mapped', 'auto', 'cma', 'ring')
LIMIT = 60
PORT = 15828  # dtest's own, at which it tells its client the addresses
PROGRAM = 'dtest'
# Each reads the other's buffer without waiting for it to be filled anew: what this end has written before may be there yet.
SAID = ('RDMA write buffer contains: {peer} RDMA write data', 'RDMA read buffer contains: ({peer} RDMA read|{own} RDMA write) data',
        'DAPL Test Complete. PASSED')


def prepare(_):
    systems.needs(PROGRAM)
    if not glob.glob('/usr/lib/*/libdat2.so.2'):
        raise Skip('libdapl2 is not installed')


def interface(host):
    """-> name, IPv4 address and device of an interface that is not lo: rdma_bind_addr() gives none for a loopback address."""
    devices = special.devices(host)
    for name, addresses in special.addresses().items():
        for address in addresses:
            if name != 'lo' and '.' in address:
                for device, found in devices.items():
                    if any(gid.endswith(address) for gid, _ in found['gids'].values()):
                        return name, address, device
    raise Skip('no interface but lo has an IPv4 address')


def pair(library, at):
    def check(place):
        name, address, device = interface(place.host)
        place.file('dat.conf', f'adapter u2.0 nonthreadsafe default {library} dapl.2.0 "{at(name, device)}" ""\n'.encode())
        env = {'DAT_OVERRIDE': place.path('dat.conf')}
        with place.start([PROGRAM, '-P', 'adapter', '-b', '65536'], env=env) as server:
            systems.until(lambda: listening(PORT, server.pid), LIMIT, 'listening server', server)
            with place.start([PROGRAM, '-P', 'adapter', '-b', '65536', '-h', address], env=env) as client:
                deadline = time.monotonic() + LIMIT
                for side, own, peer in (client, 'client', 'server'), (server, 'server', 'client'):
                    if (status := side.wait(deadline)) != 0:
                        raise Failure(f'the {own} ' + (f'is not done within {LIMIT} s' if status is None else f'ends with {status}'))
                    for line in SAID:
                        if not re.search(line.format(own=own, peer=peer), side.text()):
                            raise Failure(f'the {own} does not say "{line.format(own=own, peer=peer)}"')
    return check


CHECKS = (
    ('connected by rdma_cm (libdaplofa)', pair('libdaplofa.so.2', lambda name, device: f'{name} 0')),
    ('connected by TCP (libdaploscm)', pair('libdaploscm.so.2', lambda name, device: f'{device} 1')),
)
