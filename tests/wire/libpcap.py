#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""tcpdump with a libpcap that has RDMA sniffing, against build/lib; TAP on stdout.

Debian builds its libpcap without, so both are built here from Debian's sources, in build-deps.
usage: libpcap.py --softhca SOFTHCA
"""

import argparse
import glob
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, 'tests', 'hosts'), os.path.join(TOP, 'tests', 'programs')]
sys.dont_write_bytecode = True

import capture  # noqa: E402
import hosts  # noqa: E402
import tap  # noqa: E402

PLACE = os.path.join(TOP, 'build-deps', 'libpcap')
TO, FROM = '02:00:00:00:00:01', '02:00:00:00:00:02'
FRAMES = MESSAGES = 20
SIZE = 500
PATIENCE = 60


class Failure(Exception):
    pass


def step(*argv, cwd=PLACE):
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise hosts.Unable(f'{" ".join(argv[:2])}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}')


def sources_of_this_machine():
    """Its package archives, asked for sources; never in its own configuration."""
    text = ''
    for path in glob.glob('/etc/apt/sources.list.d/*.sources'):
        with open(path, encoding='utf-8') as file:
            text += re.sub(r'^Types:.*', 'Types: deb-src', file.read(), flags=re.M) + '\n'
    if text:
        return 'archive.sources', text
    with open('/etc/apt/sources.list', encoding='utf-8') as file:
        return 'archive.list', re.sub(r'^deb ', 'deb-src ', file.read(), flags=re.M)


def built_tcpdump():
    """The program; built, where that was not done before. Raises Unable."""
    done = glob.glob(os.path.join(PLACE, 'tcpdump-*', 'tcpdump'))
    if done:
        return done[0]
    for tool in ('apt-get', 'flex', 'bison', 'make', 'gcc'):
        if not shutil.which(tool):
            raise hosts.Unable(f'{tool} is not installed')
    shutil.rmtree(PLACE, ignore_errors=True)
    os.makedirs(os.path.join(PLACE, 'lists', 'partial'))
    try:
        name, text = sources_of_this_machine()
    except OSError as error:
        raise hosts.Unable(f'no package archive: {error}') from error
    with open(os.path.join(PLACE, name), 'w', encoding='utf-8') as file:
        file.write(text)
    apt = ['apt-get', '-q', '-o', f'Dir::Etc::sourcelist={PLACE}/{name}', '-o', 'Dir::Etc::sourceparts=/dev/null',
           '-o', f'Dir::State::lists={PLACE}/lists']
    step(*apt, 'update')
    step(*apt, '--download-only', 'source', 'libpcap', 'tcpdump')
    for archive in sorted(glob.glob(os.path.join(PLACE, '*.orig.tar.*[z2]'))):
        step('tar', 'xf', archive)
    libpcap, tcpdump = (glob.glob(os.path.join(PLACE, which + '-*/'))[0] for which in ('libpcap', 'tcpdump'))
    step('./configure', '-q', '--enable-rdma', '--without-libnl', '--disable-dbus', '--disable-usb', '--disable-bluetooth',
         cwd=libpcap)
    step('make', '-s', cwd=libpcap)
    step('./configure', '-q', '--without-crypto', cwd=tcpdump)  # takes the libpcap beside it
    step('make', '-s', cwd=tcpdump)
    return os.path.join(tcpdump, 'tcpdump')


def frames_in(path):
    """Those that are complete."""
    with open(path, 'rb') as file:
        data = file.read()
    at, out = capture.HEAD.size, []
    while at + capture.RECORD.size <= len(data):
        length = capture.RECORD.unpack_from(data, at)[2]
        at += capture.RECORD.size
        if at + length <= len(data):
            out.append(data[at:at + length])
        at += length
    return out


def raw_frames(frames):
    return [f for f in frames if f[:6].hex(':') == TO and f[6:12].hex(':') == FROM]


def roce_packets(frames):
    return [f[14:] for f in frames if f[12:14] in (b'\x08\x00', b'\x86\xdd') and capture.is_roce(f[14:])]


def bytes_of_far(frames):
    """On a cable between namespaces, several packets may come as one frame."""
    far = ipaddress.ip_address(hosts.FAR[0]).packed
    return sum(len(packet) for packet in roce_packets(frames) if packet[12:16] == far)


class Sniffer:
    def __init__(self, command, device):
        self.folder = tempfile.TemporaryDirectory(prefix='softhca-pcap-')
        self.path = os.path.join(self.folder.name, 'frames')
        self.errors = open(os.path.join(self.folder.name, 'errors'), 'w+', encoding='utf-8')
        self.process = subprocess.Popen([*command, '-i', device, '-U', '-w', self.path], stdin=subprocess.DEVNULL,
                                        stderr=self.errors)
        self.until(lambda: 'listening on' in self.said(), 'it listens')

    def said(self):
        with open(self.errors.name, encoding='utf-8') as file:
            return file.read()

    def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f'not seen that {what}: {self.said()}')
            time.sleep(0.05)

    def frames(self):
        return frames_in(self.path) if os.path.exists(self.path) else []

    def end(self):
        """Its exit status, as on Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(2)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self):
        self.end()
        self.errors.close()
        self.folder.cleanup()


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    if done.returncode:
        raise Failure(f'{argv}: exit status {done.returncode}: {done.stdout} {done.stderr}')
    return done.stdout


