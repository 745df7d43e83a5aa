#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""softhca run, devices and doctor, on the interfaces of a network namespace made here where that is allowed.

usage: test_softhca.py SOFTHCA
"""

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

import tap

SOFTHCA = os.path.abspath(sys.argv[1])
LIBRARY = os.path.join(os.path.dirname(SOFTHCA), "lib")
WORK = tempfile.TemporaryDirectory(prefix="softhca-tool-")
HOME = os.path.join(WORK.name, "home")


def environment(**more):
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("SOFTHCA_", "LD_")) and name != "XDG_RUNTIME_DIR"}
    # A directory in PATH that cannot be read makes "not found" a "permission denied".
    clean.update(HOME=HOME, LC_ALL="C", PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    clean.update(more)
    return clean


def softhca(*arguments, env=None, **kwargs):
    kwargs.setdefault("timeout", 120)
    return subprocess.run([SOFTHCA, *arguments], env=env or environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, **kwargs)


def seen_by_program(*arguments, env=None):
    result = softhca("run", *arguments, "--", "env", "-0", env=env)
    tap.equal(result.returncode, 0, result.stderr)
    return dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)


def devices():
    result = softhca("devices", "--json")
    tap.equal(result.returncode, 0, result.stderr)
    return json.loads(result.stdout)["devices"]


def test_run_sets_the_environment():
    seen = seen_by_program()
    tap.equal(seen["LD_LIBRARY_PATH"], LIBRARY)
    tap.equal(seen["LD_PRELOAD"], LIBRARY + "/libsofthca-shim.so")
    tap.equal(seen["SOFTHCA_LOG"], "warn")
    assert os.path.isdir(seen["SOFTHCA_SYSFS_ROOT"] + "/sys/class/infiniband")


def test_run_puts_itself_in_front_and_only_once():
    seen = seen_by_program(env=environment(LD_LIBRARY_PATH="/some/where"))
    tap.equal(seen["LD_LIBRARY_PATH"], LIBRARY + ":/some/where")
    result = softhca("run", "--", SOFTHCA, "run", "--", "printenv", "LD_LIBRARY_PATH", "LD_PRELOAD")
    tap.equal(result.stdout, f"{LIBRARY}\n{LIBRARY}/libsofthca-shim.so\n")


def test_run_leaves_a_chosen_log_level():
    tap.equal(seen_by_program(env=environment(SOFTHCA_LOG="debug"))["SOFTHCA_LOG"], "debug")
    tap.equal(seen_by_program("--log", "error", env=environment(SOFTHCA_LOG="debug"))["SOFTHCA_LOG"], "error")


def test_run_without_shim_sets_the_library_path_only():
    seen = seen_by_program("--no-shim")
    tap.equal(seen["LD_LIBRARY_PATH"], LIBRARY)
    assert "LD_PRELOAD" not in seen and "SOFTHCA_SYSFS_ROOT" not in seen


def test_run_hands_the_programs_options_on():
    tap.equal(softhca("run", "echo", "--log", "-x", "--").stdout, "--log -x --\n")
    tap.equal(softhca("run", "--", "sh", "-c", 'echo "$0"', "--help").stdout, "--help\n")


def test_run_becomes_the_program():
    process = subprocess.Popen([SOFTHCA, "run", "--", "sh", "-c", "echo $$; exec sleep 100"], env=environment(),
                               stdout=subprocess.PIPE, text=True)
    tap.equal(process.stdout.readline(), f"{process.pid}\n")
    process.send_signal(signal.SIGTERM)
    tap.equal(process.wait(), -signal.SIGTERM)


def test_run_exits_as_the_program_or_as_env_does():
    tap.equal(softhca("run", "--", "sh", "-c", "exit 7").returncode, 7)
    tap.equal(softhca("run", "--", "/nonexistent").returncode, 127)
    tap.equal(softhca("run", "--", "no-such-program-at-all").returncode, 127)
    tap.equal(softhca("run", "--", "/etc/passwd").returncode, 126)
    tap.equal(softhca("run").returncode, 125)
    tap.equal(softhca("run", "--no-such-option").returncode, 125)


def test_run_warns_of_programs_out_of_reach():
    program = os.path.join(WORK.name, "static")
    with open(program + ".c", "w", encoding="ascii") as file:
        file.write("int main(void){return 3;}\n")
    if subprocess.run(["cc", "-static", "-o", program, program + ".c"], capture_output=True).returncode:
        raise tap.Skip("no static libc")
    result = softhca("run", "--", program)
    tap.equal(result.returncode, 3)
    assert "statically linked" in result.stderr, result.stderr


def test_run_works_from_a_path_with_blanks():
    moved = os.path.join(WORK.name, "with blank")
    os.makedirs(moved + "/lib")
    shutil.copy(SOFTHCA, moved)
    for name in os.listdir(LIBRARY):
        shutil.copy(os.path.join(LIBRARY, name), moved + "/lib/")
    result = subprocess.run([moved + "/softhca", "run", "--", "printenv", "LD_LIBRARY_PATH"], env=environment(),
                            capture_output=True, text=True)
    tap.equal(result.stdout, moved + "/lib\n")
    assert "blank or colon" in result.stderr, result.stderr


def test_the_tree_is_made_once_and_repaired():
    first = seen_by_program()["SOFTHCA_SYSFS_ROOT"]
    tap.equal(seen_by_program()["SOFTHCA_SYSFS_ROOT"], first)
    victim = first + "/sys/class/infiniband_verbs/abi_version"
    os.unlink(victim)
    tap.equal(seen_by_program()["SOFTHCA_SYSFS_ROOT"], first)
    assert os.path.exists(victim)
    tap.equal([name for _, _, names in os.walk(first) for name in names if ".new-" in name], [])


def test_the_tree_is_made_by_many_at_once():
    at_home = environment(XDG_RUNTIME_DIR=os.path.join(WORK.name, "runtime"))
    os.makedirs(at_home["XDG_RUNTIME_DIR"], exist_ok=True)
    command = [SOFTHCA, "run", "--", "sh", "-c", "cd -P /sys/class/infiniband && cat */ports/1/state */node_type"]
    processes = [subprocess.Popen(command, env=at_home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for _ in range(8)]
    outputs = {(process.communicate(), process.returncode) for process in processes}
    tap.equal(len(outputs), 1, outputs)


def test_the_tree_is_not_put_where_others_can_write():
    if os.geteuid() == 0:
        raise tap.Skip("root uses /run/softhca; this is tried as an ordinary user")
    runtime = os.path.join(WORK.name, "open-to-all")
    os.makedirs(runtime, exist_ok=True)
    os.chmod(runtime, 0o777)
    root = seen_by_program(env=environment(XDG_RUNTIME_DIR=runtime))["SOFTHCA_SYSFS_ROOT"]
    assert not root.startswith(runtime), root
    os.chmod(runtime, 0o700)
    root = seen_by_program(env=environment(XDG_RUNTIME_DIR=runtime))["SOFTHCA_SYSFS_ROOT"]
    assert root.startswith(os.path.realpath(runtime)), root


def test_files_agree_with_the_verbs():
    for device in devices():
        base = f"/sys/class/infiniband/{device['name']}"
        result = softhca("run", "--", "sh", "-c", f"""cat {base}/ports/1/state {base}/ports/1/link_layer {base}/node_guid
            ls {base}/device/net; ls {base}/ports/1/gids; ls {base}/ports/1/gid_attrs/types
            cat {base}/ports/1/gid_attrs/types/* {base}/ports/1/gid_attrs/ndevs/*""")
        tap.equal(result.returncode, 0, result.stderr)
        indices = sorted(str(gid["index"]) for gid in device["gids"])
        lines = result.stdout.splitlines()
        assert lines[0].endswith(": " + device["state"]), lines[0]
        tap.equal(lines[1:], ["Ethernet", device["node_guid"], device["netdev"]] + indices * 2 +
                  ["RoCE v2"] * len(indices) + [device["netdev"]] * len(indices))


def test_a_device_per_interface_with_an_address_loopback_last():
    listing = devices()
    links = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True).stdout)
    up = {link["ifname"] for link in links if "UP" in link["flags"] and link["addr_info"]}
    tap.equal({device["netdev"] for device in listing}, up)
    tap.equal(listing[-1]["netdev"], "lo")
    tap.equal([device["name"] for device in listing], [f"softhca{index}" for index in range(len(listing))])
    tap.equal(len({device["node_guid"] for device in listing}), len(listing))


def ucx_transports(*options):
    if not shutil.which("ucx_info"):
        raise tap.Skip("ucx_info is not installed")
    result = softhca("run", *options, "--", "ucx_info", "-d")
    tap.equal(result.returncode, 0, result.stderr)
    found, transport = set(), ""
    for line in result.stdout.splitlines():
        words = line.lstrip("# ").split()
        if words[:1] == ["Transport:"]:
            transport = words[1]
        elif words[:1] == ["Device:"]:
            found.add((transport, words[1]))
    return found


def resources(*arguments):
    result = softhca("run", "--", "rdma", "-j", "resource", "show", *arguments)
    tap.equal((result.returncode, result.stderr), (0, ""))
    return json.loads(result.stdout)


# A dump of the PDs of the first adapter, read slowly by a socket whose queue has room for a few of them.
SMALL_QUEUE = """
import ctypes, os, select, socket, struct
verbs = ctypes.CDLL("libibverbs.so.1")
for function in verbs.ibv_get_device_list, verbs.ibv_open_device, verbs.ibv_alloc_pd:
    function.restype = ctypes.c_void_p
devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))
assert all([verbs.ibv_alloc_pd(context) for _ in range(1000)])
index = verbs.ibv_get_device_index(ctypes.c_void_p(devices[0]))

s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)  # NETLINK_RDMA
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
request = struct.pack("=HHI", 8, 1, index)  # RDMA_NLDEV_ATTR_DEV_INDEX
# RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_PD_GET; NLM_F_REQUEST, NLM_F_DUMP
s.send(struct.pack("=IHHII", 16 + len(request), 5 << 10 | 14, 0x301, 7, 0) + request)
count, flags, kind = 0, 0, 0
while kind != 3:  # NLMSG_DONE
    assert select.select([s], [], [], 60)[0], f"nothing comes after {count} PDs"
    data = s.recv(65536)
    while data:
        length, kind, flags, sequence, _ = struct.unpack("=IHHII", data[:16])
        count += kind == 5 << 10 | 14 and struct.pack("=HHI", 8, 28, os.getpid()) in data[:length]  # RDMA_NLDEV_ATTR_RES_PID
        assert sequence == 7
        data = data[length + 3 & ~3:]
print(count, flags & 0x10)  # NLM_F_DUMP_INTR
"""


def test_a_dump_of_netlink_may_be_longer_than_the_queue():
    result = softhca("run", "--", sys.executable, "-c", SMALL_QUEUE)
    tap.equal((result.returncode, result.stdout), (0, "1000 0\n"), result.stderr)


def test_rdma_shows_the_objects_of_processes():
    if not shutil.which("rdma", path=environment()["PATH"]):
        raise tap.Skip("no rdma (iproute2)")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    name = devices()[-1]["name"]
    # It waits for a client when all objects are made.
    server = subprocess.Popen([SOFTHCA, "run", "--", "stdbuf", "-oL", "ibv_rc_pingpong", "-d", name, "-g", "0", "-p", str(port)],
                              env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        own = {kind: [entry for entry in resources(kind) if entry.get("pid") == server.pid]
               for kind in ("qp", "cq", "mr", "pd", "ctx", "srq")}
        tap.equal({kind: len(entries) for kind, entries in own.items()},
                  {"qp": 1, "cq": 1, "mr": 1, "pd": 1, "ctx": 1, "srq": 0})
        qp, cq, mr, pd = (own[kind][0] for kind in ("qp", "cq", "mr", "pd"))
        tap.equal((qp["ifname"], qp["port"], qp["type"], qp["state"], qp["comm"]), (name, 1, "RC", "INIT", "ibv_rc_pingpong"))
        tap.equal((mr["mrlen"], pd["users"], cq["users"]), (4096, 2, 2))
        assert cq["cqe"] >= 501 and mr["pdn"] == qp["pdn"] == pd["pdn"], own
        tap.equal(resources("qp", "lqpn", str(qp["lqpn"]))[0]["pid"], server.pid)
        summary = {entry["ifname"]: entry for entry in resources()}
        assert set(summary) == {device["name"] for device in devices()}, summary
        assert all(summary[name][kind] >= 1 for kind in ("qp", "cq", "mr", "pd", "ctx")), summary
    finally:
        server.kill()
        server.communicate()
    assert all(entry.get("pid") != server.pid for entry in resources("qp"))


def test_ucx_finds_the_devices():
    found = ucx_transports()
    for device in devices():
        for transport in "rc_verbs", "ud_verbs":
            assert (transport, device["name"] + ":1") in found, (transport, device["name"], sorted(found))


def test_ucx_finds_them_through_the_shim_only():
    if os.path.exists("/dev/infiniband"):
        raise tap.Skip("this machine has a /dev/infiniband of its own")
    assert "rc_verbs" not in {transport for transport, _ in ucx_transports("--no-shim")}


LOADS = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1])
print("\\n".join(sorted({line.split()[-1] for line in open("/proc/self/maps") if sys.argv[1] in line})))
"""


def loaded(command, name):
    """The files that a program maps which opens a library by that name."""
    done = subprocess.run([command, "run", "--no-shim", "--", sys.executable, "-c", LOADS, name], env=environment(),
                          capture_output=True, text=True, timeout=120)
    tap.equal(done.returncode, 0, done.stderr)
    return done.stdout.split()


def test_libraries_are_found_without_a_version():
    for name in "libibverbs.so", "librdmacm.so":
        tap.equal(loaded(SOFTHCA, name), [os.path.realpath(f"{LIBRARY}/{name}.1")])


def test_libraries_are_found_without_a_version_where_they_are_installed():
    build = os.path.dirname(SOFTHCA)
    if not os.access(os.path.join(build, "meson-logs"), os.W_OK):
        raise tap.Skip("meson install writes into the build directory")
    there = os.path.join(WORK.name, "there")
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", there], check=True, capture_output=True)
    command = subprocess.check_output(["find", there, "-name", "softhca", "-type", "f"], text=True).strip()
    for name in "libibverbs.so", "librdmacm.so":
        found = loaded(command, name)
        assert len(found) == 1 and found[0].startswith(there) and found[0].endswith(f"/softhca/{name}.1"), found


def test_run_can_name_the_devices():
    result = softhca("run", "--devices", "mlx5_0", "--", "ls", "/sys/class/infiniband")
    assert "mlx5_0" in result.stdout.split(), result


def test_devices_in_words():
    result = softhca("devices")
    tap.equal(result.returncode, 0, result.stderr)
    for device in devices():
        assert re.search(rf"^{device['name']} .* {device['state']} .*GUID {device['node_guid']}$", result.stdout, re.M)


def test_doctor_tells_each_thing_with_its_state():
    result = softhca("doctor")
    tap.equal(result.stderr, "")
    tap.equal(result.returncode, 0, result.stdout)
    for thing in ("library", "abstract unix sockets", "sealed memfd", "pidfd", "process_vm_readv", "Yama", "membarrier",
                  "userfaultfd", "seccomp", "PID namespace", "open files", "locked memory", "UDP port 4791", "receive buffer",
                  "real RDMA devices", "this environment"):
        assert re.search(rf"^(ok|limited|note) +{re.escape(thing)} +\S", result.stdout, re.M), thing


def udp_port(*wrapper):
    """What doctor says of the port in a network namespace of its own."""
    done = subprocess.run(["unshare", "-r", "-n", *wrapper, SOFTHCA, "doctor"], env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    found = re.search(r"^(\w+) +UDP port 4791 +(.*)", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return found[1], found[2]


def test_doctor_tells_who_has_the_port():
    if subprocess.run(["unshare", "-r", "-n", "true"], capture_output=True).returncode:
        raise tap.Skip("network namespaces are not allowed here")
    tap.equal(udp_port(), ("ok", "free: the first process that communicates with another host binds it"))
    hold = ("import socket, subprocess, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 4791)); "
            "sys.exit(subprocess.run(sys.argv[1:]).returncode)")
    state, text = udp_port(sys.executable, "-c", hold)
    tap.equal(state, "limited")
    assert re.match(r"in use by (another program of uid|the kernel's Soft-RoCE)", text), text


def test_doctor_sees_the_machine_through_the_shim():
    # Other tests may open or close the UDP port of this namespace meanwhile: a look counts if nothing changed around it.
    for _ in range(20):
        before, inside, after = softhca("doctor"), softhca("run", "--", SOFTHCA, "doctor"), softhca("doctor")
        if before.stdout == after.stdout:
            break
    tap.equal(inside.stdout, after.stdout)


def test_usage_errors():
    tap.equal(softhca().returncode, 2)
    tap.equal(softhca("nonsense").returncode, 2)
    tap.equal(softhca("--version").stdout.split()[0], "softhca")
    for command in "run", "devices", "doctor":
        assert "Usage: softhca " + command in softhca(command, "--help").stdout


if __name__ == "__main__":
    os.makedirs(HOME)
    tap.main(sys.modules[__name__])
