#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What each environment gets: root, ordinary users, containers, pods, kernels with Yama. verbs_threads runs in each of those that this
machine allows, for 8-byte latencies and the bandwidth of 64 KiB, and `softhca ps` says by which mechanism.

ENVIRONMENTS is the one list of them, with the mechanism that is expected; tests/tools/test_environments.py holds it against
`softhca ps` and `softhca doctor`. Each environment has a network namespace of its own, which ends with this program.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(TOP, 'tests', 'interop')]
sys.dont_write_bytecode = True

import lab  # noqa: E402
import report  # noqa: E402
from contestants import Trouble  # noqa: E402

LIMIT_S = 30
GUEST_LIMIT_S = 600
TURNS = 2

# Name, operation, size, metric of verbs_threads, and what its target does.
COLUMNS = (
    ('WRITE', 'write', 8, 'latency', 'spin'),
    ('READ', 'read', 8, 'latency', 'spin'),
    ('SEND', 'send', 8, 'latency', 'poll'),
    ('atomic', 'faa', 8, 'latency', 'spin'),
    ('64 KiB', 'write', 65536, 'rate', 'spin'),
)

MAPPED, COPY, RING = 'mapped', 'kernel copy', 'ring'
# What softhca ps calls them.
MECHANISMS = {'mapped': MAPPED, 'cma': COPY, 'ring': RING}

USERFAULTFD = '/proc/sys/vm/unprivileged_userfaultfd'
YAMA = '/proc/sys/kernel/yama/ptrace_scope'
# What an ordinary login gets from a current kernel, as as-user.sh has it.
MEMLOCK = 8 << 20
COPIES = 'process_vm_readv,process_vm_writev'


class Unable(Exception):
    """This machine cannot make the environment; the text says why."""


class Ground:
    """Namespaces in which an environment is made. inside: what is put in front of a command to run it in that of the network."""

    def __init__(self, build, holder):
        self.build = build
        self.inside = ['nsenter', f'--net=/proc/{holder}/ns/net']
        self.pids = f'/proc/{holder}/ns/pid_for_children'


class Sides:
    """How the two sides are started. far: None where the initiator starts its target itself. how: in words."""

    def __init__(self, near=(), far=None, options=(), how=''):
        self.near, self.far, self.options, self.how = list(near), far and list(far), list(options), how


# --- what environments are made of ------------------------------------------------------------------------

@contextlib.contextmanager
def ground(build):
    """New namespaces of the network, whose lo is up, and of PIDs."""
    argv = ['unshare', '--net', '--pid', '--fork', '--kill-child', 'sh', '-c', 'ip link set lo up && echo up && exec cat']
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as holder:
        if holder.stdout.readline() != 'up\n':
            raise Unable('namespaces: ' + lab.last_line(holder.stderr.read()))
        # Its input ends with this program, however that ends, and then it ends.
        yield Ground(build, holder.pid)


KEEP_SYSCTL = """trap '' HUP INT TERM
printf %s "$2" >"$1" && echo done || echo failed
read -r end
printf %s "$3" >"$1" """


