#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The path shim by itself, on a tree made here: every name that it interposes, the tools that people use, and rdma(8).

usage: test_shim.py SHIM
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import tap

SHIM = os.path.abspath(sys.argv[1])
WORK = tempfile.TemporaryDirectory(prefix="softhca-shim-")
ROOT = os.path.realpath(WORK.name)
DEVICE = "/sys/devices/virtual/softhca/test0"
IBDEV = DEVICE + "/infiniband/test0"
CLASS = "/sys/class/infiniband"


def make_tree():
    os.chmod(ROOT, 0o755)
    for name in (IBDEV + "/ports/1/gid_attrs/types", IBDEV + "/ports/1/gid_attrs/ndevs", DEVICE + "/net", CLASS,
                 "/sys/class/infiniband_verbs/uverbs7", "/dev/infiniband"):
        os.makedirs(ROOT + name, exist_ok=True)
    for name, text in ((IBDEV + "/node_type", "1: CA\n"), (IBDEV + "/ports/1/gid_attrs/types/0", "RoCE v2\n"),
                       (DEVICE + "/vendor", "0x1234\n"), ("/sys/class/infiniband_verbs/uverbs7/ibdev", "test0\n"),
                       (IBDEV + "/fw_ver", "1.2.3\n"), (IBDEV + "/node_guid", "0011:2233:4455:6677\n"),
                       (IBDEV + "/sys_image_guid", "8899:aabb:ccdd:eeff\n"), (IBDEV + "/ports/1/state", "4: ACTIVE\n"),
                       (IBDEV + "/ports/1/phys_state", "5: LinkUp\n"), (IBDEV + "/ports/1/gid_attrs/ndevs/0", "lo\n")):
        with open(ROOT + name, "w", encoding="ascii") as file:
            file.write(text)
    os.symlink("../..", ROOT + IBDEV + "/device")
    os.symlink("../../devices/virtual/softhca/test0/infiniband/test0", ROOT + CLASS + "/test0")
    os.symlink("/sys/class/net/lo", ROOT + DEVICE + "/net/lo")
    os.symlink("/dev/null", ROOT + "/dev/infiniband/uverbs7")


def run(*command, root=ROOT, **kwargs):
    environment = dict(os.environ, LD_PRELOAD=SHIM, LC_ALL="C")
    environment.pop("SOFTHCA_SYSFS_ROOT", None)
    if root is not None:
        environment["SOFTHCA_SYSFS_ROOT"] = root
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, **kwargs)


def output(*command, **kwargs):
    result = run(*command, **kwargs)
    tap.equal((result.returncode, result.stderr), (0, ""), " ".join(command))
    return result.stdout


def python(code, **kwargs):
    """Runs code with libc's functions at hand: C(name, result type, arguments…) returns (result, errno)."""
    prelude = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def C(name, result, *arguments):
    function = getattr(libc, name)
    function.restype = result
    ctypes.set_errno(0)
    return function(*arguments), ctypes.get_errno()
