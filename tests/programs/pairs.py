# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Two ends of a program: started, met, ended, each within a limit."""

import argparse
import functools
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

# Two ordinary users and the overflow user. Numbers suffice: none of the programs looks its user up.
USERS = {'a': 61001, 'b': 61002, 'nobody': 65534}

# The smallest default that Linux ever had for RLIMIT_MEMLOCK; what passes here passes with today's 8 MiB.
MEMLOCK = 64 * 1024

LISTEN = '0A'
POLL_S = 0.004


class Failure(Exception):
    """The case did not hold; the text says why, and notes tell what the programs printed."""

    def __init__(self, text):
        super().__init__(text)
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class Skip(Exception):
    """This machine cannot show it; the text says why."""


class Host:
    """Where the programs find the library, and who runs them."""

    def __init__(self, lib=None, softhca=None, system=False, users=True, local=None, quiet=False):
        self.lib = lib and os.path.abspath(lib)
        self.softhca = softhca and os.path.abspath(softhca)
        self.system = system  # the machine's own libibverbs and devices, to check the table against a real adapter
        self.root = os.geteuid() == 0 and users  # may become other users
        self.local = local  # SOFTHCA_LOCAL, whatever a case says
        self.quiet = quiet  # explanations as `softhca run` has them; of who exits with 0 there must be none
        self.staged = None
        if self.root and not system:
            self._stage()

    def _stage(self):
        """A checkout below root's home is out of an ordinary user's reach; a copy under /tmp is not."""
        if all(_open_to_all(p) for p in (self.lib, self.softhca) if p):
            return
        self.staged = tempfile.mkdtemp(prefix='softhca-programs-')
        os.chmod(self.staged, 0o755)
        if self.lib:
            shutil.copytree(self.lib, os.path.join(self.staged, 'lib'))
            self.lib = os.path.join(self.staged, 'lib')
        if self.softhca:
            self.softhca = shutil.copy(self.softhca, self.staged)

    def close(self):
        if self.staged:
            shutil.rmtree(self.staged)

    def argv(self, argv, launch='lib'):
        return [self.softhca, 'run', '--', *argv] if launch == 'run' and not self.system else list(argv)

    def env(self, extra=None, launch='lib'):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(('SOFTHCA_', 'LD_', 'UCX_', 'IBV_', 'RDMAV_'))}
        env.update(HOME='/', LC_ALL='C')
        for name in ('ASAN_OPTIONS', 'TSAN_OPTIONS', 'UBSAN_OPTIONS'):
            if name in os.environ:
                env[name] = os.environ[name]
        if not self.system and launch == 'lib':
            env['LD_LIBRARY_PATH'] = self.lib
        if not self.system:
            env.update(extra or {})
        if self.local:
            env['SOFTHCA_LOCAL'] = self.local
        if self.quiet:
            env.update(SOFTHCA_EXPLAIN='text', SOFTHCA_LOG='warn')
        return env


def _open_to_all(path):
    path = os.path.abspath(path)
    while path != '/':
        mode = os.stat(path).st_mode
        if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return False
        path = os.path.dirname(path)
    return True


def add_options(parser):
    parser.add_argument('--lib', help='directory of libibverbs.so.1')
    parser.add_argument('--softhca', help='the softhca command')
    parser.add_argument('--local', metavar='WAY', help='SOFTHCA_LOCAL for all programs')
    parser.add_argument('--quiet', action='store_true', help='no word of ours from a program that exits with 0')
    parser.add_argument('--as-root', action='store_true', help='root stays root')


def host_of(options):
    return Host(options.lib, options.softhca, getattr(options, 'system', False), not options.as_root, options.local, options.quiet)


def report(number, name, act):
    """Runs it, and prints its line. True: it failed."""
    import tap  # here, because programs that need only the rest may have another module of that name

    began = time.monotonic()
    try:
        act()
        tap.result(number, name, began)
    except Skip as e:
        tap.result(number, name, began, skip=str(e))
    except Failure as e:
        tap.result(number, name, began, e)
        return True
    return False