@contextlib.contextmanager
def sysctl(path, value):
    """Set meanwhile. It is a process of its own that sets it back: when its input ends, also because this program was killed."""
    try:
        with open(path, encoding='ascii') as f:
            before = f.read().strip()
    except OSError as e:
        raise Unable(f'{path}: {e.strerror}') from None
    if before == value:
        yield
        return
    with subprocess.Popen(['sh', '-c', KEEP_SYSCTL, 'sh', path, value, before], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as keeper:
        if keeper.stdout.readline() != 'done\n':
            keeper.stdin.close()
            raise Unable(f'{path}: ' + lab.last_line(keeper.stderr.read()))
        try:
            yield
        finally:
            keeper.stdin.close()
            keeper.wait()


def as_user(*options):
    return [os.path.join(TOP, 'scripts', 'as-user.sh'), *options]


def with_capability(name):
    """An ordinary user with one capability."""
    return ['prlimit', f'--memlock={MEMLOCK}', 'setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', f'--inh-caps=+{name}',
            f'--ambient-caps=+{name}', '--']


# --- containers -------------------------------------------------------------------------------------------

# Of containers-common; the second one is install-deps.sh's.
PROFILES = ('/usr/share/containers/seccomp.json', os.path.join(TOP, 'build-deps', 'containers', 'seccomp.json'))
# containers-common's default_capabilities.
CAPABILITIES = ['CAP_' + name for name in ('CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'KILL', 'NET_BIND_SERVICE', 'SETFCAP',
                                           'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT')]
# Names of a processor in the profile, and in a configuration of OCI.
ARCHITECTURES = {'x86_64': ('amd64', 'SCMP_ARCH_X86_64'), 'aarch64': ('arm64', 'SCMP_ARCH_AARCH64')}
# crun 1.8 knows version 1 or 2 of control groups, and not both at once, as some machines have them.
CRUN = 'if [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi; exec "$@"'


def seccomp(capabilities, refused):
    """The profile as podman hands it to crun: rules for other processors and other capabilities left out. refused: system
    calls that it allows and this one does not."""
    path = next(filter(os.path.exists, PROFILES), None)
    if not path:
        raise Unable('no profile of containers-common')
    with open(path, encoding='utf-8') as f:
        profile = json.load(f)
    processor, architecture = ARCHITECTURES[os.uname().machine]
    rules = []
    for rule in profile['syscalls']:
        includes, excludes = (rule.get(key) or {} for key in ('includes', 'excludes'))
        if (processor in includes.get('arches', [processor]) and set(includes.get('caps', [])) <= set(capabilities) and
                not set(excludes.get('caps', [])) & set(capabilities)):
            kept = {key: rule[key] for key in ('action', 'args', 'errnoRet') if rule.get(key)}
            rules.append(dict(kept, names=[name for name in rule['names'] if name not in refused]))
    rules.append({'names': list(refused), 'action': 'SCMP_ACT_ERRNO', 'errnoRet': 1})
    return {'defaultAction': profile['defaultAction'], 'defaultErrnoRet': profile.get('defaultErrnoRet', 1),
            'architectures': [architecture], 'syscalls': [rule for rule in rules if rule['names']]}


# The configuration has the command of a container. Its control groups are left as they are.
START = f"""
import json, os, sys
bundle = sys.argv[1]
with open(bundle + "/template.json") as f:
    config = json.load(f)
config["process"]["args"] = sys.argv[2:]
with open(bundle + "/config.json", "w") as f:
    json.dump(config, f)
os.execvp("unshare", ["unshare", "--mount", "sh", "-c", {CRUN!r}, "sh", "crun", "--root", bundle + "/state",
                      "--cgroup-manager=disabled", "run", "--bundle", bundle, "softhca-bench-" + str(os.getpid())])
"""


def container(bundle, build, filtered, refused, more, pids):
    """What is put in front of a command to run it in a container: root with the capabilities that podman leaves him and `more`,
    with this machine's programs. pids: a PID namespace, if not its own."""
    if not shutil.which('crun'):
        raise Unable('crun is not installed')
    os.makedirs(os.path.join(bundle, 'rootfs'))
    for link in ('bin', 'sbin', 'lib', 'lib64'):
        os.symlink('usr/' + link, os.path.join(bundle, 'rootfs', link))
    capabilities = [*CAPABILITIES, *more]
    config = {
        'ociVersion': '1.0.0',
        'root': {'path': 'rootfs'},
        'process': {
            'user': {'uid': 0, 'gid': 0}, 'cwd': '/',
            'env': ['PATH=/usr/sbin:/usr/bin:/sbin:/bin', f'LD_LIBRARY_PATH={build}/lib', 'LC_ALL=C'],
            'capabilities': {kind: capabilities for kind in ('bounding', 'effective', 'permitted')},
            'rlimits': [{'type': 'RLIMIT_MEMLOCK', 'soft': MEMLOCK, 'hard': MEMLOCK}]},
        'mounts': [{'destination': '/proc', 'type': 'proc', 'source': 'proc'},
                   {'destination': '/dev', 'type': 'tmpfs', 'source': 'tmpfs', 'options': ['nosuid', 'mode=755']},
                   {'destination': '/tmp', 'type': 'tmpfs', 'source': 'tmpfs'}] +
                  [{'destination': path, 'type': 'none', 'source': path, 'options': ['rbind', 'ro']}
                   for path in ('/usr', '/etc', '/sys', build)],
        'linux': {'namespaces': [{'type': kind} for kind in ('ipc', 'uts', 'mount')] +
                                [{'type': 'pid', 'path': pids} if pids else {'type': 'pid'}]},
    }
    if filtered:
        config['linux']['seccomp'] = seccomp(capabilities, refused)
    with open(os.path.join(bundle, 'template.json'), 'w', encoding='utf-8') as f:
        json.dump(config, f)
    return [sys.executable, '-c', START, bundle]


@contextlib.contextmanager
def containers(build, count, filtered=True, refused=(), more=(), pids=None):
    with tempfile.TemporaryDirectory(prefix='softhca-containers-') as folder:
        yield [container(os.path.join(folder, str(i)), build, filtered, refused, more, pids) for i in range(count)]


# --- environments: how each is made ------------------------------------------------------------------------

@contextlib.contextmanager
def root(_):
    yield Sides()


@contextlib.contextmanager
def user(_):
    yield Sides(as_user())


@contextlib.contextmanager
def user_with_sysctl(_):
    with sysctl(USERFAULTFD, '1'):
        yield Sides(as_user(), how='vm.unprivileged_userfaultfd=1, set back afterwards')


@contextlib.contextmanager
def user_with_capability(_):
    yield Sides(with_capability('sys_ptrace'), how='setpriv --ambient-caps=+sys_ptrace')


@contextlib.contextmanager
def user_who_asks(_):
    yield Sides([*as_user(), 'env', 'SOFTHCA_LOCAL=mapped'], how='SOFTHCA_LOCAL=mapped')


def in_container(*refused):
    @contextlib.contextmanager
    def make(there):
        with contextlib.ExitStack() as stack:
            try:
                (one,) = stack.enter_context(containers(there.build, 1, refused=refused))
                sides = Sides(one, how="crun, containers-common's profile" + (f' without {" and ".join(refused)}' if refused else ''))
            except Unable as e:
                calls = ','.join(('userfaultfd', *refused))
                sides = Sides([*as_user(), os.path.join(there.build, 'bench', 'bench_filtered'), calls],
                              how=f'no container ({e}): an ordinary user, a filter that refuses {calls}')
            yield sides
    return make


@contextlib.contextmanager
def unconfined(there):
    with containers(there.build, 1, filtered=False, more=['CAP_SYS_PTRACE']) as (one,):
        yield Sides(one, how='crun, no filter, with CAP_SYS_PTRACE')


@contextlib.contextmanager
def filter_later(_):
    calls = f'{COPIES},userfaultfd'
    yield Sides(as_user(), options=['-r', calls], how=f'both sides refuse themselves {calls} after their first requests')


@contextlib.contextmanager
def pod(there):
    with containers(there.build, 2) as (one, two):
        yield Sides(one, two, how='crun, the same profile, a PID namespace each')


def unconfined_pod(*more):
    @contextlib.contextmanager
    def make(there):
        with containers(there.build, 2, filtered=False, more=more) as (one, two):
            yield Sides(one, two, how='crun, no filter, ' + (f'with {" and ".join(more)}, ' if more else '') + 'a PID namespace each')
    return make


@contextlib.contextmanager
def pod_with_one_pid_namespace(there):
    with containers(there.build, 2, pids=there.pids) as (one, two):
        yield Sides(one, two, how='crun, the same profile, one PID namespace')


@contextlib.contextmanager
def two_users(_):
    yield Sides(as_user(), as_user('-2'))


def yama(scope):
    @contextlib.contextmanager
    def make(_):
        with sysctl(YAMA, str(scope)):
            # Neither side is a child of the other, which would need no permission.
            yield Sides(as_user(), as_user(), how=f'kernel.yama.ptrace_scope={scope}')
    return make


# What softhca doctor says of users: mapped memory in programs with one thread, and copies by the kernel in others.
BY_THREADS = 'mapped or copied, by threads'
MAPPED_OR_RING = 'mapped or ring, by threads'
# What softhca doctor advises.
SYSCTL, MEMORY = r'sysctl -w vm\.unprivileged_userfaultfd=1 \(as root\)', r'ulimit -l unlimited'
YAMA_1 = r'sysctl -w kernel\.yama\.ptrace_scope=1 \(as root\)'
NO_FILTER = r'podman run --security-opt seccomp=unconfined --cap-add=SYS_PTRACE'
RULE = r'podman run --security-opt seccomp=FILE, .*process_vm_readv'


class Environment:
    """expected: the mechanism of the initiator. advice: what softhca doctor says would give it more. doctor: the mechanism that
    it tells of, which is that between processes of the initiator's kind. threads: that sit in system calls. changes: makes a
    change to the whole machine for as long as it lasts."""

    def __init__(self, name, expected, advice, make, threads=4, doctor=None, changes=False):
        self.name, self.expected, self.advice, self.make, self.threads = name, expected, advice, make, threads
        self.doctor, self.changes = doctor or expected, changes


ENVIRONMENTS = (
    Environment('root, one thread', MAPPED, None, root, 0),
    Environment('root, threads', MAPPED, None, root),
    Environment('user, one thread', MAPPED, SYSCTL, user, 0, doctor=BY_THREADS),
    Environment('user, threads', COPY, SYSCTL, user, doctor=BY_THREADS),
    Environment('user, threads, sysctl set', MAPPED, MEMORY, user_with_sysctl, changes=True),
    Environment('user, threads, CAP_SYS_PTRACE', MAPPED, MEMORY, user_with_capability),
    Environment('user, threads, SOFTHCA_LOCAL=mapped', MAPPED, MEMORY, user_who_asks),
    Environment("container, containers-common's profile", COPY, NO_FILTER, in_container()),
    Environment('container, process_vm_* refused, too', RING, RULE, in_container(*COPIES.split(','))),
    Environment('container, no filter, CAP_SYS_PTRACE', MAPPED, MEMORY, unconfined),
    Environment('user, filter after connecting', RING, SYSCTL, filter_later, doctor=BY_THREADS),
    Environment("pod, containers-common's profile", RING, NO_FILTER, pod, doctor=COPY),
    Environment('pod, no filter, one thread', MAPPED, SYSCTL, unconfined_pod(), 0, doctor=BY_THREADS),
    Environment('pod, no filter, CAP_SYS_PTRACE', MAPPED, MEMORY, unconfined_pod('CAP_SYS_PTRACE')),
    Environment('pod, one PID namespace', COPY, NO_FILTER, pod_with_one_pid_namespace),
    Environment('two users', RING, SYSCTL, two_users, doctor=BY_THREADS),
)
# In a guest whose kernel is Debian 12's, which has Yama.
IN_GUEST = (
    Environment('root, threads', MAPPED, None, root),
    Environment('user, one thread', MAPPED, SYSCTL, user, 0, doctor=BY_THREADS),
    Environment('user, threads', COPY, SYSCTL, user, doctor=BY_THREADS),
    Environment('user, threads, sysctl set', MAPPED, MEMORY, user_with_sysctl, changes=True),
    Environment('user, threads, Yama 1', COPY, SYSCTL, yama(1), doctor=BY_THREADS, changes=True),
    Environment('user, one thread, Yama 2', MAPPED, YAMA_1, yama(2), 0, doctor=MAPPED_OR_RING, changes=True),
    Environment('user, threads, Yama 2', RING, YAMA_1, yama(2), doctor=MAPPED_OR_RING, changes=True),
)


# --- verbs_threads in one of them --------------------------------------------------------------------------

def descendants(pid):
    yield pid
    with contextlib.suppress(OSError):
        for thread in os.listdir(f'/proc/{pid}/task'):
            with open(f'/proc/{pid}/task/{thread}/children', encoding='ascii') as f:
                for child in f.read().split():
                    yield from descendants(int(child))


def program_of(pid, name):
    """The process that was started as the end of a row of wrappers."""
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(f'/proc/{one}/exe')) == name:
                return one
    raise Trouble(f'{name} does not run')