P, I, S = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
TYPE = b"/sys/class/infiniband/test0/ports/1/gid_attrs/types/0"
NODE = b"/dev/infiniband/uverbs7"
"""
    return output("/usr/bin/python3", "-c", prelude + code, **kwargs)


def test_without_a_root_everything_passes_through():
    tap.equal(output("cat", ROOT + DEVICE + "/vendor", root=None), "0x1234\n")
    seen = os.path.exists(CLASS + "/test0")
    tap.equal(run("test", "-e", CLASS + "/test0", root=None).returncode, 0 if seen else 1)


def test_a_root_that_is_no_path_is_ignored():
    for root in ("", "/", "relative"):
        tap.equal(run("test", "-e", CLASS + "/test0", root=root).returncode, 1, repr(root))


def test_ls_lists_through_statx_and_opendir():
    tap.equal(output("ls", CLASS), "test0\n")
    tap.equal(output("ls", CLASS + "/test0/device/net/"), "lo\n")
    tap.equal(output("ls", "/dev/infiniband"), "uverbs7\n")
    assert " test0 -> ../../devices/" in output("ls", "-l", CLASS)


def test_cat_reads():
    tap.equal(output("cat", CLASS + "/test0/ports/1/gid_attrs/types/0"), "RoCE v2\n")
    tap.equal(output("cat", CLASS + "/test0/device/vendor"), "0x1234\n")


def test_doubled_slashes_and_dots_are_the_same_path():
    for path in ("/sys//class/infiniband//test0/node_type", "//sys/class/./infiniband/test0/node_type"):
        tap.equal(output("cat", path), "1: CA\n")


def test_other_paths_with_the_same_beginning_are_not_ours():
    tap.equal(run("ls", "/sys/class/infiniband_other").returncode, 2)
    tap.equal(run("ls", "/sys/class/infiniband0").returncode, 2)
    assert output("ls", "/sys/class/net") == subprocess.run(["ls", "/sys/class/net"], capture_output=True, text=True,
                                                             check=True).stdout


def test_the_node_is_a_character_device_for_reading_and_writing():
    tap.equal(output("stat", "-c", "%F", "/dev/infiniband/uverbs7"), "character special file\n")
    tap.equal(output("stat", "-L", "-c", "%F", "/dev/infiniband/uverbs7"), "character special file\n")
    for test in "-c", "-r", "-w":
        tap.equal(run("test", test, "/dev/infiniband/uverbs7").returncode, 0, test)
    tap.equal(run("test", "-h", "/dev/infiniband/uverbs7").returncode, 1)
    tap.equal(run("sh", "-c", "echo x > /dev/infiniband/uverbs7").returncode, 0)
    tap.equal(run("test", "-e", "/dev/infiniband/uverbs8").returncode, 1)


def test_realpath_and_readlink_tell_nothing_of_the_root():
    tap.equal(output("realpath", CLASS + "/test0"), IBDEV + "\n")
    tap.equal(output("readlink", CLASS + "/test0"), "../../devices/virtual/softhca/test0/infiniband/test0\n")
    # What it told can be used again.
    tap.equal(output("cat", IBDEV + "/node_type"), "1: CA\n")


def test_find_and_shell_globs_walk_it():
    assert CLASS + "/test0/node_type" in output("find", "-L", CLASS, "-maxdepth", "2").splitlines()
    tap.equal(output("bash", "-c", f"echo {CLASS}/*/node_type"), CLASS + "/test0/node_type\n")
    tap.equal(output("bash", "-c", f"cd {CLASS}/test0 && cat node_type"), "1: CA\n")


def test_sysfs_cannot_be_written():
    tap.equal(python("""
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
    for name in "open", "open64":
        print(*C(name, I, TYPE, flags, 0o644))
    for name in "openat", "openat64":
        print(*C(name, I, -100, TYPE, flags, 0o644))
for name in "__open_2", "__open64_2":
    print(*C(name, I, TYPE, os.O_RDWR))
for mode in b"w", b"a", b"r+":
    for name in "fopen", "fopen64":
        result, error = C(name, P, TYPE, mode)
        print(-1 if result is None else 0, error)
"""), "-1 13\n" * 20)


def test_every_open():
    tap.equal(python("""
for name in "open", "open64", "__open_2", "__open64_2":
    print(os.read(C(name, I, TYPE, os.O_RDONLY)[0], 99))
for name in "openat", "openat64", "__openat_2", "__openat64_2":
    print(os.read(C(name, I, -100, TYPE, os.O_RDONLY)[0], 99))
"""), "b'RoCE v2\\n'\n" * 8)
    tap.equal(python("""
for name in "fopen", "fopen64":
    print(C(name, P, TYPE, b"r")[0] is not None)
"""), "True\n" * 2)


def test_every_stat():
    tap.equal(python("""
import stat, struct
def mode(buffer):
    return stat.S_IFMT(struct.unpack_from("I", buffer, 24)[0])
buffer = ctypes.create_string_buffer(512)
wanted = {TYPE: stat.S_IFREG, NODE: stat.S_IFCHR}
for path in TYPE, NODE:
    for name in "stat", "stat64", "lstat", "lstat64":
        print(C(name, I, path, buffer)[0], mode(buffer) == wanted[path])
    for name in "__xstat", "__xstat64", "__lxstat", "__lxstat64":
        print(C(name, I, 1, path, buffer)[0], mode(buffer) == wanted[path])
    for name in "fstatat", "fstatat64":
        print(C(name, I, -100, path, buffer, 0x100)[0], mode(buffer) == wanted[path])
    for name in "__fxstatat", "__fxstatat64":
        print(C(name, I, 1, -100, path, buffer, 0x100)[0], mode(buffer) == wanted[path])
    print(C("statx", I, -100, path, 0x100, 0x7ff, buffer)[0],
          stat.S_IFMT(struct.unpack_from("H", buffer, 28)[0]) == wanted[path])
""") if os.uname().machine == "x86_64" else "0 True\n" * 26, "0 True\n" * 26)


def test_every_access():
    tap.equal(python("""
for name in "access", "euidaccess", "eaccess":
    print(*C(name, I, NODE, os.R_OK | os.W_OK))
