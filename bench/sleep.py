# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Programs that sleep: verbs_sleep and `ib_send_lat -e`, as root and as an ordinary user, against sockets with epoll.

verbs_sleep compares within one pair of processes, in blocks that take turns, so its ratio is what counts; `rounds` runs of it, and
the middle ratio of them, because the scheduler places the two processes anew in each.
"""

import os
import statistics

import contestants
import report
from contestants import Trouble

BLOCKS = 50
CONNECTIONS = 50
# What, options of verbs_sleep, environment, bar of the ratio to sockets.
PAIRS = (
    ('round trip, one CQ polled until empty', ('-e', 'drain'), {}, 1.0),
    ('round trip, one completion for each event', ('-e', 'single'), {}, 1.0),
    (f'request of {CONNECTIONS} connections to one server', ('-n', str(CONNECTIONS)), {}, 1.0),
    ('network path, polled until empty, to UDP', ('-e', 'drain', '-k', 'udp'), {'SOFTHCA_PATH': 'wire'}, 1.3),
    ('network path, one for each event, to UDP', ('-e', 'single', '-k', 'udp'), {'SOFTHCA_PATH': 'wire'}, 1.3),
)
SEND_LAT_BAR = 1.0


def as_user():
    return [os.path.join(contestants.TOP, 'scripts', 'as-user.sh')]


def users():
    """Root's figures only where we are root; an ordinary user's always."""
    return [('root', []), ('ordinary user', as_user())] if os.geteuid() == 0 else [('ordinary user', [])]


def verbs_sleep(bench, prefix, options, env, pinned):
    where = ('-c', ','.join(map(str, bench.cpus))) if pinned else ()
    argv = [*prefix, bench.tool('verbs_sleep'), *where, '-b', str(BLOCKS), *options]
    words = bench.single(argv, dict(bench.softhca('auto'), **env)).split()
    return {words[i]: float(words[i + 1]) for i in range(0, len(words) - 1, 2)}


def print_pair(what, who, pinned, runs, bar):
    ratio = statistics.median(run['ratio'] for run in runs)
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    held = ratio <= bar
    print(f'  {what}, {who}, {"pinned" if pinned else "not pinned"}: {report.figure(middle["rdma_us"])} us, sockets '
          f'{report.figure(middle["socket_us"])} us, ratio {ratio:.2f} (bar <= {bar}): {"pass" if held else "FAIL"}; threads went '
          f'to sleep {middle["client_sleeps"]:.2f} and {middle["server_sleeps"]:.2f} times a message, '
          f'{max(middle["client_empty"], middle["server_empty"]):.2f} events found nothing')
    return held


def send_lat(bench, prefix):
    who = contestants.Perftest(bench, 'send', 'auto')
    # pair() puts taskset in front: whoever is to be becomes so behind it.
    return who._rows([*prefix, 'ib_send_lat', '-e', '-F', '-x', '0', '-s', '64', '-n', '5000'])[4]


def measure(bench, rounds):
    """Returns whether the bars hold, and the record."""
    good, record = True, {}
    print(f'Programs that sleep: 64 bytes, medians of {BLOCKS} blocks of 100 exchanges, and of {rounds} runs of that')
    for who, prefix in users():
        one_way, latencies = [], []
        for what, options, env, bar in PAIRS:
            for pinned in (True, False):
                runs = [verbs_sleep(bench, prefix, options, env, pinned) for _ in range(rounds)]
                record[f'{what}, {who}, {pinned}'] = runs
                good &= print_pair(what, who, pinned, runs, bar)
                if options == PAIRS[0][1] and pinned:
                    one_way = [run['socket_us'] / 2 for run in runs]
        try:
            latencies = [send_lat(bench, prefix) for _ in range(rounds)]
        except Trouble as e:
            print(f'  ib_send_lat -e, {who}: FAIL ({e})')
            good = False
            continue
        ours, theirs = statistics.median(latencies), statistics.median(one_way)
        held = ours / theirs <= SEND_LAT_BAR
        good &= held
        record[f'ib_send_lat -e, {who}'] = latencies
        print(f'  ib_send_lat -e, typical, {who}, pinned: {report.figure(ours)} us, TCP one way {report.figure(theirs)} us, ratio '
              f'{ours / theirs:.2f} (bar <= {SEND_LAT_BAR}): {"pass" if held else "FAIL"}')
    print()
    return good, record
