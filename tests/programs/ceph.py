# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""A Ceph of one monitor and two OSDs, all of whose messages go by RDMA (ms_type = async+rdma)."""

import contextlib
import os
import re
import signal
import uuid

import special
import systems
from pairs import Failure, free_port

WAYS = ('mapped', 'auto', 'cma', 'ring')
OSDS = 2
SIZE = 20 << 20
LIMIT = 120
CONFIGURATION = '''
[global]
fsid = {fsid}
mon host = {monitor}
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms type = async+rdma
ms async rdma device name = {device}
ms async rdma receive buffers = 1024
ms async rdma send buffers = 1024
ms async rdma receive queue len = 512
public network = 127.0.0.0/8
run dir = {folder}
crash dir = {folder}
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
admin socket = {folder}/$name.$pid.asok
pid file = {folder}/$name.pid
mon data = {folder}/mon.$id
osd data = {folder}/osd.$id
mon allow pool size one = true
bluestore block size = 1073741824
osd memory target = 939524096
osd crush chooseleaf type = 0
osd pool default size = {osds}
osd pool default min size = 1
'''


def prepare(_):
    systems.needs('ceph', 'ceph-mon', 'ceph-osd', 'monmaptool', 'rados')


class Cluster:
    """Its daemons; they end with it."""

    def __init__(self, place):
        self.place = place
        self.stack = contextlib.ExitStack()
        self.fsid = str(uuid.uuid4())
        self.monitor = f'v2:127.0.0.1:{free_port()}'
        self.configuration = place.file('ceph.conf', CONFIGURATION.format(
            fsid=self.fsid, monitor=self.monitor, device=sorted(special.devices(place.host))[0], folder=place.folder,
            osds=OSDS).encode())

    def run(self, *argv):
        return self.place.output([argv[0], '--conf', self.configuration, *argv[1:]], limit=LIMIT)

    def daemon(self, *argv):
        return self.stack.enter_context(self.place.start([argv[0], '--conf', self.configuration, '-f', *argv[1:]]))

    def osd(self, number):
        return self.daemon('ceph-osd', '--id', str(number))

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            undo.push(self.stack)
            map_file = self.place.path('monmap')
            self.run('monmaptool', '--create', '--addv', 'a', f'[{self.monitor}]', '--fsid', self.fsid, map_file)
            for number in range(OSDS):
                os.mkdir(self.place.path(f'osd.{number}'))
                os.chmod(self.place.path(f'osd.{number}'), 0o777)
            os.mkdir(self.place.path('mon.a'))
            os.chmod(self.place.path('mon.a'), 0o777)
            self.run('ceph-mon', '--id', 'a', '--mkfs', '--monmap', map_file)
            self.daemon('ceph-mon', '--id', 'a')
            self.osds = []
            for number in range(OSDS):
                name = str(uuid.uuid4())
                self.run('ceph', 'osd', 'new', name)
                self.run('ceph-osd', '--id', str(number), '--mkfs', '--osd-uuid', name)
                self.osds.append(self.osd(number))
            self.until_up(OSDS)
            self.run('ceph', 'osd', 'pool', 'create', 'pool', '8')
            undo.pop_all()
        return self

    def __exit__(self, *how):
        return self.stack.__exit__(*how)

    def until_up(self, number):
        def up():
            # Warnings may stand around the answer.
            answer = re.search(r'"num_up_osds":(\d+)', self.run('ceph', 'osd', 'stat', '--format', 'json'))
            return answer and int(answer[1]) == number
        systems.until(up, LIMIT, f'{number} OSDs that are up')

    def put(self, name, data):
        self.run('rados', '--pool', 'pool', 'put', name, self.place.file('there', data))

    def expect(self, name, data):
        back = self.place.file('back', b'')
        self.run('rados', '--pool', 'pool', 'get', name, back)
        with open(back, 'rb') as f:
            if f.read() != data:
                raise Failure(f'{name} is not what was put')


def objects(place):
    """What is put is at both OSDs, and is there when one of them has died and come again, and then the other one."""
    with Cluster(place) as cluster:
        old, new = os.urandom(SIZE), os.urandom(SIZE)
        cluster.put('old', old)
        cluster.expect('old', old)
        for number in range(OSDS):
            os.kill(cluster.osds[number].pid, signal.SIGKILL)
            cluster.run('ceph', 'osd', 'down', str(number))
            cluster.until_up(OSDS - 1)
            cluster.expect('old', old)
            cluster.put(f'new{number}', new)
            cluster.osds[number] = cluster.osd(number)
            cluster.until_up(OSDS)
            cluster.expect(f'new{number}', new)


def bench(place):
    """rados bench compares what it reads with what it wrote."""
    with Cluster(place) as cluster:
        write = cluster.run('rados', '--pool', 'pool', 'bench', '3', 'write', '--no-cleanup', '-b', '262144', '-t', '8')
        read = cluster.run('rados', '--pool', 'pool', 'bench', '3', 'seq', '-t', '8')
        for text, what in (write, 'Total writes made'), (read, 'Total reads made'):
            made = [line for line in text.splitlines() if line.startswith(what)]
            if not made or int(made[0].split()[-1]) == 0 or 'Verify failure' in text or 'not correct' in text:
                raise Failure(f'rados bench: {text}')


CHECKS = (
    ('objects outlive the death of either OSD, made by --mkfs', objects),
    ('rados bench writes and reads', bench),
)