print(*C("faccessat", I, -100, NODE, os.R_OK | os.W_OK, 0x100))
print(*C("access", I, b"/dev/infiniband/uverbs8", os.R_OK))
"""), "0 0\n" * 4 + "-1 2\n")


def test_every_directory_call():
    tap.equal(python("""
names = P()
for name in "scandir", "scandir64":
    print(C(name, I, b"/sys/class/infiniband", ctypes.byref(names), None, None)[0])
print(C("opendir", P, b"/sys/class/infiniband")[0] is not None)
print(*C("chdir", I, b"/sys/class/infiniband/test0"))
print(open("node_type").read(), end="")
"""), "3\n3\nTrue\n0 0\n1: CA\n")


def test_every_link_call():
    tap.equal(python("""
buffer = ctypes.create_string_buffer(4096)
LINK = b"/sys/class/infiniband/test0/device"
def show(result):
    print(result[0], buffer.raw[:result[0]])
    ctypes.memset(buffer, 0, 4096)
show(C("readlink", I, LINK, buffer, 4096))
show(C("readlinkat", I, -100, LINK, buffer, 4096))
show(C("__readlink_chk", I, LINK, buffer, 4096, 4096))
show(C("__readlinkat_chk", I, -100, LINK, buffer, 4096, 4096))
print(C("realpath", S, LINK, buffer)[0], buffer.value)
print(C("realpath", S, LINK, None)[0])
print(C("__realpath_chk", S, LINK, buffer, 4096)[0], buffer.value)
print(C("canonicalize_file_name", S, LINK)[0])
print(C("realpath", S, b"/sys/class/infiniband/none", None)[1])
"""), "5 b'../..'\n" * 4 + f"b'{DEVICE}' b'{DEVICE}'\nb'{DEVICE}'\nb'{DEVICE}' b'{DEVICE}'\nb'{DEVICE}'\n2\n")


def test_the_node_is_no_link_to_readlink_either():
    tap.equal(python("""
buffer = ctypes.create_string_buffer(4096)
for name in b"/dev/infiniband/uverbs7", b"/dev/infiniband/uverbs8", b"/dev/infiniband":
    print(*C("readlink", I, name, buffer, 4096), *C("readlinkat", I, -100, name, buffer, 4096),
          *C("__readlink_chk", I, name, buffer, 4096, 4096), *C("__readlinkat_chk", I, -100, name, buffer, 4096, 4096))
"""), "-1 22 -1 22 -1 22 -1 22\n-1 2 -1 2 -1 2 -1 2\n-1 22 -1 22 -1 22 -1 22\n")


def test_errno_survives_success():
    tap.equal(python("""
function = libc.access
ctypes.set_errno(77)
function(NODE, 0)
print(ctypes.get_errno())
"""), "77\n")


def test_long_paths_pass_through():
    tap.equal(python("""
print(*C("access", I, b"/sys/class/infiniband/" + b"a/" * 1500, 0))
print(*C("access", I, b"/sys/class/infiniband/" + b"a/" * 4000, 0))
print(*C("access", I, None, 0))
print(*C("access", I, b"", 0))
"""), "-1 2\n-1 36\n-1 14\n-1 2\n")


# Requests of rdma(8): client 5 is NLDEV; 1, 5 and 6 are its GET, PORT_GET and SYS_GET.
RDMA = """
import select, socket, struct
REQUEST, ACK, DUMP = 1, 4, 0x300
def message(operation, flags, seq, *attributes):
    body = b"".join(struct.pack("HHI", 8, *attribute) for attribute in attributes)
    return struct.pack("IHHII", 16 + len(body), 5 << 10 | operation, flags, seq, 0) + body
def receive(s, timeout=0):
    if not select.select([s], [], [], timeout)[0]:
        return []
    data, told = s.recv(65536), []
    while data:
        length, kind, flags, seq, pid = struct.unpack_from("IHHII", data)
        told.append((kind, seq, struct.unpack_from("i", data, 16)[0]))
        data = data[(length + 3) & ~3:]
    return told
def everything(s):
    told = []
    while more := receive(s):
        told += more
    return told
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
"""


def test_rdma_shows_the_adapters():
    tap.equal(json.loads(output("rdma", "link", "show", "-j")),
              [{"ifindex": 8, "ifname": "test0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": "lo",
                "netdev_index": 1}])
    tap.equal(json.loads(output("rdma", "link", "show", "test0/1", "-j"))[0]["netdev"], "lo")
    shown = json.loads(output("rdma", "dev", "show", "-j"))
    tap.equal([(device["ifname"], device["fw"], device["node_guid"], device["sys_image_guid"]) for device in shown],
              [("test0", "1.2.3", "0011:2233:4455:6677", "8899:aabb:ccdd:eeff")])


def test_without_a_root_rdma_asks_the_kernel():
    command = ("rdma", "dev", "show", "-j")
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    shimmed = run(*command, root=None)
    tap.equal((shimmed.returncode, shimmed.stdout, shimmed.stderr), (plain.returncode, plain.stdout, plain.stderr))


def test_an_answer_is_there_when_send_returns():
    tap.equal(python(RDMA + """
