#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Litmus tests of the orderings between processes, in the memory model of aarch64, which allows what neither x86 nor an
emulator on it shows. Each pattern is what gcc makes of the source: an acquire load is LDAR, a release store STLR, a fence
with seq_cst or release DMB ISH, one with acquire DMB ISHLD. herd7 has to find that the bad end is never reached, and that
it is reached with any one of the orderings taken away. Prints TAP."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

# name, where it is, threads, the bad end. WITH|WITHOUT: an ordering, and what is there without it. LD and ST: of the variable
# and the register, which is of the thread; a number is stored by way of a register.
PATTERNS = [
    ('a record is seen whole', 'local/ring.c: publish_record(), find_record()',
     [['ST payload 1', 'STLR word 1|ST word 1'], ['LDAR a word|LD a word', 'LD b payload']], '1:a=1 /\\ 1:b=0'),
    ('a record that is read is not overwritten', 'local/ring.c: ring_publish_position(), ring_refresh_consumed()',
     [['LD a payload', 'STLR consumed 1|ST consumed 1'], ['LDAR b consumed|LD b consumed', 'ST payload 1']], '0:a=1 /\\ 1:b=1'),
    ('a reader that goes to sleep is rung', 'local/lane.c: lane_ring(); local/ring.h: ring_arm_reader()',
     [['STLR word 1', 'DMB ISH|', 'LD a sleeps'], ['ST sleeps 1', 'DMB ISH|', 'LD b word']], '0:a=0 /\\ 1:b=0'),
    ('a writer that waits for space is rung', 'local/ring.h: ring_take_writer_waits(), ring_arm_writer()',
     [['STLR consumed 1', 'DMB ISH|', 'LD a waits'], ['ST waits 1', 'DMB ISH|', 'LDAR b consumed']], '0:a=0 /\\ 1:b=0'),
    ('the owner sees the access slot, or the check the change', 'engine/direct/access_slot.h: access_slot_fence(); owner.c: direct_settle()',
     [['ST slot 1', 'DMB ISH|', 'LD a generation'], ['ST generation 1', 'DMB ISH|', 'LDAR b slot']], '0:a=0 /\\ 1:b=0'),
    ('an access is over when its slot is free', 'engine/direct/access_slot.h: access_slot_release(); owner.c: settle_access_slot()',
     [['ST memory 1', 'STLR slot 1|ST slot 1'], ['LDAR a slot|LD a slot', 'LD b memory']], '1:a=1 /\\ 1:b=0'),
    ('nor does it read what is stored afterwards', 'the same',
     [['LD a memory', 'STLR slot 1|ST slot 1'], ['LDAR b slot|LD b slot', 'ST memory 1']], '0:a=1 /\\ 1:b=1'),
    ('a copy with bytes of after a revocation sees the epoch', 'local/ring.h: ring_revoke(), ring_has_revoked()',
     [['ST epoch 1', 'DMB ISH|', 'ST memory 1'], ['LD a memory', 'DMB ISHLD|', 'LD b epoch']], '1:a=1 /\\ 1:b=0'),
    ('a copy in the process is waited for, or void', 'local/reference.c: copy_in_process(); lane.c: lane_revoke()',
     [['ST copies 1', 'DMB ISH|', 'LD a epoch'], ['ST epoch 1', 'DMB ISH|', 'LDAR b copies']], '0:a=0 /\\ 1:b=0'),
    ('an entry is read as a whole: before the change', 'rules/keys.c: begin_change(); keys.h: keys_try_read()',
     [['ST generation 1', 'DMB ISH|', 'ST field 1'], ['LDAR a generation', 'LD b field', 'DMB ISHLD|', 'LD c generation']],
     '1:a=0 /\\ 1:b=1 /\\ 1:c=0'),
    ('an entry is read as a whole: after the change', 'rules/keys.c: end_change(); keys.h: keys_try_read()',
     [['ST field 1', 'STLR generation 2|ST generation 2'], ['LDAR a generation|LD a generation', 'LD b field']], '1:a=2 /\\ 1:b=0'),
    ('who has accessed memory sees that the key was withdrawn', 'rules/keys.h: keys_is_current()',
     [['ST generation 1', 'DMB ISH|', 'ST memory 1'], ['LD a memory', 'DMB ISH|', 'LD b generation']], '1:a=1 /\\ 1:b=0'),
    ('a segment with a magic is filled in', 'segment/segment.c',
     [['ST field 1', 'STLR magic 1|ST magic 1'], ['LDAR a magic|LD a magic', 'LD b field']], '1:a=1 /\\ 1:b=0'),
    ('a process that goes to sleep is rung', 'local/lane.c: lane_ring(); local/notify.c: notify_set_attention()',
     [['STLR word 1', 'DMB ISH|', 'LD a attention'], ['ST attention 1', 'DMB ISH|', 'LD b word']], '0:a=0 /\\ 1:b=0'),
    ('what lies there is known to who looks seldom', 'engine/core/progress.c: go_to_sleep(); helper.c: wait_watching()',
     [['STLR word 1', 'DMB ISH|', 'LD a attention'], ['ST attention 1', 'DMB ISH|', 'LD a seldom', 'LD b word'],
      ['ST seldom 1', 'DMB ISH|', 'LD a word']], '0:a=0 /\\ 1:a=0 /\\ 1:b=1 /\\ 2:a=0'),
    ('who arms a CQ is not declared awake', 'engine/core/progress.c: update_attention(); local/notify.c: notify_set_attention()',
     [['ST armed 1', 'STLR attention 1|ST attention 1'], ['LDAR a attention|LD a attention', 'LD b armed']], '1:a=1 /\\ 1:b=0'),
    ('an event that is owed is known to who looks seldom', 'engine/core/helper.c: helper_event_owed(), wait_watching()',
     [['ST owed 1', 'DMB ISH|', 'LD a seldom'], ['ST seldom 1', 'DMB ISH|', 'LD b owed']], '0:a=0 /\\ 1:b=0'),
]


