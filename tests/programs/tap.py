# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Results as lines of TAP."""

import sys
import time


def result(number, name, began, failure=None, *, skip=None, out=None, slow=5):
    """began: by time.monotonic(). What took longer than slow seconds is told with its time, and so is a failure with its notes."""
    out = out or sys.stdout
    took = time.monotonic() - began
    print(f'{"not ok" if failure else "ok"} {number} - {name.replace("#", " ")}' + (f' # SKIP {skip}' if skip else ''), file=out)
    if failure or took > slow:
        print(f'# {took:.1f} s', file=out)
    if failure:
        for line in [str(failure), *getattr(failure, 'notes', [])]:
            for part in line.rstrip().splitlines():
                print(f'#   {part}', file=out)
    out.flush()
