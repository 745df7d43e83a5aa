# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Two hosts on one machine: this process's network namespace and a second one, joined by a cable (veth).

Call enter() first: it starts the program again inside namespaces of its own, as root with its users, else as the only user
of a user namespace.
"""

import os
import shutil
import subprocess
import sys

INSIDE = 'SOFTHCA_TEST_HOSTS'  # 'root' or 'user': enter() has been here
NEAR = ('10.78.0.1', 'fd78::1')
FAR = ('10.78.0.2', 'fd78::2')
ROCE_PORT = 4791


class Unable(Exception):
    """This machine cannot do it; the text says why."""


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Unable(f'{" ".join(argv)}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}')
    return done.stdout


def enter():
    """Returns inside. Raises Unable where the machine does not let us."""
    if INSIDE in os.environ:
        return
    for tool in ('unshare', 'nsenter', 'setpriv', 'ip'):
        if not shutil.which(tool, path=search_path()):
            raise Unable(f'{tool} is not installed')
    root = os.geteuid() == 0
    options = ['-n'] if root else ['-r', '-n']
    if subprocess.run(['unshare', *options, 'true'], capture_output=True).returncode:
        raise Unable('network namespaces are not allowed here')
    os.environ[INSIDE] = 'root' if root else 'user'
    os.environ['PATH'] = search_path()
    os.execvp('unshare', ['unshare', *options, '--', sys.executable, *sys.argv])


def search_path():
    return os.environ.get('PATH', '') + ':/usr/sbin:/sbin'


def has_users():
    return os.environ.get(INSIDE) == 'root'


class Hosts:
    """Both hosts and the cable. `far` is the process id that holds the second namespace."""

    def __init__(self, mtu):
        self.holder = subprocess.Popen(['unshare', '-n', '--', 'sh', '-c', 'echo there; exec sleep infinity'],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.holder.stdout.readline()
        self.far = self.holder.pid
        try:
            self._join(mtu)
        except Exception:
            self.close()
            raise

    def _join(self, mtu):
        run('ip', 'link', 'set', 'lo', 'up')
        run('ip', 'link', 'add', 'near', 'mtu', str(mtu), 'type', 'veth', 'peer', 'name', 'far', 'mtu', str(mtu),
            'netns', str(self.far))
        self._address((), 'near', NEAR)
        self._address(self.there(), 'far', FAR)
        run(*self.there(), 'ip', 'link', 'set', 'lo', 'up')

    def _address(self, prefix, name, addresses):
        run(*prefix, 'ip', 'address', 'add', addresses[0] + '/24', 'dev', name)
        run(*prefix, 'ip', 'address', 'add', addresses[1] + '/64', 'dev', name, 'nodad')
        run(*prefix, 'ip', 'link', 'set', name, 'up')

    def there(self):
        """What to put in front of a command so that it runs on the second host."""
        return ('nsenter', f'--net=/proc/{self.far}/ns/net', '--')

    def disturb(self, *netem):
        """Both directions; none: a good cable again."""
        for prefix, name in (((), 'near'), (self.there(), 'far')):
            subprocess.run([*prefix, 'tc', 'qdisc', 'del', 'dev', name, 'root'], capture_output=True)
            if netem:
                run(*prefix, 'tc', 'qdisc', 'add', 'dev', name, 'root', 'netem', *netem)

    def close(self):
        subprocess.run(['ip', 'link', 'del', 'near'], capture_output=True)
        self.holder.kill()
        self.holder.wait()


def entered(mtu):
    """Both hosts, this program on the near one; None, which was said in TAP, where the machine does not let us."""
    try:
        enter()
        return Hosts(mtu)
    except Unable as e:
        print(f'1..0 # SKIP {e}')
        return None
