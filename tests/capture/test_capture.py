#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca capture: programs over each path, and what a capture of them says; who is refused; what remains when the tool ends.

usage: test_capture.py SOFTHCA [TEST...]
In a network namespace made here, so that only this test's processes are there.
"""

import collections
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tools")]
import pcapng  # noqa: E402
import tap  # noqa: E402
from started import alone_in_network, environment  # noqa: E402

SOFTHCA = os.path.abspath(sys.argv[1])
WORK = tempfile.TemporaryDirectory(prefix="softhca-capture-")
FILE = os.path.join(WORK.name, "x.pcapng")
PAIR = os.path.join(HERE, "pair.py")
PATHS = {"mapped": {"SOFTHCA_LOCAL": "mapped"}, "ring": {"SOFTHCA_LOCAL": "ring"}, "copy": {"SOFTHCA_LOCAL": "cma"},
         "wire": {"SOFTHCA_PATH": "wire"}}
PORT, MTU, PATIENCE = 18650, 1024, 60
Capture = collections.namedtuple("Capture", "packets interfaces statistics told")


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise tap.Skip(f"{program} is not installed")


def run(*command, **env):
    return subprocess.run(command, env=environment(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE * 2, check=False)


def is_sound(path):
    """Wireshark finds nothing malformed, and ICRCs are right."""
    packets, interfaces, statistics = pcapng.read(path)
    for packet in packets:
        if packet.is_whole and packet.is_roce:
            assert packet.icrc_is_right() != ("wrong ICRC" in packet.comment), packet
    times = [packet.time for packet in packets]
    tap.equal(times, sorted(times))
    tap.equal(sum(received for received, _ in statistics.values()), len(packets))
    tap.equal(sum(dropped for _, dropped in statistics.values()), 0)
    if shutil.which("tshark"):
        tap.equal(tshark(path, "-Y", "_ws.malformed || _ws.expert.severity >= 0x600000"), "")
    return packets, interfaces, statistics


def tshark(path, *arguments):
    result = run("tshark", "-r", path, *arguments)
    tap.equal(result.returncode, 0, result.stderr)
    return result.stdout


def capture(*command, options=(), **env):
    """Of a program that the tool starts."""
    result = run(SOFTHCA, "capture", "-w", FILE, *options, "--", *command, **env)
    tap.equal(result.returncode, 0, result.stdout + result.stderr)
    return Capture(*is_sound(FILE), result.stderr)


def perftest(program, *arguments, options=(), **env):
    need(program)
    common = [program, "-p", str(PORT), "-F", *arguments]
    return capture(PAIR, str(PORT), *common, "--", *common, "127.0.0.1", options=options, **env)


def names(packets):
    """How many of each kind, without what is there again: over a network a request may be sent twice (probes, retries)."""
    kinds, seen = collections.Counter(), set()
    for packet in packets:
        key = (packet.dest_qpn, packet.psn, packet.name)
        if packet.service not in ("RC", "XRC") or packet.is_answer or key not in seen:
            kinds[packet.name] += 1
        seen.add(key)
    return kinds


def follow(packets, mtu=MTU):
    """Each direction of each connection counts its PSNs without a gap, but for those that are sent again; and acknowledgements
    name a PSN that was sent."""
    following, seen, connections = {}, collections.defaultdict(set), {}
    again = 0
    for packet in packets:
        if packet.service in ("UD", "CNP") or packet.is_answer:
            continue
        span = 1
        if packet.operation == 12:
            span = max(1, -(-struct.unpack(">I", packet.extensions[-4:])[0] // mtu))
        expected = following.get(packet.dest_qpn, packet.psn)
        if packet.psn in seen[packet.dest_qpn]:
            again += 1
            continue
        tap.equal(packet.psn, expected, packet)
        seen[packet.dest_qpn].update((packet.psn + i) & 0xffffff for i in range(span))
        following[packet.dest_qpn] = (packet.psn + span) & 0xffffff
        connections[packet.dest_qpn] = packet
    sent = set().union(*seen.values()) if seen else set()
    for packet in packets:
        if packet.is_answer and packet.service != "UD":
            assert packet.psn in sent, packet
    return again


# --- messages over each path ------------------------------------------------------------------------------------------------

def on_each_path(test):
    for path, env in PATHS.items():
        try:
            test(**env)
        except AssertionError as error:
            raise AssertionError(f"{path}: {error}") from error


def test_a_message_of_WRITE_is_cut_into_packets_of_the_path_MTU():
    def one(**env):
        got = perftest("ib_write_bw", "-n", "50", "-s", "10000", "-m", str(MTU), **env)
        found = names(got.packets)
        tap.equal([found[name] for name in ("WRITE first", "WRITE middle", "WRITE last")], [50, 400, 50])
        tap.equal({len(p.payload) for p in got.packets if p.name in ("WRITE first", "WRITE middle")}, {MTU})
        tap.equal({len(p.payload) for p in got.packets if p.name == "WRITE last"}, {10000 - 9 * MTU})
        assert found["acknowledge"] > 0
        follow(got.packets)
        assert "all its requests are sent as packets" in got.told, got.told
    on_each_path(one)


def test_a_message_of_SEND_is_cut_likewise():
    def one(**env):
        got = perftest("ib_send_bw", "-n", "20", "-s", "20000", "-m", str(MTU), **env)
        found = names(got.packets)
        tap.equal([found[name] for name in ("SEND first", "SEND middle", "SEND last")], [20, 360, 20])
        follow(got.packets)
    on_each_path(one)


def test_READ_and_its_responses_share_PSNs():
    def one(**env):
        got = perftest("ib_read_bw", "-n", "10", "-s", "20000", "-m", str(MTU), **env)
        requests = [p for p in got.packets if p.name == "READ request"]
        tap.equal(sum(len(p.payload) for p in got.packets if p.name.startswith("READ response")), 200000)
        tap.equal(sum(struct.unpack(">I", p.extensions[-4:])[0] for p in requests), 200000)
        firsts = [p.psn for p in got.packets if p.name == "READ response first"]
        tap.equal(firsts, [p.psn for p in requests])
        follow(got.packets)
    on_each_path(one)


def test_atomics_and_their_answers():
    def one(**env):
        got = perftest("ib_atomic_lat", "-n", "20", **env)
        tap.equal((names(got.packets)["fetch and add"], names(got.packets)["atomic acknowledge"]), (20, 20))
        follow(got.packets, 4096)
    on_each_path(one)


def test_UC_has_no_acknowledgements():
    got = perftest("ib_send_lat", "-c", "UC", "-n", "20", "-s", "3000", "-m", str(MTU))
    found = names(got.packets)
    tap.equal([found[name] for name in ("SEND first", "SEND middle", "SEND last", "acknowledge")], [40, 40, 40, 0])
    follow(got.packets)


def test_a_datagram_is_one_packet():
    def one(**env):
        got = perftest("ib_send_lat", "-c", "UD", "-n", "20", "-s", "1000", **env)
        tap.equal((names(got.packets), {len(p.payload) for p in got.packets}), ({"SEND only": 40}, {1000}))
        tap.equal(len({p.src_qpn() for p in got.packets}), 2)
    on_each_path(one)


def test_an_XRC_pair():
    got = perftest("ib_send_lat", "-c", "XRC", "-n", "20", "-s", "3000", "-m", str(MTU))
    found = names(got.packets)
    tap.equal({p.service for p in got.packets}, {"XRC"})
    tap.equal([found[name] for name in ("SEND first", "SEND middle", "SEND last")], [40, 40, 40])
    follow(got.packets)


def test_rping_with_the_messages_of_its_connection():
    need("rping")
    got = capture(PAIR, "softhca/2/", "rping", "-s", "-a", "127.0.0.1", "-C", "5", "--", "rping", "-c", "-a", "127.0.0.1", "-C", "5")
    mads = [p for p in got.packets if p.service == "UD"]
    tap.equal({p.dest_qpn for p in mads}, {1})
    # Attributes of communication management (IBA 12.6): REQ, REP, RTU, DREQ, DREP.
    tap.equal(sorted(struct.unpack_from(">H", p.payload, 16)[0] for p in mads), [0x10, 0x13, 0x14, 0x15, 0x16])
    found = names([p for p in got.packets if p.service == "RC"])
    tap.equal([found[name] for name in ("SEND only", "READ request", "READ response only", "WRITE only")], [20, 5, 5, 5])
    follow(got.packets, 4096)


def test_a_datagram_to_a_group_is_recorded_once():
    need("mckey")
    got = capture(PAIR, "softhca/2/qpn", "mckey", "-m", "239.1.1.1", "-b", "127.0.0.1", "-C", "5", "--",
                  "mckey", "-m", "239.1.1.1", "-b", "127.0.0.1", "-s", "-C", "5")
    sent = [p for p in got.packets if p.dest_qpn == 0xffffff]
    tap.equal((len(sent), {p.destination for p in sent}, {p.frame[:6].hex() for p in sent}),
              (5, {bytes([239, 1, 1, 1])}, {"01005e010101"}))


def test_what_faults_do_is_in_the_comment():
    def one(**env):
        got = perftest("ib_write_bw", "-n", "50", "-s", "3000", "-m", str(MTU), "-t", "8",
                       SOFTHCA_FAULT="packet=drop of=requests percent=10 seed=7", **env)
        lost = [p for p in got.packets if "did not leave" in p.comment]
        assert lost, names(got.packets)
        # Each that was lost is there again: the retry.
        for packet in lost:
            assert any(p.psn == packet.psn and p.dest_qpn == packet.dest_qpn and p.time > packet.time
                       and "did not leave" not in p.comment for p in got.packets), packet
        assert follow(got.packets) >= len(lost)
        got = perftest("ib_write_bw", "-n", "50", "-s", "3000", "-m", str(MTU), SOFTHCA_FAULT="packet=corrupt of=requests n=5", **env)
        tap.equal(len([p for p in got.packets if "wrong ICRC" in p.comment]), 1)
    on_each_path(one)


def test_faults_strike_packets_of_the_path_MTU():
    def one(**env):
        got = perftest("ib_read_bw", "-n", "20", "-s", "20000", "-m", str(MTU), "-t", "4",
                       SOFTHCA_FAULT="packet=drop of=responses percent=4 seed=3", **env)
        lost = [p for p in got.packets if "did not leave" in p.comment and p.name.startswith("READ response")]
        assert lost, names(got.packets)
        tap.equal(len({p.time for p in lost}), len(lost))  # each by itself: parts of one packet have one time
        for packet in lost:
            # Before, if the requester was impatient and asked again for what was under way.
            assert any(p.psn == packet.psn and p.name.startswith("READ response") and "did not leave" not in p.comment
                       for p in got.packets), packet
    on_each_path(one)


def test_the_same_seed_loses_the_same_packets_whatever_the_first_PSN():
    def lost_at_first(seed, **env):
        got = perftest("ib_write_bw", "-n", "100", "-s", "64", SOFTHCA_FAULT=f"packet=drop of=requests percent=20 seed={seed}", **env)
        requests, first = [p for p in got.packets if p.name == "WRITE only"], {}
        for packet in requests:
            first.setdefault(packet.psn - requests[0].psn & 0xffffff, "did not leave" in packet.comment)
        return [at for at in range(100) if first[at]]

    def one(**env):
        runs = [lost_at_first(seed, **env) for seed in (3, 3, 4)]
        tap.equal(runs[0], runs[1])
        assert runs[0] and runs[0] != runs[2], runs
    on_each_path(one)


def test_a_congestion_notification_is_a_packet_as_annex_A17_has_it():
    def one(**env):
        got = perftest("ib_write_bw", "-n", "200", "-s", "3000", "-m", str(MTU), SOFTHCA_FAULT="packet=mark of=requests every=5", **env)
        marked = [p for p in got.packets if "ECN CE" in p.comment]
        cnps = [p for p in got.packets if p.service == "CNP"]
        assert marked and cnps and len(cnps) <= len(marked), names(got.packets)
        for packet in cnps:
            tap.equal((packet.bth[0], packet.bth[2:4], packet.bth[4], packet.psn, packet.payload), (0x81, b"\xff\xff", 0x40, 0, bytes(16)))
            source = next(p for p in marked if (p.source, p.destination) == (packet.destination, packet.source))
            assert source.time < packet.time and packet.dest_qpn != source.dest_qpn, (source, packet)
        if shutil.which("tshark"):
            count = tshark(FILE, "-q", "-z", "io,stat,0,infiniband.bth.opcode==0x81").splitlines()[-2].split("|")[2]
            tap.equal(int(count), len(cnps))
        follow(got.packets)
    on_each_path(one)


RAW = {"server": ("02:00:00:00:00:01", "02:00:00:00:00:02"), "client": ("02:00:00:00:00:02", "02:00:00:00:00:01")}


def test_a_frame_of_a_RAW_PACKET_QP_is_recorded_once_as_it_is():
    need("raw_ethernet_lat")
    # Of 64 bytes with the FCS, which no QP transmits.
    sides = [["raw_ethernet_lat", f"--{side}", "-B", here, "-E", there, "-F", "-s", "64", "-n", "30"]
             for side, (here, there) in RAW.items()]
    for uncaptured in [], ["env", "-u", "SOFTHCA_CAPTURE"]:  # what arrives from elsewhere is recorded by its receiver
        got = capture(PAIR, "#bytes", *sides[0], "--", *uncaptured, *sides[1])
        tap.equal(({p.service for p in got.packets}, len(got.interfaces)), ({"frame"}, 1 if uncaptured else 2))
        for here, there in RAW.values():
            sent = [p for p in got.packets if p.frame[:12] == bytes.fromhex((there + here).replace(":", ""))]
            tap.equal((len(sent), {p.length for p in sent}, {p.is_whole for p in sent}), (30, {60}, {True}))


# --- options ----------------------------------------------------------------------------------------------------------------

def test_snap_keeps_the_beginning_of_each_packet():
    got = perftest("ib_write_bw", "-n", "20", "-s", "10000", "-m", str(MTU), options=["--snap", "128"], **PATHS["ring"])
    tap.equal(max(len(p.frame) for p in got.packets), 128)
    tap.equal(names(got.packets)["WRITE middle"], 160)
    assert {p.length for p in got.packets if p.name == "WRITE middle"} == {14 + 20 + 8 + 12 + MTU + 4}
    follow(got.packets)


def test_qp_selects():
    got = perftest("ib_send_lat", "-n", "10", "-s", "100", options=["--qp", "1"])
    tap.equal(len(got.packets), 0)


def test_a_ring_of_files_keeps_the_last_ones():
    perftest_files = perftest("ib_write_bw", "-n", "200", "-s", "10000", "-m", str(MTU)).packets
    for name in os.listdir(WORK.name):
        os.unlink(os.path.join(WORK.name, name))
    need("ib_write_bw")
    common = ["ib_write_bw", "-p", str(PORT), "-F", "-n", "200", "-s", "10000", "-m", str(MTU)]
    result = run(SOFTHCA, "capture", "-w", FILE, "--file-size", "300k", "--ring-files", "2", "--", PAIR, str(PORT), *common,
                 "--", *common, "127.0.0.1")
    tap.equal(result.returncode, 0, result.stderr)
    files = sorted(os.listdir(WORK.name))
    tap.equal(len(files), 2, files)
    assert all(name.startswith("x_0000") for name in files), files
    total = 0
    for name in files:
        packets = pcapng.read(os.path.join(WORK.name, name))[0]
        total += len(packets)
    assert 0 < total < len(perftest_files)


def test_a_file_that_cannot_be_made_ends_the_capture_with_the_reason():
    for name in os.listdir(WORK.name):
        os.unlink(os.path.join(WORK.name, name))
    second = os.path.join(WORK.name, "x_00002.pcapng")
    os.mkdir(second)
    try:
        need("ib_write_bw")
        common = ["ib_write_bw", "-p", str(PORT), "-F", "-n", "200", "-s", "10000", "-m", str(MTU)]
        result = run(SOFTHCA, "capture", "-w", FILE, "--file-size", "300k", "--", PAIR, str(PORT), *common, "--", *common, "127.0.0.1")
    finally:
        os.rmdir(second)
    tap.equal(result.returncode, 125, result.stderr)
    assert f"softhca: cannot write {second}: Is a directory\n" in result.stderr, result.stderr


def test_standard_output_is_for_tshark():
    need("tshark", "ib_send_lat")
    common = ["ib_send_lat", "-p", str(PORT), "-F", "-n", "10", "-s", "64"]
    command = [SOFTHCA, "capture", "-w", "-", "--", PAIR, str(PORT), *common, "--", *common, "127.0.0.1"]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as tool:
        shown = subprocess.run(["tshark", "-r", "-", "-T", "fields", "-e", "infiniband.bth.opcode"], env=environment(),
                               stdin=tool.stdout, capture_output=True, text=True, timeout=PATIENCE, check=False)
    tap.equal(shown.stdout.split().count("4"), 20, shown.stderr)


def test_wireshark_counts_what_the_counters_say():
    need("tshark", "ib_send_lat")
    with Running("ib_send_lat", "-D", str(PATIENCE), "-s", "2000", "-m", str(MTU), **PATHS["ring"]) as pair:
        least = most = counters(pair.client.pid)
        with Attached(*pair.pids, options=["--snap", "128", "--buffer", "256M"]) as tool:
            first = counters(pair.client.pid)
            tool.until_size(1 << 20)
            least = counters(pair.client.pid) - first
        most = counters(pair.client.pid) - most
        packets, _, _ = is_sound(FILE)
        qpn = qpn_of(pair.server.pid)
    # Each message has one last packet. Those that were begun while the tool attached or ended are captured or not.
    counted = int(tshark(FILE, "-q", "-z", f"io,stat,0,infiniband.bth.opcode==2 && infiniband.bth.destqp==0x{qpn:06x}")
                  .splitlines()[-2].split("|")[2])
    tap.equal(counted, len([p for p in packets if p.name == "SEND last" and p.dest_qpn == qpn]))
    assert least <= counted <= most, (least, counted, most)


# --- processes that run -----------------------------------------------------------------------------------------------------

class Running:
    """Two ends of a perftest program, which run until they are ended."""

    def __init__(self, program, *arguments, **env):
        need(program)
        self.command = [SOFTHCA, "run", "--no-shim", "--", program, "-p", str(PORT), "-F", *arguments]
        self.env = environment(**env)

    def start(self, *more):
        return subprocess.Popen([*self.command, *more], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def __enter__(self):
        self.server = self.start()
        while not listens(PORT):
            assert self.server.poll() is None, self.server.stdout.read()
            time.sleep(0.01)
        self.client = self.start("127.0.0.1")
        self.pids = (self.server.pid, self.client.pid)
        deadline = time.monotonic() + PATIENCE
        while counters(self.client.pid) == 0:
            assert self.client.poll() is None and time.monotonic() < deadline, "the client does not begin"
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        for side in (self.client, self.server):
            side.kill()
            side.communicate()


def listens(port):
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(f":{port:04X} " in line and " 0A " in line for line in table)


class Attached:
    def __init__(self, *pids, options=()):
        words = [word for pid in pids for word in ("-p", str(pid))]
        self.tool = subprocess.Popen([SOFTHCA, "capture", "-w", FILE, *options, *words], env=environment(),
                                     stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.pid = self.tool.pid
        self.told = ""
        for _ in pids:
            line = self.tool.stderr.readline()
            assert line.startswith("softhca: capturing "), line
            self.told += line

    def __enter__(self):
        return self

    def until_size(self, size):
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(FILE) or os.path.getsize(FILE) < size:
            assert self.tool.poll() is None, self.tool.stderr.read()
            assert time.monotonic() < deadline, "the file does not grow"
            time.sleep(0.01)

    def __exit__(self, *_):
        if self.tool.poll() is None:
            self.tool.send_signal(signal.SIGINT)
        self.told += self.tool.communicate(timeout=PATIENCE)[1]


def process_of(pid):
    result = run(SOFTHCA, "stats", "--json")
    found = [p for p in json.loads(result.stdout or '{"processes":[]}')["processes"] if p["pid"] == pid]
    return found[0] if found else None


def counters(pid):
    """Messages that the process has begun."""
    process = process_of(pid)
    return process["messages_out"] if process else 0


def qpn_of(pid):
    return process_of(pid)["qps"][0]["qpn"]


def executed_by_requester(pid):
    text = run(SOFTHCA, "stats", "--prometheus").stdout
    total = 0
    for line in text.splitlines():
        if line.startswith("softhca_requests_total") and f'pid="{pid}"' in line and 'executed_by="requester"' in line:
            total += int(float(line.split()[-1]))
    return total


def grows(value, what):
    first, deadline = value(), time.monotonic() + PATIENCE
    while value() <= first:
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def direct_pair():
    return Running("ib_write_bw", "-n", "2000", "-s", "64", "--run_infinitely", **PATHS["mapped"])


def test_QPs_leave_direct_execution_while_they_are_captured_and_return():
    with direct_pair() as pair:
        client = pair.client.pid
        grows(lambda: executed_by_requester(client), "no direct execution at first")
        with Attached(*pair.pids) as tool:
            tool.until_size(100000)
            before = executed_by_requester(client)
            grows(lambda: counters(client), "the program stands still")
            tap.equal(executed_by_requester(client), before)
        tap.equal(tool.tool.returncode, 0, tool.told)
        assert "all its requests are sent as packets" in tool.told, tool.told
        is_sound_but_for_loss(FILE)
        grows(lambda: executed_by_requester(client), "no direct execution afterwards")


def shown_qp(pid):
    """What softhca ps says of the process's QP."""
    result = run(SOFTHCA, "ps", "--json", str(pid))
    tap.equal(result.returncode, 0, result.stderr)
    return [entry for process in json.loads(result.stdout)["processes"] for entry in process["objects"] if entry["kind"] == "QP"][0]