def pingpong(run_command, server_prefix, address):
    """The server waits in accept(2) when its socket is there; until then the client is refused."""
    argv = [*run_command, 'ibv_rc_pingpong', '-g', '0', '-n', str(MESSAGES), '-s', str(SIZE), '-p', '18600']
    server = subprocess.Popen([*server_prefix, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while subprocess.run([*argv, address], stdin=subprocess.DEVNULL, capture_output=True).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failure('ibv_rc_pingpong does not get through')
            time.sleep(0.2)
        server.wait(PATIENCE)
    finally:
        server.kill()
        server.wait()


def sniff(tcpdump, softhca, cable):
    command = [softhca, 'run', '--']
    listing = run(*command, tcpdump, '-D')
    if not re.search(r'softhca0 \(RDMA sniffer\)', listing):
        raise Failure(f'no device to sniff on: {listing}')
    sniffer = Sniffer([*command, tcpdump], 'softhca0')
    try:
        # Through memory: nothing of it is seen. The frames that come after it are.
        pingpong(command, (), hosts.NEAR[0])
        run(*command, 'raw_ethernet_bw', '--client', '-d', 'softhca0', '-n', str(FRAMES), '-s', '100', '-E', TO, '-B', FROM)
        sniffer.until(lambda: len(raw_frames(sniffer.frames())) == FRAMES, f'{FRAMES} frames of a raw packet QP came')
        if found := roce_packets(sniffer.frames()):
            raise Failure(f'{len(found)} packets of what went through memory')
        # From the other host: its half of the conversation.
        pingpong(command, cable.there(), hosts.FAR[0])
        sniffer.until(lambda: bytes_of_far(sniffer.frames()) >= MESSAGES * SIZE, 'packets of the other host came')
        if status := sniffer.end():
            raise Failure(f'tcpdump: exit status {status}: {sniffer.said()}')
    finally:
        sniffer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--softhca', default=os.path.join(TOP, 'build', 'softhca'))
    options = parser.parse_args()
    try:
        tcpdump = built_tcpdump()
        hosts.enter()
        cable = hosts.Hosts(4300)
    except hosts.Unable as reason:
        print(f'1..0 # SKIP {reason}')
        return 0
    print('1..1')
    began, failure = time.monotonic(), None
    try:
        sniff(tcpdump, os.path.abspath(options.softhca), cable)
    except (Failure, OSError, subprocess.SubprocessError) as error:
        failure = error
    finally:
        cable.close()
    tap.result(1, 'tcpdump sees frames of raw packet QPs and of other hosts', began, failure, slow=60)
    return 1 if failure else 0


if __name__ == '__main__':
    sys.exit(main())
