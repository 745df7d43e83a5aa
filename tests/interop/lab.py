# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The laboratory: Debian's kernel with rdma_rxe in QEMU, which a script outside this project boots (rxe-vm).

The guest sees this machine's files, read-only. Its root namespace has the kernel's rxe0 on the interface veth-rxe,
192.168.77.1; the namespace `peer` has veth-peer, 192.168.77.2, and no adapter but ours.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NEEDS = ('qemu-system-x86_64', 'busybox', 'cpio', 'depmod', 'ip', 'ps')
SETUP_LIMIT = 600


class Unable(Exception):
    """This machine cannot do it; the text says why."""


def script():
    """RXE_VM names it; else it is looked for beside the checkout, or beside a folder that the checkout is in."""
    if named := os.environ.get('RXE_VM'):
        return named
    folder = os.environ.get('SOFTHCA_TEST_TOP', TOP)  # run-tests.py runs a copy of some checkouts elsewhere
    while folder != '/':
        folder = os.path.dirname(folder)
        path = os.path.join(folder, 'shared', 'lab', 'rxe-vm')
        if os.path.exists(path):
            return path
    return None


def prepare():
    """Returns the script that boots. Raises Unable where this machine lacks something."""
    path = script()
    if not path:
        raise Unable('RXE_VM names no script that boots a Linux with Soft-RoCE')
    search = os.environ.get('PATH', '') + ':/usr/sbin:/sbin'
    if missing := [tool for tool in NEEDS if not shutil.which(tool, path=search)]:
        raise Unable(f'{", ".join(missing)} not installed')
    os.environ['PATH'] = search
    try:
        done = subprocess.run(['bash', path, '--setup'], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SETUP_LIMIT)
    except subprocess.TimeoutExpired:
        raise Unable('rxe-vm --setup takes too long') from None
    if done.returncode:
        raise Unable('rxe-vm --setup: ' + last_line(done.stderr or done.stdout))
    return path


def end(pid):
    """A process and what it has started."""
    below = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True, text=True).stdout.split()
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for child in below:
        end(int(child))


def last_line(text):
    return ([line.strip() for line in text.splitlines() if line.strip()] or ['no word about it'])[-1]


def copy_new(source, offset):
    """What was written to the file since, to stdout."""
    try:
        with open(source, 'rb') as f:
            f.seek(offset)
            data = f.read()
    except FileNotFoundError:
        return offset
    sys.stdout.write(data.decode(errors='replace'))
    sys.stdout.flush()
    return offset + len(data)


def run(argv, limit):
    """Runs a command in a guest. It is given the path of a file for its TAP, which is printed here as it comes. Returns its
    exit status."""
    path = prepare()
    share = tempfile.mkdtemp(prefix='softhca-interop-')
    tap, console = os.path.join(share, 'tap'), os.path.join(share, 'console')
    words = ' '.join("'" + word.replace("'", "'\\''") + "'" for word in (*argv, tap))
    try:
        with open(console, 'wb') as out:
            guest = subprocess.Popen(['bash', path, '-t', str(limit), '-w', share, '--', words], cwd='/',
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     start_new_session=True)  # whoever ends our group leaves it to us
            shown = 0
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            try:
                while guest.poll() is None:
                    shown = copy_new(tap, shown)
                    time.sleep(0.2)
            finally:
                if guest.poll() is None:
                    end(guest.pid)
                    guest.wait()
        shown = copy_new(tap, shown)
        with open(console, encoding='utf-8', errors='replace') as f:
            text = f.read()
        if not shown:
            raise Unable('the guest did not start: ' + last_line(text))
        if guest.returncode:
            print(''.join(f'# console: {line}\n' for line in text.splitlines()[-20:]), end='', flush=True)
        return guest.returncode
    finally:
        shutil.rmtree(share, ignore_errors=True)