def test_ps_says_that_a_capture_is_why_a_QP_goes_by_packets():
    with direct_pair() as pair:
        client = pair.client.pid
        grows(lambda: executed_by_requester(client), "no direct execution at first")
        assert "capture" not in shown_qp(client).get("not_mapped_because", ""), shown_qp(client)
        with Attached(*pair.pids) as tool:
            tool.until_size(100000)
            qp = shown_qp(client)  # the server has sent no request, so it has no path
            assert qp["path"] == "ring" and "capture" in qp["not_mapped_because"], qp
            text = run(SOFTHCA, "ps", str(client)).stdout
            assert qp["not_mapped_because"] in text, text
        grows(lambda: executed_by_requester(client), "no direct execution afterwards")
        assert "capture" not in shown_qp(client).get("not_mapped_because", ""), shown_qp(client)


def is_sound_but_for_loss(path):
    packets, _, _ = pcapng.read(path)
    assert all(p.icrc_is_right() for p in packets)
    return packets


def test_one_end_alone_has_both_directions():
    with direct_pair() as pair:
        with Attached(pair.server.pid) as tool:
            tool.until_size(100000)
        packets = is_sound_but_for_loss(FILE)
        assert names(packets)["WRITE only"] and names(packets)["acknowledge"], names(packets)


