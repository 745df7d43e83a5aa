# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What the programs' outputs say."""

import re

from pairs import Failure

TROUBLE = re.compile(r'invalid data|Completion with error|Failed status|Couldn\'t|Unable to|Failed to|Problems? |'
                     r'Segmentation|Sanitizer|runtime error:|syndrom', re.I)


# ibv_xsrq_pingpong may not write where it is started, and goes on with a domain of its own.
HARMLESS = re.compile(r'Couldn\'t create the file for the XRC Domain but not stopping')


def trouble(text):
    for line in text.splitlines():
        if HARMLESS.search(line):
            continue
        if TROUBLE.search(line):
            return line.strip()
    return None


def number(word):
    try:
        return float(word)
    except ValueError:
        return None


def pingpong(text, size, iters):
    got = re.search(r'(\d+) bytes in ([\d.]+) seconds', text)
    if not got:
        raise Failure('no result line')
    if int(got[1]) != size * iters * 2:
        raise Failure(f'{got[1]} bytes reported, {size} x {iters} x 2 expected')
    got = re.search(r'(\d+) iters in', text)
    if not got or int(got[1]) != iters:
        raise Failure(f'{got and got[1]} iterations reported, {iters} expected')


def perftest_rows(text):
    """The rows below '#bytes': lists of numbers, bytes and iterations first."""
    rows, inside = [], False
    # Said without regard to what was being printed, at the end of a row or in its middle.
    for line in re.sub(r'Correlation coefficient r\^2: \S+ < \S+\n?', '', text).splitlines():
        if line.lstrip().startswith('#bytes'):
            inside = True
        elif inside and re.match(r'\s*\d', line):
            rows.append([number(w) for w in line.split()])
        elif line.startswith('----'):
            inside = False
    return rows


def perftest(text, sizes, iters):
    """iters: the count that every row must show, or None where only the clock ends the test."""
    rows = perftest_rows(text)
    if [r[0] for r in rows] != list(sizes):
        raise Failure(f'sizes reported {[int(r[0]) for r in rows]}, expected {list(sizes)}')
    # On a busy machine perftest may not find out how fast the processor's clock is, and says 0 then.
    knows_time = 'Correlation coefficient' not in text
    for r in rows:
        if len(r) < 4 or any(v is None for v in r):
            raise Failure(f'unreadable row {r}')
        if iters is not None and r[1] != iters:
            raise Failure(f'{int(r[1])} iterations of {int(r[0])} bytes reported, {iters} expected')
        if r[1] <= 0 or r[3] < 0 or (knows_time and not any(v > 0 for v in r[2:])):
            raise Failure(f'nothing moved: {r}')


def pair(case, server, client, both=False):
    """Two ends of a case of matrix.py, each its command and what it printed. both: the server prints results, too."""
    outputs = server[1], client[1]
    try:
        for text in outputs:
            if bad := trouble(text):
                raise Failure(bad)
        if case.program == 'ibv_xsrq_pingpong':
            for text in outputs:
                if not re.search(r'^success$', text, re.M):
                    raise Failure('does not say that it succeeded')
        elif case.kind == 'pingpong':
            for text in outputs:
                pingpong(text, case.sizes[0], case.iters)
        else:
            perftest(client[1], case.sizes, case.iters or None)
            if both:
                perftest(server[1], case.sizes, case.iters or None)
    except Failure as e:
        for name, (command, text) in (('server', server), ('client', client)):
            e.note(f'{name}: {" ".join(command)}\n{text}')
        raise


def devinfo(text):
    """Devices of ibv_devinfo -v: name → dict with 'state', 'mtu', 'guid', 'gids' {index: (gid, type)}."""
    devices, dev = {}, None
    for line in text.splitlines():
        line = line.strip()
        if m := re.match(r'hca_id:\s*(\S+)', line):
            dev = devices[m[1]] = {'gids': {}}
        elif dev is None:
            continue
        elif m := re.match(r'GID\[\s*(\d+)\]:\s*([0-9a-fA-F:.]+)(?:,\s*(.*))?', line):
            dev['gids'][int(m[1])] = (m[2], m[3])
        elif m := re.match(r'(state|link_layer|node_guid|phys_state|transport|fw_ver|max_qp|max_cqe|atomic_cap'
                           r'|phys_port_cnt|gid_tbl_len|pkey_tbl_len|max_msg_sz):\s*(.*)', line):
            dev[m[1]] = m[2]
        elif m := re.match(r'active_mtu:\s*(\d+)', line):
            dev['mtu'] = int(m[1])
    return devices
