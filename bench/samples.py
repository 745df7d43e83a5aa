# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Figures of contestants, and what became of those that gave none."""

import statistics
import sys

from contestants import Trouble


class Samples:
    """(contestant, metric, size) → list of figures."""

    def __init__(self):
        self.of = {}
        self.trouble = {}

    def take(self, who, metric, size):
        """Was there a figure?"""
        if who.name in self.trouble.get(metric, {}):
            return False
        try:
            value = getattr(who, metric)(size)
        except (Trouble, FileNotFoundError, ValueError) as e:
            self.trouble.setdefault(metric, {})[who.name] = str(e)
            print(f'bench: {who.name}: {e}', file=sys.stderr, flush=True)
            return False
        if value is not None:
            self.of.setdefault((who.name, metric, size), []).append(value)
        return value is not None

    def median(self, name, metric, size):
        got = self.of.get((name, metric, size))
        return statistics.median(got) if got else None

    def best(self, name, metric, size):
        got = self.of.get((name, metric, size))
        return (max if metric == 'rate' else min)(got) if got else None

    def gbps(self, name, size):
        rate = self.median(name, 'rate', size)
        return None if rate is None else rate * size / 1e9

    def mmps(self, name, size):
        rate = self.median(name, 'rate', size)
        return None if rate is None else rate / 1e6