class Side:
    def __init__(self, argv, env):
        self.argv, self.said = argv, tempfile.TemporaryFile(mode='w+')
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise self.trouble()
        return line

    def trouble(self):
        self.said.seek(0)
        return Trouble(lab.last_line(self.said.read()))

    def end(self):
        """Its input ends, and with that the program."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if self.process.wait():
            raise self.trouble()

    def kill(self):
        if self.process.poll() is None:
            lab.end(self.process.pid)
        self.process.wait()
        self.process.stdout.close()
        self.said.close()


class Place:
    """An environment that is there, to run commands in."""

    def __init__(self, there, cpus, environment, sides):
        self.build, self.inside, self.cpus, self.environment, self.sides = there.build, there.inside, cpus, environment, sides
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(('SOFTHCA_', 'LD_', 'UCX_'))}
        self.env.update(LC_ALL='C', LD_LIBRARY_PATH=os.path.join(self.build, 'lib'))

    def ps(self, pid):
        """(mechanism, why memory of the peer is not mapped), of the initiator's connection."""
        done = subprocess.run([os.path.join(self.build, 'softhca'), 'ps', '--json', str(pid)], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT_S)
        try:
            of_qp = next(o for o in json.loads(done.stdout)['processes'][0]['objects'] if 'path' in o)
        except (ValueError, LookupError, StopIteration):
            return 'softhca ps: ' + lab.last_line(done.stderr), ''
        return MECHANISMS.get(of_qp['path'], of_qp['path']), of_qp.get('not_mapped_because', '')

    def doctor(self):
        return subprocess.run([*self.inside, *self.sides.near, os.path.join(self.build, 'softhca'), 'doctor'], env=self.env,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S).stdout

    def run(self, op, size, metric, how):
        """verbs_threads' figures, and ps() while it is connected."""
        program = [os.path.join(self.build, 'bench', 'verbs_threads'), '-p', '-t', str(self.environment.threads),
                   *self.sides.options]
        what = ['--', *map(str, self.cpus), op, str(size), metric, how]
        with contextlib.ExitStack() as stack:
            started = []

            def start(prefix, role):
                side = Side([*self.inside, *prefix, *program, *role, *what], self.env)
                stack.callback(side.kill)
                started.append(side)
                return side

            watch = threading.Timer(LIMIT_S, lambda: [lab.end(side.process.pid) for side in started])
            watch.start()
            stack.callback(watch.cancel)
            target = self.sides.far and start(self.sides.far, ['-w', 'bench'])
            if target:
                target.line()
            initiator = start(self.sides.near, ['-i', 'bench'] if target else [])
            words = initiator.line().split()
            said = self.ps(program_of(initiator.process.pid, 'verbs_threads'))
            initiator.end()
            if target:
                target.end()
        return dict(zip(words[::2], map(float, words[1::2]))), said