def test_the_death_of_the_tool_changes_nothing():
    with direct_pair() as pair:
        client = pair.client.pid
        tool = Attached(*pair.pids)
        tool.until_size(100000)
        tool.tool.kill()
        tool.tool.communicate()
        grows(lambda: counters(client), "the program stands still")
        grows(lambda: executed_by_requester(client), "no direct execution afterwards")
        assert pair.client.poll() is None and pair.server.poll() is None


def test_a_tool_that_is_stopped_is_not_waited_for():
    with direct_pair() as pair:
        client = pair.client.pid
        with Attached(*pair.pids, options=["--buffer", "64k"]) as tool:
            tool.until_size(100000)
            os.kill(tool.pid, signal.SIGSTOP)
            grows(lambda: counters(client), "the program waits for the tool")
            os.kill(tool.pid, signal.SIGCONT)
        assert "dropped" in tool.told and " 0 dropped" not in tool.told, tool.told
        packets, _, statistics = pcapng.read(FILE)
        assert sum(dropped for _, dropped in statistics.values()) > 0
        assert any("missing" in p.comment for p in packets)


def refused(pid, why, *options):
    result = run(SOFTHCA, "capture", "-w", FILE, "-p", str(pid), *options)
    tap.equal(result.returncode, 125, result.stderr)
    assert why in result.stderr, result.stderr