def run_cases(doc, cases, name, mode):
    """A whole program: cases are functions of a host and of a folder with that mode. Returns its exit status."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(ap)
    ap.add_argument('--filter', default='', help='only cases whose name matches this expression')
    opt = ap.parse_args()
    todo = [(name, case) for name, case in cases if re.search(opt.filter, name)]
    host = host_of(opt)
    try:
        with tempfile.TemporaryDirectory(prefix=f'softhca-{name}-') as folder:
            os.chmod(folder, mode)
            print(f'1..{len(todo)}', flush=True)
            failed = [report(number, name, functools.partial(case, host, folder))
                      for number, (name, case) in enumerate(todo, 1)]
    finally:
        host.close()
    return 1 if any(failed) else 0


class Side:
    """One process of ours, with its output in a file and its end by its own process id. `prefix` needs root."""

    def __init__(self, host, argv, *, user='a', env=None, launch='lib', signals=None, stdout=None, prefix=()):
        self.name = os.path.basename(argv[0])
        self.quiet = host.quiet
        self.out = tempfile.TemporaryFile()
        kw = {}
        if host.root and not host.system:
            if prefix:
                prefix = (*prefix, 'setpriv', f'--reuid={USERS[user]}', f'--regid={USERS[user]}', '--clear-groups', '--')
            else:
                kw = dict(user=USERS[user], group=USERS[user], extra_groups=[])
        env = host.env(env, launch)
        # Memory that peers are to map is locked: as much as the machine allows.
        locks = bool(host.local) or env.get('SOFTHCA_LOCAL') == 'mapped'
        self.p = subprocess.Popen([*prefix, *host.argv(argv, launch)], stdin=subprocess.DEVNULL, stdout=stdout or self.out,
                                  stderr=subprocess.STDOUT, env=env, cwd='/',
                                  start_new_session=True, restore_signals=True,
                                  preexec_fn=lambda: _before_exec(signals, locks), **kw)
        self.pid = self.p.pid

    def text(self):
        """Also while it writes: its offset is that of this file."""
        fd = self.out.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors='replace')

    def wait(self, deadline):
        try:
            status = self.p.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        if self.quiet and status == 0 and (words := re.search(r'softhca\[\d+\].*', self.text())):
            raise Failure(f'{self.name} exits with 0 and is told: {words.group()}')
        return status

    def kill(self):
        """Its session too: a wrapper may have left a child. The zombie keeps the number ours until wait()."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.p.wait()

    def __enter__(self):
        return self

    def __exit__(self, _, e, __):
        """A failure is told with what the process had said by then."""
        self.kill()
        if isinstance(e, Failure):
            e.note(f'{self.name}: ' + ' '.join(self.p.args))
            e.note(self.text())
        self.out.close()


def _before_exec(signals, locks):
    if not locks:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK, MEMLOCK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signals == 'blocked':
        # All that can be blocked, but for the one that perftest's -D lives on.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGALRM})
    elif signals == 'ignored':
        for s in signal.valid_signals() - {signal.SIGALRM, signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(s, signal.SIG_IGN)


def free_port():
    """Below the ephemeral range, so that no outgoing connection of somebody else's takes it before we listen."""
    free_port.next = getattr(free_port, 'next', 10000 + os.getpid() * 37 % 20000)
    while True:
        port = free_port.next
        free_port.next = 10000 + (port - 10000 + 1) % 20000
        try:
            with socket.socket(socket.AF_INET6) as s:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                s.bind(('::', port))
                return port
        except OSError:
            continue


def listening(port, pid='self'):
    """On the host of that process. A probe by connect() would be taken for the client."""
    want = f':{port:04X}'
    for name in (f'/proc/{pid}/net/tcp', f'/proc/{pid}/net/tcp6'):
        try:
            with open(name) as f:
                for line in f:
                    field = line.split()
                    if field[3] == LISTEN and field[1].endswith(want):
                        return True
        except OSError:  # no IPv6 here; or the process has ended
            pass
    return False


def forget_xrc_files():
    """perftest opens its XRC domains by files of these names and leaves them, for its own user alone."""
    for end in ('server', 'client'):
        try:
            os.unlink(f'/tmp/xrc_domain_{end}')
        except FileNotFoundError:
            pass
        except PermissionError as e:
            raise Skip(f'/tmp/xrc_domain_{end} is another user\'s') from e


def run_pair(host, server, client, *, port, limit, users=('a', 'a'), env=None, launch='lib', signals=(None, None),
             during=None, near=(), far=(), other=None):
    """Both ends to their exit; returns their outputs, or raises Failure with both. near, far: in front of server and client.
    other: the client's host, if it is not the server's."""
    deadline = time.monotonic() + limit
    sides = []
    try:
        s = Side(host, server, user=users[0], env=env, launch=launch, signals=signals[0], prefix=near)
        sides.append(s)
        while not listening(port, s.pid):
            if s.p.poll() is not None:
                raise Failure(f'server ended before it listened, status {s.p.returncode}')
            if time.monotonic() > deadline:
                raise Failure(f'server did not listen within {limit} s')
            time.sleep(POLL_S)
        c = Side(other or host, client, user=users[1], env=env, launch=launch, signals=signals[1], prefix=far)
        sides.append(c)
        if during:
            during(s, c, deadline)
        status = [c.wait(deadline), s.wait(deadline)]
        late = [n for n, st in zip(('client', 'server'), status) if st is None]
        if late:
            raise Failure(f'{" and ".join(late)} not done within {limit} s')
        bad = [f'{n} exit status {st}' for n, st in zip(('client', 'server'), status) if st != 0]
        if bad:
            raise Failure(', '.join(bad))
        return s.text(), c.text()
    except Failure as e:
        for side in sides:
            side.kill()
        for side, name in zip(sides, ('server', 'client')):
            e.note(f'{name}: ' + ' '.join(side.p.args))
            e.note(side.text())
        raise
    finally:
        for side in sides:
            side.kill()
            side.out.close()