@contextlib.contextmanager
def place(build, cpus, environment):
    """Raises Unable."""
    if os.geteuid():
        raise Unable('only root makes network namespaces and other users')
    with ground(build) as there, environment.make(there) as sides:
        yield Place(there, cpus, environment, sides)


# --- figures ------------------------------------------------------------------------------------------------

def figures(there, turns):
    """{column: best}, what ps said while WRITEs were measured, and what failed."""
    best, said, troubles = {}, None, {}
    for _ in range(turns):
        for name, op, size, metric, how in COLUMNS:
            if name in troubles:
                continue
            try:
                row, ps = there.run(op, size, metric, how)
            except Trouble as e:
                troubles[name] = str(e)
                continue
            said = said or ps
            value = row['us'] if metric == 'latency' else row['msgs'] * size / 1e9
            best[name] = (min if metric == 'latency' else max)(value, best.get(name, value))
    return best, said, troubles


def measure_one(there, turns, out):
    """Prints a row, and returns the record."""
    environment = there.environment
    best, said, troubles = figures(there, turns)
    mechanism, why = said or ('none', '')
    print(f'  {environment.name:40} {mechanism:12}' +
          ''.join(f'{report.figure(best[name]) if name in best else "-":>8}' for name, *_ in COLUMNS) +
          ('' if mechanism == environment.expected else f'  FAIL ({environment.expected} is expected)'), file=out)
    for text in (there.sides.how, *(f'{name}: FAIL ({trouble})' for name, trouble in troubles.items())):
        if text:
            print(f'    {text}', file=out)
    return {'mechanism': mechanism, 'why': why, 'how': there.sides.how, 'figures': best, 'failed': troubles}