def variants(threads):
    """Whole, and once for each ordering without it: (what is missing or None, threads)."""
    def program(skipped):
        number, result = 0, []
        for thread in threads:
            lines = []
            for line in thread:
                if '|' in line:
                    whole, without = line.split('|')
                    line = without if number == skipped else whole
                    number += 1
                if line:
                    lines.append(line)
            result.append(lines)
        return result

    orderings = [line.split('|')[0] + f' of P{t}' for t, thread in enumerate(threads) for line in thread if '|' in line]
    yield None, program(None)
    for i, name in enumerate(orderings):
        yield name, program(i)


def assemble(name, threads, bad):
    initial, columns = [], []
    registers = {'a': 0, 'b': 2, 'c': 4}
    for number, thread in enumerate(threads):
        addresses, code, free = {}, [], 20
        for line in thread:
            operation, *operands = line.split()
            if operation == 'DMB':
                code.append(f'DMB {operands[0]}')
                continue
            variable = operands[0] if operation in ('ST', 'STLR') else operands[1]
            if variable not in addresses:
                addresses[variable] = 10 + len(addresses)
                initial.append(f'{number}:X{addresses[variable]}={variable};')
            at = f'[X{addresses[variable]}]'
            if operation in ('ST', 'STLR'):
                code += [f'MOV W{free},#{operands[1]}', f'{"STR" if operation == "ST" else "STLR"} W{free},{at}']
                free += 1
            else:
                code.append(f'{"LDR" if operation == "LD" else "LDAR"} W{registers[operands[0]]},{at}')
        columns.append(code)
    height = max(len(c) for c in columns)
    rows = [' | '.join((c[i] if i < len(c) else '').ljust(16) for c in columns) + ' ;' for i in range(height)]
    end = re.sub(r'(\d):([abc])=', lambda m: f'{m[1]}:X{registers[m[2]]}=', bad)
    return '\n'.join([f'AArch64 {re.sub("[^a-z]+", "_", name)}', '{ ' + ' '.join(initial) + ' }',
                      ' | '.join(f'P{i}'.ljust(16) for i in range(len(threads))) + ' ;', *rows, f'exists ({end})', ''])


def is_reached(text, folder):
    path = os.path.join(folder, 'test.litmus')
    with open(path, 'w') as f:
        f.write(text)
    out = subprocess.run(os.environ.get('HERD7', 'herd7').split() + [path], capture_output=True, text=True)
    found = re.search(r'^Observation \S+ (Never|Sometimes|Always) ', out.stdout, re.M)
    if out.returncode or not found:
        raise RuntimeError(f'herd7: {out.stdout}{out.stderr}')
    return found[1] != 'Never', int(re.search(r'^States (\d+)', out.stdout, re.M)[1])


def main():
    if not shutil.which(os.environ.get('HERD7', 'herd7').split()[0]):
        print('1..0 # SKIP herd7 is not installed (package herdtools7; HERD7=COMMAND names another place)')
        return 0
    number = failed = 0
    with tempfile.TemporaryDirectory(prefix='softhca-litmus-') as folder:
        for name, place, threads, bad in PATTERNS:
            for missing, program in variants(threads):
                number += 1
                text = assemble(name, program, bad)
                try:
                    reached, states = is_reached(text, folder)
                    good = reached == bool(missing)
                    more = f'{states} states, the bad end is {"" if reached else "not "}reached'
                except RuntimeError as e:
                    good, more = False, str(e)
                failed += not good
                print(f'{"ok" if good else "not ok"} {number} - {name}{f" without {missing}, which has to fail" if missing else f" ({place})"}')
                print(''.join(f'# {line}\n' for line in (more if good else more + '\n' + text).splitlines()), end='', flush=True)
    print(f'1..{number}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
