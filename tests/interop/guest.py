# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Inside the guest: the two hosts, their adapters, and a program with one end at each."""

import ipaddress
import os
import subprocess

import judge
import pairs

KERNEL = ('192.168.77.1', 'fd77::1')
OURS = ('192.168.77.2', 'fd77::2')
THERE = ('ip', 'netns', 'exec', 'peer')  # in front of what runs beside our adapter
GIDS = '/sys/class/infiniband/rxe0/ports/1/gids'
RECEIVE_BUFFER = 4 << 20
CABLE = (((), 'veth-rxe'), (THERE, 'veth-peer'))


def command(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise pairs.Failure(f'{" ".join(argv)}: {done.stdout}{done.stderr}')
    return done.stdout


def as_gid(address):
    ip = ipaddress.ip_address(address)
    return ipaddress.IPv6Address(f'::ffff:{ip}') if ip.version == 4 else ip


class Hosts:
    """The kernel's adapter here, ours over there. lib: where ours is."""

    def __init__(self, lib):
        for (prefix, name), address in zip(CABLE, (KERNEL[1], OURS[1])):
            command(*prefix, 'ip', 'address', 'add', address + '/64', 'dev', name, 'nodad')
        # rxe does not slow down for a receiver that cannot keep up: softhca doctor's advice (docs/wire.md).
        with open('/proc/sys/net/core/rmem_max', 'w', encoding='ascii') as f:
            f.write(str(RECEIVE_BUFFER))
        self.kernel = pairs.Host(system=True)
        self.ours = pairs.Host(lib)
        self.kernel_gids = [self._kernel_index(a) for a in KERNEL]
        self.our_gids = self._our_indices()

    def close(self):
        self.ours.close()

    @staticmethod
    def _kernel_index(address):
        for index in sorted(os.listdir(GIDS), key=int):
            with open(os.path.join(GIDS, index), encoding='ascii') as f:
                if ipaddress.IPv6Address(f.read().strip()) == as_gid(address):
                    return int(index)
        raise pairs.Failure(f'rxe0 has no GID for {address}')

    def _our_indices(self):
        side = pairs.Side(self.ours, ['ibv_devinfo', '-v'], prefix=THERE)
        side.p.wait()
        text = side.text()
        side.out.close()
        device = next(iter(judge.devinfo(text).values()), None)
        if not device:
            raise pairs.Failure('no adapter of ours: ' + text)
        gids = {ipaddress.IPv6Address(gid): i for i, (gid, _) in device['gids'].items()}
        try:
            return [gids[as_gid(a)] for a in OURS]
        except KeyError as e:
            raise pairs.Failure(f'our adapter has no GID {e}: {text}') from None

    def disturb(self, *netem):
        """Both directions; none: a good cable again."""
        for prefix, name in CABLE:
            subprocess.run([*prefix, 'tc', 'qdisc', 'del', 'dev', name, 'root'], capture_output=True)
            if netem:
                command(*prefix, 'tc', 'qdisc', 'add', 'dev', name, 'root', 'netem', *netem)

    def run_pair(self, server, client, *, we_serve, port, limit, env=None):
        if we_serve:
            return pairs.run_pair(self.ours, server, client, port=port, limit=limit, env=env, near=THERE, other=self.kernel)
        return pairs.run_pair(self.kernel, server, client, port=port, limit=limit, env=env, far=THERE, other=self.ours)

    def index(self, ours, ipv6):
        return (self.our_gids if ours else self.kernel_gids)[ipv6]

    @staticmethod
    def server_address(we_serve):
        return OURS[0] if we_serve else KERNEL[0]