def measure_all(build, cpus, environments, turns, out):
    """Returns whether each environment has the mechanism that is expected, and the record."""
    good, record, reasons = True, {}, {}
    for environment in environments:
        try:
            with place(build, cpus, environment) as there:
                row = record[environment.name] = measure_one(there, turns, out)
        except Unable as e:
            print(f'  {environment.name:40} not measured: {e}', file=out, flush=True)
            continue
        good &= row['mechanism'] == environment.expected and not row['failed']
        if row['why']:
            reasons.setdefault(row['why'], []).append(environment.name)
        out.flush()
    for why, names in reasons.items():
        print(f'  softhca ps ({"; ".join(names)}): {why}', file=out, flush=True)
    return good, record


def measure(bench, turns=TURNS, with_guest=True):
    print(f'Environments: verbs_threads, latencies of 8 bytes in us (READ, atomic: fetch and add: the round trip), WRITEs of 64 KiB in '
          f'GB/s; best of {turns} turns')
    print(f'  {"":40} {"mechanism":12}' + ''.join(f'{name:>8}' for name, *_ in COLUMNS), flush=True)
    good, record = measure_all(bench.build, bench.cpus, ENVIRONMENTS, turns, sys.stdout)
    if with_guest:
        good &= guest(bench.build)
    print()
    return good, record


# --- in a guest ---------------------------------------------------------------------------------------------

def guest(build):
    print('  In a guest of QEMU, whose processors are emulated: the mechanism counts, and how its figures compare with each other', flush=True)
    try:
        return not lab.run(['python3', os.path.abspath(__file__), '--build', build, '--in-guest'], GUEST_LIMIT_S)
    except lab.Unable as e:
        print(f'  {"Linux 6.1, Yama 1 and 2":40} not measured: {e}')
        return True


def in_guest(build, path):
    with open(path, 'w', encoding='utf-8') as out:
        print(f'  Linux {os.uname().release}:', file=out, flush=True)
        return 0 if measure_all(build, (0, 1), IN_GUEST, 1, out)[0] else 1


def main():
    ap = argparse.ArgumentParser(description='What bench/run starts in a guest.')
    ap.add_argument('--build', required=True)
    ap.add_argument('--in-guest', metavar='FILE', required=True)
    opt = ap.parse_args()
    return in_guest(opt.build, opt.in_guest)


if __name__ == '__main__':
    sys.exit(main())
