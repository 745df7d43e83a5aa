#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Instructions, conditional branches, calls, locked instructions and cache lines of a message, for each mechanism: runs
build/bench/message_trace and says what its steps were. Needs objdump. `bench/message_trace.py` prints the table of
docs/performance.md; `--only WORDS` the rows whose words are among these; `--functions` what each function has.

Figures are means of 8 rounds of 16 messages. Instructions are those outside of the program itself: the library, and what
it calls in libc. Lines are those that the 16 messages of a round touch together, without the stack."""

import argparse
import bisect
import collections
import os
import re
import struct
import subprocess
import sys
import tempfile

TOGETHER, ROUNDS = 16, 8
STEP = struct.Struct('<28Q')
# struct user_regs_struct, behind the phase.
NAMES = ('phase r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base '
         'ds es fs gs').split()
RIP = NAMES.index('rip')
PHASES = {1: 'post', 2: 'poll', 3: 'post_recv'}
STACK = 1 << 16
OPERAND = re.compile(r'(%fs:)?(-?0x[0-9a-f]+)?\((%\w+)?(?:,(%\w+)(?:,(\d))?)?\)|(%fs:)(-?0x[0-9a-f]+)')
READS = ('cmp', 'test', 'ucomis', 'bt', 'push', 'call', 'jmp')

ROWS = [(what, path, options.split()) for what, path, options in (
    ('WRITE', 'mapped', 'write'),
    ('WRITE, inline', 'mapped', 'write inline'),
    ('WRITE, chains', 'mapped', 'write chain'),
    ('WRITE, inline, chains', 'mapped', 'write inline chain'),
    ('WRITE, ibv_wr_*', 'mapped', 'write extended'),
    ('WRITE, ibv_wr_*, chains', 'mapped', 'write extended chain'),
    ('WRITE, a QP each', 'mapped', 'write qps=256'),
    ('WRITE, turns', 'mapped', 'write turns'),
    ('READ, turns', 'mapped', 'read turns'),
    ('FETCH_AND_ADD, turns', 'mapped', 'faa turns'),
    ('WRITE', 'ring', 'write'),
    ('WRITE', 'copy', 'write'),
    ('SEND', 'ring', 'send'),
    ('SEND, inline', 'ring', 'send inline'),
    ('SEND, chains', 'ring', 'send chain'),
    ('SEND, inline, chains', 'ring', 'send inline chain'),
    ('SEND, ibv_wr_*, chains', 'ring', 'send extended chain'),
    ('SEND, chains', 'mapped', 'send chain'),
    ('SEND, turns', 'ring', 'send turns'),
    ('polls in vain', 'ring', 'poll'),
    ('SEND, receiver', 'ring', 'send receiver'),
    ('SEND, chains, receiver', 'ring', 'send chain receiver'),
    ('SEND, chains, receiver', 'mapped', 'send chain receiver'),
    ('SEND, chains', 'network', 'send chain'),
)]
NETWORK = {'SOFTHCA_PATH': 'wire'}


class Module:
    """A file with code, at some place in memory. code: offset → (text, function, target of %rip)."""

    def __init__(self, path, base):
        self.path, self.base, self.code = path, base, {}

    def disassemble(self, offsets):
        run = sorted(offsets)
        first = 0
        for i in range(1, len(run) + 1):
            if i == len(run) or run[i] - run[i - 1] > 256:
                self.read(run[first], run[i - 1] + 16)
                first = i

    def read(self, start, end):
        out = subprocess.run(['objdump', '-d', '--no-show-raw-insn', '-w', f'--start-address={start:#x}',
                              f'--stop-address={end:#x}', self.path], capture_output=True, text=True, check=True).stdout
        name = ''
        for line in out.splitlines():
            head = re.match(r'^[0-9a-f]+ <([^.@>]*).*>:$', line)
            body = re.match(r'^\s+([0-9a-f]+):\s+([^#<]*)(?:.*# ([0-9a-f]+))?', line)
            if head:
                name = re.sub(r'[-+]0x.*', '', head[1])
            elif body:
                self.code[int(body[1], 16)] = (body[2].strip(), name, int(body[3], 16) if body[3] else None)


def load(file):
    with open(file, 'rb') as f:
        text, _, data = f.read().partition(b'\n\n')
    modules = []
    for line in text.decode().splitlines():
        span, _, offset, *_, path = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in span.split('-'))
        modules.append((low, high, Module(path, low - int(offset, 16))))
    own = modules[0][2]
    steps = []
    for raw in STEP.iter_unpack(data):
        i = bisect.bisect(modules, (raw[RIP], 1 << 64)) - 1
        found = modules[i][2] if i >= 0 and raw[RIP] < modules[i][1] else None
        steps.append((None if found is own else found, raw))
    used = collections.defaultdict(set)
    for module, raw in steps:
        if module:
            used[module].add(raw[RIP] - module.base)
    for module, offsets in used.items():
        if module.path.startswith('/'):
            module.disassemble(offsets)
    return steps


def memory(text, target, module, raw):
    """Where the instruction accesses memory that is not the stack: (address, bytes, written), or nothing."""
    words = text.split(maxsplit=1)
    if words[0] in ('lock', 'rep', 'repz', 'notrack', 'bnd'):
        words = words[1].split(maxsplit=1)
    if len(words) < 2 or words[0].startswith(('lea', 'nop', 'prefetch')):
        return []
    registers = dict(zip(NAMES, raw))
    if '%es:' in words[1]:
        size = max(registers['rcx'], 1) if words[0][3:4] == 'b' else 8 * registers['rcx']
        found = [(registers['rdi'], size, True)]
        if words[0].startswith('movs'):
            found.append((registers['rsi'], size, False))
        return found
    operand = OPERAND.search(words[1])
    if not operand:
        return []
    segment, displacement, base, index, scale = operand.group(1, 2, 3, 4, 5)
    address = int(displacement or operand[7] or '0', 16)
    if target is not None:
        address = target + module.base
    elif base:
        address += registers[base[1:]]
    if segment or operand[6]:
        address += registers['fs_base']
    if index:
        address += registers[index[1:]] * int(scale or 1)
    address %= 1 << 64
    if abs(address - registers['rsp']) < STACK:
        return []
    size = 32 if '%ymm' in words[1] else 16 if '%xmm' in words[1] else 8
    return [(address, size, words[1].endswith(operand[0]) and not words[0].startswith(READS))]


def analyse(file):
    """Per phase, sums over all rounds; (phase, function) → instructions; rounds: lines touched, and written."""
    sums = collections.defaultdict(collections.Counter)
    functions = collections.Counter()
    rounds, before = [], None
    for module, raw in load(file):
        phase = PHASES[raw[0]]
        if before != phase and (before is None or phase == PHASES[1] or (phase == 'poll' and before != 'post')):
            rounds.append((set(), set()))
        before = phase
        if not module:
            continue
        text, name, target = module.code.get(raw[RIP] - module.base, ('', module.path, None))
        count = sums[phase]
        count['instructions'] += 1
        functions[phase, name] += 1
        count['branches'] += text.startswith('j') and not text.startswith('jmp')
        count['calls'] += text.startswith('call')
        accesses = memory(text, target, module, raw) if text else []
        if text.startswith('lock') or (text.startswith('xchg') and '(' in text):
            count['locked'] += 1
        for address, size, written in accesses:
            for line in range(address // 64, (address + size - 1) // 64 + 1):
                rounds[-1][0].add(line)
                if written or text.startswith(('lock', 'xchg')):
                    rounds[-1][1].add(line)
    return sums, functions, rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', nargs='?', default='build')
    parser.add_argument('--only', help='for example "WRITE mapped"')
    parser.add_argument('--functions', action='store_true')
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, 'bench', 'message_trace')
    messages = TOGETHER * ROUNDS
    print('| 8 bytes | path | phase | instructions | branches | calls | locked | lines of 16 messages | of which written |')
    print('|---|---|---|---|---|---|---|---|---|')
    for what, path, options in ROWS:
        if arguments.only and not set(arguments.only.split()) <= set(what.replace(',', '').split()) | {path}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'steps')
            mechanism = NETWORK if path == 'network' else {'SOFTHCA_LOCAL': path}
            subprocess.run([program, file, *options], check=True, timeout=120, env={
                **os.environ, **mechanism, 'LD_LIBRARY_PATH': os.path.join(arguments.build, 'lib')})
            sums, functions, rounds = analyse(file)
        of_all = [sum(len(r[i]) for r in rounds) / len(rounds) for i in (0, 1)]
        for n, (phase, count) in enumerate(sorted(sums.items(), key=lambda item: list(PHASES.values()).index(item[0]))):
            figures = [f'{count[key] / messages:.1f}' for key in ('instructions', 'branches', 'calls', 'locked')]
            figures += [f'{x:.0f}' for x in of_all] if n == 0 else ['', '']
            print(f'| {what if n == 0 else ""} | {path if n == 0 else ""} | {phase} | ' + ' | '.join(figures) + ' |',
                  flush=True)
        if arguments.functions:
            for (phase, name), count in functions.most_common(40):
                print(f'    {phase:9} {count / messages:7.1f}  {name}')


if __name__ == '__main__':
    sys.exit(main())