def test_who_cannot_be_captured_is_refused_with_the_reason():
    refused(1 << 22, "there is no such process")
    refused(os.getpid(), "does not use SoftHCA")
    with direct_pair() as pair:
        os.kill(pair.server.pid, signal.SIGSTOP)
        refused(pair.server.pid, "it is stopped")
        os.kill(pair.server.pid, signal.SIGCONT)
        with Attached(pair.server.pid) as tool:
            tool.until_size(100000)
            refused(pair.server.pid, "the process is being captured already")
    with subprocess.Popen([SOFTHCA, "run", "--no-shim", "--", "ibv_asyncwatch"], env=environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as idle:
        try:
            idle.stdout.readline()
            refused(idle.pid, "it has no QP")
        finally:
            idle.kill()


def test_options_that_make_no_sense_are_refused():
    for words, why in ((["-p", "1"], "-w FILE is missing"), (["-w", FILE], "give either -p PID or PROGRAM"),
                       (["-w", FILE, "-p", "x"], "not a number"), (["-w", FILE, "-p", "1", "--ring-files", "2"], "--file-size"),
                       (["-w", "-", "-p", "1", "--file-size", "1M"], "cannot be combined with -w -"), (["-w", FILE, "-p", "1", "--snap", "1"], "not a number")):
        result = run(SOFTHCA, "capture", *words)
        tap.equal(result.returncode, 125, words)
        assert why in result.stderr, (words, result.stderr)


if __name__ == "__main__":
    alone_in_network()
    module = sys.modules[__name__]
    for name in [name for name in vars(module) if name.startswith("test_") and len(sys.argv) > 2 and name not in sys.argv[2:]]:
        delattr(module, name)
    tap.main(module)
