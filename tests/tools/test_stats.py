#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca stats and top: counters of perftest's programs against what these programs did; exporters; the terminal.

usage: test_stats.py SOFTHCA
In a network namespace made here where that is allowed: what other processes of this user do is not in the sums then.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import tap

SOFTHCA = os.path.abspath(sys.argv[1])
WORK = tempfile.TemporaryDirectory(prefix="softhca-stats-")
HOME = os.path.join(WORK.name, "home")
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT, PTRACE_EVENT_EXIT, WALL = 7, 0x4206, 0x40, 6, 0x40000000
PATHS = {"default": {}, "ring": {"SOFTHCA_LOCAL": "ring"}, "copy": {"SOFTHCA_LOCAL": "copy"}, "wire": {"SOFTHCA_PATH": "wire"}}


def environment(**more):
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("SOFTHCA_", "LD_")) and name != "XDG_RUNTIME_DIR"}
    clean.update(HOME=HOME, LC_ALL="C", PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    clean.update(more)
    return clean


def softhca(*arguments, **kwargs):
    kwargs.setdefault("timeout", 60)
    return subprocess.run([SOFTHCA, *arguments], env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, **kwargs)


def succeeds(*arguments, **kwargs):
    result = softhca(*arguments, **kwargs)
    tap.equal((result.returncode, result.stderr), (0, ""), " ".join(arguments))
    return result.stdout


def need(program):
    if not shutil.which(program, path=environment()["PATH"]):
        raise tap.Skip(f"{program} is not installed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_proc(port):
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(re.match(rf"\s*\d+: [0-9A-F]+:{port:04X} \S+ 0A ", line) for line in table)


def ptrace(request, pid, data=0):
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if LIBC.ptrace(request, pid, None, data) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


class Ending:
    """A program that stands still when it ends, before it has let go of anything: its counters are its last ones."""

    def __init__(self, *command, **env):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([SOFTHCA, "run", "--", *command], env=environment(**env), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)
        self.pid = self.process.pid
        try:
            ptrace(PTRACE_SEIZE, self.pid, PTRACE_O_TRACEEXIT)
        except OSError as error:
            self.process.kill()
            raise tap.Skip(f"a child cannot be traced here: {error}")

    def wait(self):
        while True:
            _, status = os.waitpid(self.pid, WALL)
            assert os.WIFSTOPPED(status), f"it has ended: {status}\n{self.output()}"
            if status >> 16 == PTRACE_EVENT_EXIT:
                return
            # A stop of the kernel's own (exec) is no signal for the program.
            ptrace(PTRACE_CONT, self.pid, 0 if status >> 16 else os.WSTOPSIG(status))

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def end(self):
        ptrace(PTRACE_CONT, self.pid)
        _, status = os.waitpid(self.pid, WALL)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        tap.equal(self.process.returncode, 0, self.output())


class Pair:
    def __init__(self, program, *arguments, **env):
        need(program)
        port = free_port()
        command = [program, "-F", "-p", str(port), "-x", "0", *arguments]
        self.server = Ending(*command, **env)
        # Traced processes run on by themselves; only their stops have to be taken.
        for _ in range(400):
            if in_proc(port):
                break
            time.sleep(0.05)
        self.client = Ending(*command, "127.0.0.1", **env)

    def __enter__(self):
        self.client.wait()
        self.server.wait()
        return self

    def __exit__(self, *_):
        self.client.end()
        self.server.end()


def of(process, stats=None):
    stats = stats or json.loads(succeeds("stats", "--json"))
    found = [entry for entry in stats["processes"] if entry["pid"] == process.pid]
    tap.equal(len(found), 1, f"process {process.pid}")
    return found[0]


def count(port, kind, ways=("requests_executed_by_peer", "requests_executed_by_requester")):
    both = [port[way].get(kind, {"messages": 0, "bytes": 0}) for way in ways]
    return sum(way["messages"] for way in both), sum(way["bytes"] for way in both)


def only_port(process):
    tap.equal(len(process["ports"]), 1)
    return process["ports"][0]


def check(program, kind, messages, size, *arguments, two_sided=False, **env):
    """The requester has begun exactly so many; and the responder has executed what was not executed directly."""
    with Pair(program, "-n", str(messages), "-s", str(size), *arguments, **env) as pair:
        client, server = only_port(of(pair.client)), only_port(of(pair.server))
        tap.equal(count(client, kind), (messages, messages * size), f"{program} requests {env}")
        direct = count(client, kind, ["requests_executed_by_requester"])
        executed = count(server, kind, ["executed_requests"])
        tap.equal((direct[0] + executed[0], direct[1] + executed[1]), (messages, messages * size), f"{program} executed {env}")
        if two_sided or env.get("SOFTHCA_LOCAL") == "ring" or env.get("SOFTHCA_PATH") == "wire":
            tap.equal(direct, (0, 0), f"{program} {env}")
        tap.equal(client["failed_completions"], {}, program)
        assert client["latency"]["measured"] > 0 and client["latency"]["sum_ns"] > 0, client["latency"]
        tap.equal(sum(bucket["count"] for bucket in client["latency"]["buckets"]), client["latency"]["measured"])
        return client, server


def test_sends_are_counted_at_both_ends():
    for env in PATHS.values():
        client, server = check("ib_send_bw", "send", 1000, 100, two_sided=True, **env)
        if "SOFTHCA_PATH" in env:
            assert client["packets_sent"] >= 1000 and server["packets_received"] >= 1000, (client, server)
        else:
            tap.equal((client["packets_sent"], server["packets_received"]), (1000, 1000))


def test_writes_are_counted_whoever_executes_them():
    for env in PATHS.values():
        check("ib_write_bw", "write", 2000, 8, **env)


def test_reads_are_counted_whoever_executes_them():
    for path in "copy", "wire":
        check("ib_read_bw", "read", 1000, 4096, **PATHS[path])


def test_atomics_are_counted_whoever_executes_them():
    for path in "default", "ring":
        check("ib_atomic_bw", "atomic", 1000, 8, **PATHS[path])


def test_datagrams_are_counted():
    client, server = check("ib_send_lat", "send", 1000, 64, "-c", "UD", two_sided=True)
    tap.equal(count(server, "send"), (1000, 64000))


def tree(folder):
    succeeds("stats", "--sysfs", folder)
    base = os.path.join(folder, "class/infiniband/softhca0/ports/1")
    values = {}
    for kind in "counters", "hw_counters":
        for name in os.listdir(os.path.join(base, kind)):
            with open(os.path.join(base, kind, name), encoding="ascii") as file:
                values[kind + "/" + name] = int(file.read())
    return values


def test_sums_of_a_port_do_not_fall_when_a_process_ends():
    folder = os.path.join(WORK.name, "sysfs-sums")
    before = tree(folder)
    with Pair("ib_send_bw", "-n", "1000", "-s", "400"):
        during = tree(folder)
    after = tree(folder)
    tap.equal(during["hw_counters/tx_send_requests"] - before["hw_counters/tx_send_requests"], 1000)
    tap.equal(during["counters/port_xmit_data"] - before["counters/port_xmit_data"], 100000)
    tap.equal(during["counters/port_rcv_data"] - before["counters/port_rcv_data"], 100000)
    tap.equal(after, during)


def test_a_counter_file_says_what_the_counter_is_when_it_is_opened():
    path = "/sys/class/infiniband/softhca0/ports/1/hw_counters/tx_write_requests"
    code = f"import os; print(open('{path}').read(), os.read(os.open('{path}', os.O_RDONLY), 99).decode())"

    def read():
        shell = succeeds("run", "--", "cat", path)
        python = succeeds("run", "--", sys.executable, "-c", code)
        tap.equal(python.split(), [shell.strip()] * 2)
        return int(shell)

    before = read()
    with Pair("ib_write_bw", "-n", "3000", "-s", "8"):
        tap.equal(read() - before, 3000)
    tap.equal(read() - before, 3000)
    listed = succeeds("run", "--", "ls", os.path.dirname(path)).split()
    assert "lifespan" in listed and "tx_write_requests" in listed, listed


def test_promtool_accepts_the_text():
    need("promtool")
    file = os.path.join(WORK.name, "softhca.prom")
    with Pair("ib_write_bw", "-n", "2000", "-s", "8") as pair:
        succeeds("stats", "--prometheus", "--output", file)
        text = open(file, encoding="utf-8").read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    tap.equal((done.returncode, done.stdout + done.stderr), (0, ""))
    labels = rf'pid="{pair.client.pid}",start="[0-9.]+",program="ib_write_bw",device="softhca0",port="1"'
    samples = re.findall(rf'^softhca_requests_total{{{labels},opcode="write",executed_by="(\w+)"}} (\d+)$', text, re.M)
    tap.equal(sum(int(value) for _, value in samples), 2000, text)
    tap.equal({way for way, _ in samples}, {"peer", "requester"})
    tap.equal([name for name in os.listdir(WORK.name) if name.startswith("softhca.prom")], ["softhca.prom"])


def scrape(*arguments):
    need("prometheus-node-exporter")
    port = free_port()
    exporter = subprocess.Popen(["prometheus-node-exporter", "--collector.disable-defaults",
                                 f"--web.listen-address=127.0.0.1:{port}", *arguments],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
    try:
        for line in exporter.stderr:
            if b"Listening on" in line:
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()
    finally:
        exporter.kill()
        exporter.wait()


def test_node_exporter_shows_the_counters():
    need("prometheus-node-exporter")
    folder, texts = os.path.join(WORK.name, "sysfs"), os.path.join(WORK.name, "texts")
    os.makedirs(texts)
    with Pair("ib_send_bw", "-n", "1000", "-s", "4000") as pair:
        tree(folder)
        with open(os.path.join(folder, "class/infiniband/softhca0/ports/1/counters/port_xmit_data"), encoding="ascii") as file:
            data = int(file.read())
        succeeds("stats", "--prometheus", "--output", os.path.join(texts, "softhca.prom"))
    seen = scrape("--collector.infiniband", f"--path.sysfs={folder}")
    found = re.search(r'^node_infiniband_port_data_transmitted_bytes_total{device="softhca0",port="1"} (\S+)', seen, re.M)
    assert found, seen
    tap.equal(float(found[1]), data * 4)
    seen = scrape("--collector.textfile", f"--collector.textfile.directory={texts}")
    assert re.search(rf'^softhca_requests_total{{[^}}]*pid="{pair.client.pid}"[^}}]*}} 1000$', seen, re.M), seen
    assert 'node_textfile_scrape_error 0' in seen, seen


def test_top_prints_json_without_a_terminal():
    with Pair("ib_write_bw", "-n", "2000", "-s", "8") as pair:
        shown = json.loads(succeeds("top", "--once", "--json", "--delay", "0.1"))
        process = of(pair.client, shown)
        tap.equal((process["messages_out"], process["bytes_out"], process["per_second"]["messages_out"]), (2000, 16000, 0))
        assert {"rnr_naks_received", "rnr_naks_sent", "dropped_requests"} <= process["per_second"].keys(), process
        tap.equal((process["program"], process["uid"]), ("ib_write_bw", os.geteuid()))
        table = succeeds("top", "--once", "--delay", "0.1")
        assert re.search(rf"^ *{pair.client.pid} ib_write_bw ", table, re.M), table


def test_top_says_what_is_missing():
    result = softhca("top")
    tap.equal(result.returncode, 1)
    assert "needs a terminal" in result.stderr or "libncurses-dev" in result.stderr, result.stderr
    # A copy without the module for the terminal.
    copy = os.path.join(WORK.name, "copy")
    os.makedirs(copy + "/lib")
    shutil.copy(SOFTHCA, copy)
    shutil.copy(os.path.dirname(SOFTHCA) + "/lib/libibverbs.so.1", copy + "/lib")
    result = subprocess.run([copy + "/softhca", "top"], capture_output=True, text=True, env=environment(), timeout=60)
    tap.equal(result.returncode, 1)
    assert "libncurses-dev" in result.stderr and "--once" in result.stderr, result.stderr
    tap.equal(subprocess.run([copy + "/softhca", "top", "--once", "--json", "-d", "0.1"], capture_output=True, env=environment(),
                             timeout=60).returncode, 0)


def test_wrong_options_are_refused():
    for arguments in (["top", "--json"], ["top", "--delay", "0"], ["top", "x"], ["stats", "--json", "--prometheus"],
                      ["stats", "--sysfs", "/tmp/x", "--output", "y"]):
        tap.equal(softhca(*arguments).returncode, 2, " ".join(arguments))
    result = softhca("stats", "--prometheus", "--output", "/nonexistent/file")
    tap.equal(result.returncode, 1)
    assert "cannot write /nonexistent/file: No such file" in result.stderr, result.stderr


class Terminal:
    """softhca top in tmux."""

    def __init__(self, columns, rows):
        need("tmux")
        if not os.path.exists(os.path.dirname(SOFTHCA) + "/lib/libsofthca-screen.so"):
            raise tap.Skip("this build has no terminal")
        self.socket = os.path.join(WORK.name, "tmux")
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "top", "-x", str(columns), "-y", str(rows), SOFTHCA, "top", "-d", "0.3")

    def tmux(self, *arguments):
        done = subprocess.run(["tmux", "-S", self.socket, *arguments], capture_output=True, text=True, timeout=60,
                              env=environment(TERM="xterm-256color", LC_ALL="C.UTF-8"))
        return done.stdout

    def pid(self):
        return int(self.tmux("list-panes", "-t", "top", "-F", "#{pane_pid}"))

    def shows(self, pattern):
        """Waits until it does, as long as the test may take."""
        for _ in range(200):
            screen = self.tmux("capture-pane", "-p", "-t", "top")
            if re.search(pattern, screen, re.M):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"no {pattern} in\n{screen}")

    def key(self, *keys):
        self.tmux("send-keys", "-t", "top", *keys)

    def end(self):
        self.tmux("kill-server")


def test_top_shows_processes_and_opens_a_qp():
    with Pair("ib_write_bw", "-n", "2000", "-s", "8") as pair:
        terminal = Terminal(100, 30)
        try:
            terminal.shows(rf"^ +{pair.client.pid} ib_write_bw")
            terminal.key("Tab")
            terminal.shows(r"No QPs|QPN")
            terminal.key("Tab", "/")
            terminal.key("nobody")
            terminal.shows("Nothing matches the filter")
            terminal.key("Escape", "h")
            terminal.shows("Keys and columns")
            terminal.key("x")
            terminal.shows(rf"^ +{pair.client.pid} ib_write_bw")
            terminal.key("q")
        finally:
            terminal.end()


def test_top_that_is_stopped_or_killed_leaves_the_program_as_it_was():
    need("ib_write_bw")
    port = free_port()
    command = [SOFTHCA, "run", "--", "ib_write_bw", "-F", "-p", str(port), "-x", "0", "-D", "4", "-s", "8"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        while not in_proc(port):
            tap.equal(server.poll(), None)
            time.sleep(0.05)
        client = subprocess.Popen([*command, "127.0.0.1"], env=environment(), stdout=log, stderr=log)
        terminal = Terminal(200, 60)
        try:
            terminal.shows(rf"^ +{client.pid} ib_write_bw")
            terminal.key("Tab")
            terminal.shows(r"0x[0-9a-f]{6} +RC")
            terminal.key("Enter")
            terminal.shows("Latency, post to completion")
            top = terminal.pid()
            os.kill(top, signal.SIGSTOP)
            readers = [subprocess.Popen([SOFTHCA, "top", "--once", "--json", "-d", "3600"], env=environment(),
                                        stdout=subprocess.DEVNULL) for _ in range(3)]
            os.kill(top, signal.SIGKILL)
            for reader in readers:
                reader.kill()
                reader.wait()
            tap.equal((client.wait(timeout=60), server.wait(timeout=60)), (0, 0))
        finally:
            terminal.end()
            for process in client, server:
                process.kill()
                process.wait()


def own_network():
    """Starts itself again in a network namespace, where that is allowed."""
    if os.environ.get("SOFTHCA_TEST_NETWORK") == "own":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    wrapper = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-r", "-n"]
    if subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0:
        os.environ["SOFTHCA_TEST_NETWORK"] = "own"
        os.execvp("unshare", [*wrapper, sys.executable, *sys.argv])


if __name__ == "__main__":
    own_network()
    os.makedirs(HOME)
    tap.main(sys.modules[__name__])
