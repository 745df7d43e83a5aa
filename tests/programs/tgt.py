# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""tgt's iSCSI target over RDMA (iSER), with libiscsi at the other end."""

import os
import re

import systems
from pairs import Failure, free_port

WAYS = ('mapped', 'auto', 'cma', 'ring')
TARGET = 'iqn.2020-01.test.softhca:disk'
INITIATOR = 'iqn.2020-01.test.softhca:initiator'
SIZE = 32 << 20
LIMIT = 60
# libiscsi 1.19 takes what malloc() returns for zeros. With this value of glibc's it is, whatever was there before.
ZEROS = {'MALLOC_PERTURB_': '255'}
copy = None


def prepare(folder):
    global copy
    systems.needs('tgtd', 'tgtadm', 'iscsi-inq', 'iscsi-readcapacity16', 'iscsi-test-cu')
    copy = systems.compiled(folder, 'gcc', 'iscsi_copy.c', '-liscsi')


class Target:
    """A tgtd with one disk of one file."""

    def __init__(self, place, size=SIZE):
        self.place = place
        self.disk = place.file('disk', bytes(size))
        self.env = {'TGT_IPC_SOCKET': place.path('control')}
        port, tcp = free_port(), free_port()
        self.url = f'iser://127.0.0.1:{port}/{TARGET}/1'
        # tgtd takes 1 GiB for its buffers by default.
        self.side = place.start(['tgtd', '--foreground', '--iscsi', f'portal=127.0.0.1:{tcp}', '--iser',
                                 f'port={port},pool_sz_mb=64'], env=self.env)

    def __enter__(self):
        self.side.__enter__()
        try:
            systems.until(lambda: os.path.exists(self.place.path('control.0')), LIMIT, 'control socket of tgtd', self.side)
            self.admin('--mode', 'target', '--op', 'new', '--tid', '1', '--targetname', TARGET)
            self.admin('--mode', 'logicalunit', '--op', 'new', '--tid', '1', '--lun', '1', '--backing-store', self.disk)
            # Over iSER it lets nobody in who is not named by both.
            self.admin('--mode', 'target', '--op', 'bind', '--tid', '1', '--initiator-address', 'ALL')
            self.admin('--mode', 'target', '--op', 'bind', '--tid', '1', '--initiator-name', INITIATOR)
        except Failure as e:
            self.__exit__(None, e, None)
            raise
        return self

    def __exit__(self, *how):
        self.side.__exit__(*how)

    def admin(self, *arguments):
        return self.place.output(['tgtadm', '--lld', 'iser', *arguments], env=self.env, limit=LIMIT)

    def ask(self, program, *arguments):
        return self.place.output([program, '--initiator-name', INITIATOR, *arguments, self.url], env=ZEROS, limit=LIMIT)

    def copy(self, way, file):
        return self.place.output([copy, way, self.url, INITIATOR, file], env=ZEROS, limit=LIMIT)


def asked(place):
    with Target(place) as target:
        text = target.ask('iscsi-inq')
        if not re.search(r'^Vendor:IET\b', text, re.M) or 'Peripheral Device Type:DIRECT_ACCESS' not in text:
            raise Failure(f'iscsi-inq does not show the disk: {text}')
        text = target.ask('iscsi-readcapacity16')
        if not re.search(rf'^Total size:{SIZE}$', text, re.M):
            raise Failure(f'iscsi-readcapacity16 says {text}')


def copied(place):
    with Target(place) as target:
        data = os.urandom(SIZE)
        there, back = place.file('there', data), place.file('back', b'\xff' * SIZE)
        target.copy('write', there)
        with open(target.disk, 'rb') as f:
            if f.read() != data:
                raise Failure('the disk does not hold what was written')
        target.copy('read', back)
        with open(back, 'rb') as f:
            if f.read() != data:
                raise Failure('what was read is not what was written')


def tested(place):
    """libiscsi's own tests of a target, of which Async wants more than libiscsi can do over iSER."""
    with Target(place) as target:
        for name in ('Read10.Simple', 'Read10.BeyondEol', 'Read16.Simple', 'Write10.Simple', 'Write16.Simple', 'Inquiry.Standard',
                     'ReadCapacity16.Simple', 'TestUnitReady.Simple', 'Verify10.Simple', 'Verify10.Mismatch'):
            text = target.ask('iscsi-test-cu', '--dataloss', '--test', f'SCSI.{name}')
            if not re.search(r'^\s+tests\s+1\s+1\s+1\s+0', text, re.M):
                raise Failure(f'iscsi-test-cu {name}: {text}')


CHECKS = (
    ('iscsi-inq and iscsi-readcapacity16 see the disk', asked),
    ('32 MiB are on the disk, and come back, with 64 requests in flight', copied),
    ('iscsi-test-cu', tested),
)