print(receive(s))
for ask in (lambda m: s.send(m), lambda m: s.sendto(m, (0, 0)), lambda m: s.sendmsg([m[:7], m[7:]])):
    m = message(1, REQUEST | DUMP, 77)
    print(ask(m) == len(m), [told[:2] for told in everything(s)])
"""), "[]\n" + "True [(5121, 77), (3, 77)]\n" * 3)


def test_requests_that_the_kernel_would_refuse():
    tap.equal(python(RDMA + """
for m in (message(2, REQUEST | ACK, 1), message(30, REQUEST | DUMP, 2), message(1, REQUEST, 3), message(1, REQUEST, 4, (1, 99)),
          message(5, REQUEST, 5, (1, 8)), message(5, REQUEST, 6, (1, 8), (3, 2)), message(5, REQUEST | DUMP, 7),
          message(9, REQUEST, 10), message(10, REQUEST | DUMP, 11), message(10, REQUEST, 12, (1, 8))):
    s.send(m)
    print(everything(s))
s.send(message(1, REQUEST | ACK, 8, (1, 8)))
print([told[:2] for told in everything(s)], end=" ")
s.send(message(1, 0, 9))
print(everything(s))
"""), "".join(f"[(2, {seq}, {error})]\n" for seq, error in ((1, -95), (2, -95), (3, -22), (4, -22), (5, -22), (6, -22),
                                                          (7, -22), (10, -22), (11, -22), (12, -2))) + "[(5121, 8), (2, 8)] []\n")


def test_malformed_requests_are_dropped():
    tap.equal(python(RDMA + """
whole = message(5, REQUEST | DUMP, 1, (1, 8))
for cut in range(len(whole)):
    s.send(whole[:cut])
for length in 0, 1, 15, 25, 1 << 31, (1 << 32) - 1:
    s.send(struct.pack("I", length) + whole[4:])
print(everything(s))
for length in 0, 3, 9, 65535:
    s.send(whole[:16] + struct.pack("H", length) + whole[18:])
print({told[::2] for told in everything(s)})
"""), "[]\n{(2, -22)}\n")


def test_nobody_else_can_answer():
    tap.equal(python(RDMA + """
s.bind((0, 0))
other = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
other.bind((0, 0))
def forge(to):
    try:
        other.sendto(message(1, 0, 66), (to, 0))
    except ConnectionRefusedError:
        print("refused", end=" ")
port = s.getsockname()[0]
forge(port)
s.send(message(1, REQUEST | DUMP, 77))
forge(port)
print([told[1] for told in everything(s)])
"""), "refused [77, 77]\n")


def test_other_sockets_are_as_they_were():
    tap.equal(python(RDMA + """
import os
route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
route.send(struct.pack("IHHII", 20, 18, REQUEST | DUMP, 5, 0) + bytes(4))
print(16 in {told[0] for told in receive(route, 10)})
number = s.fileno()
s.close()
left, right = socket.socketpair()
os.dup2(left.fileno(), number)
print(socket.socket(fileno=number).send(b"x"), right.recv(9))
"""), "True\n1 b'x'\n")
    plain = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
    tap.equal(output("ip", "-j", "link"), plain.stdout)


def test_children_see_the_same():
    tap.equal(output("sh", "-c", f"sh -c 'ls {CLASS} | cat'"), "test0\n")


def test_it_is_small_and_asks_for_libc_alone():
    dynamic = subprocess.run(["readelf", "-dW", SHIM], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    tap.equal(needed, ["libc.so.6"])
    # One entry is the compiler's own (frame_dummy); a second would be a constructor of ours.
    assert re.search(r"\(INIT_ARRAYSZ\)\s+8 ", dynamic) or "(INIT_ARRAY)" not in dynamic, "a constructor"
    symbols = subprocess.run(["objdump", "-T", SHIM], capture_output=True, text=True, check=True).stdout
    versions = {tuple(int(part) for part in word[6:].rstrip(")").split("."))
                for word in symbols.replace("(", " ").split() if word.startswith("GLIBC_2")}
    # What is built with a newer libc than Debian 12's is for that distribution.
    libc = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    assert max(versions) <= (2, 34) or libc > (2, 36), max(versions)


if __name__ == "__main__":
    make_tree()
    tap.main(sys.modules[__name__])
