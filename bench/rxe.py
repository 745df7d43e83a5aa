#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""This adapter between two network namespaces against the kernel's rxe0 with itself, in one guest (tests/interop/lab.py).

The guest's processor is emulated, and a CRC costs far more there than on a real one; how much of the time goes into it is
told, too. So is the floor: what two programs reach between the same namespaces that do nothing but send and receive UDP
datagrams (bench_udp), as many packets in each as the kernel cuts apart. --check: exit status 1 if a bar is missed.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', 'tests', 'interop'), os.path.join(HERE, '..', 'tests', 'programs')]
sys.dont_write_bytecode = True

import judge  # noqa: E402
import lab  # noqa: E402
import pairs  # noqa: E402

LIMIT = 1800
NEAR, FAR = '10.79.0.1', '10.79.0.2'
# A processor for each side, as bench_udp has it.
PINNED = [['taskset', '-c', cpu] for cpu in ('0', '1')]
THERE = [['ip', 'netns', 'exec', name, *pinned] for name, pinned in zip(('one', 'two'), PINNED)]
# name: program and options, column of perftest's row, is more better?, bar as factor of rxe0, floor as a function of what
# floors() found
WHATS = {
    'write_bw 64 KiB, MB/s': (['ib_write_bw', '-s', '65536', '-n', '400'], 3, True, 2, lambda f: 1000 * f[4096][1]),
    'send_bw 64 KiB, MB/s': (['ib_send_bw', '-s', '65536', '-n', '400'], 3, True, 2, lambda f: 1000 * f[4096][1]),
    'send_bw 8 B, Mmsg/s': (['ib_send_bw', '-s', '8', '-n', '20000'], 4, True, 2, lambda f: 1000 * f[SMALL][1] / SMALL),
    'send_lat 8 B, us': (['ib_send_lat', '-s', '8', '-n', '1000'], 4, False, 1.5, lambda f: f[SMALL][0]),
}
SMALL = 24  # bytes of RoCEv2 in a datagram with a SEND of 8
TRIES = 8
WARM_UP = 2
RECEIVE_BUFFER = 4 << 20  # as `softhca doctor` advises, and what bench_udp asks for


def prepare():
    with open('/proc/sys/net/core/rmem_max', 'w', encoding='ascii') as f:
        f.write(str(RECEIVE_BUFFER))
    for name, address in (('one', NEAR), ('two', FAR)):
        subprocess.run(['ip', 'netns', 'add', name], check=True)
        subprocess.run(['ip', '-n', name, 'link', 'set', 'lo', 'up'], check=True)
    subprocess.run(['ip', '-n', 'one', 'link', 'add', 'v1', 'mtu', '4200', 'type', 'veth', 'peer', 'name', 'v2', 'mtu',
                    '4200', 'netns', 'two'], check=True)
    for name, link, address in (('one', 'v1', NEAR), ('two', 'v2', FAR)):
        subprocess.run(['ip', '-n', name, 'address', 'add', address + '/24', 'dev', link], check=True)
        subprocess.run(['ip', '-n', name, 'link', 'set', link, 'up'], check=True)


def once(host, argv, ours):
    """perftest's row, and the processor time of both ends. None: perftest did not find the clock."""
    port = str(pairs.free_port())
    argv = [argv[0], '-p', port, '-m', '4096', '-F', *argv[1:], '-x', '0' if ours else '1', *([] if ours else ['-d', 'rxe0'])]
    near, far = THERE if ours else PINNED
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, text = pairs.run_pair(host, argv, [*argv, NEAR if ours else '192.168.77.1'], port=int(port), limit=120, near=near,
                             far=far)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if 'Correlation coefficient' in text:
        return None
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return judge.perftest_rows(text)[0], used


def row_of(host, what, ours):
    argv, column, *_ = WHATS[what]
    for _ in range(TRIES):
        if (got := once(host, argv, ours)) is not None:
            return got[0][column], got[1]
    raise pairs.Failure('perftest does not find the clock')


def medians_of(hosts, what, rounds):
    """Value and processor time, ours and theirs, who take turns. The first rounds count for neither: files are read from
    the host in them, and QEMU translates what is executed for the first time."""
    rows = [[row_of(hosts[ours], what, ours) for ours in (True, False)] for _ in range(WARM_UP + rounds)][WARM_UP:]
    return [[statistics.median(values) for values in zip(*side)] for side in zip(*rows)]


def crc_speed(program):
    """GB/s of making and of checking the ICRC of 4 KiB."""
    text = subprocess.run([program, '0'], check=True, capture_output=True, text=True).stdout
    return [float(word) for word in re.findall(r'_gbps (\S+)', text)]


def floors(program):
    """By size of packet: microseconds one way, and GB/s that arrive."""
    text = subprocess.run([program, '--between', 'one', NEAR, 'two', FAR, '0', '1', str(SMALL), '4096'], check=True,
                          capture_output=True, text=True).stdout
    return {int(size): (float(latency), float(gbps))
            for size, latency, gbps in re.findall(r'size (\d+) latency_us (\S+) gbps (\S+)', text)}


def inside(lib, bench, rounds, check, out):
    prepare()
    floor = floors(os.path.join(bench, 'bench_udp'))
    hosts = {True: pairs.Host(lib), False: pairs.Host(system=True)}
    status = 0
    for what, (argv, _, more, bar, floor_of) in WHATS.items():
        (ours, used), (theirs, _) = medians_of(hosts, what, rounds)
        factor = ours / theirs
        good = factor >= bar if more else factor <= bar
        status |= check and not good
        print(f'{what}: {ours:g} against {theirs:g}: {factor:.2f} x, bar {bar} {"held" if good else "MISSED"}; '
              f'UDP alone {floor_of(floor):.3g}: {floor_of(floor) / theirs:.2f} x', file=out, flush=True)
        if '65536' in argv:
            made, checked = crc_speed(os.path.join(bench, 'bench_icrc'))
            crc = 65536 * int(argv[-1]) * (1 / made + 1 / checked) / 1e9
            print(f'  CRC: {made:.2f} GB/s made, {checked:.2f} GB/s checked: {100 * crc / used:.0f} % of the processor time '
                  'of both ends, start and end included', file=out, flush=True)
    hosts[True].close()
    return status


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--build', default=os.path.join(HERE, '..', 'build'))
    ap.add_argument('--rounds', type=int, default=3, help='of which the median is taken (default %(default)s)')
    ap.add_argument('--check', action='store_true')
    ap.add_argument('--in-guest', metavar='FILE', help='used by this program itself')
    opt = ap.parse_args()
    build = os.path.abspath(opt.build)
    if opt.in_guest:
        with open(opt.in_guest, 'w', encoding='utf-8') as out:
            return inside(os.path.join(build, 'lib'), os.path.join(build, 'bench'), opt.rounds, opt.check, out)
    try:
        return lab.run(['python3', os.path.abspath(__file__), '--build', build, '--rounds', str(opt.rounds),
                        *(['--check'] if opt.check else []), '--in-guest'], LIMIT)
    except lab.Unable as e:
        print(f'rxe.py: {e}', file=sys.stderr)
        return 77


if __name__ == '__main__':
    sys.exit(main())
