# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Inside the guest: programs that connect, with our librdmacm at one end and the kernel's rdma_cm at the other."""

import re
import subprocess
import time

import cm
import guest
import judge
import pairs

CONNECTIONS = 200


def addresses(we_serve):
    return guest.OURS if we_serve else guest.KERNEL


def few(we_serve):
    address, _ = addresses(we_serve)
    return [cm.rping(address, count=3), cm.pair_of_examples('ucmatose', address, 'tcp', '-c', '3'),
            cm.pair_of_examples('udaddy', address, 'udp')]


def cmtime(address):
    port = pairs.free_port()
    return cm.Case(f'cmtime -c {CONNECTIONS} {address}', ['cmtime', '-p', str(port)],
                   ['cmtime', '-s', address, '-c', str(CONNECTIONS), '-p', str(port)], ('tcp', port), persistent=True,
                   says=(r'^connect +:', r'^disconnect +:'))


def rstream(address):
    port = pairs.free_port()
    common = ['rstream', '-p', str(port), '-S', '4096', '-C', '10', '-I', '20', '-T', 'v', '-T', 'r']
    return cm.Case(f'rstream {address}', common, common + ['-s', address], ('tcp', port), says=(r'^custom +4k +10 +20 ',))


def disturbed(we_serve):
    address, _ = addresses(we_serve)
    return [cm.rping(address, '-S', '5000', count=20), cm.pair_of_examples('ucmatose', address, 'tcp', '-c', '10', '-C', '20'),
            cm.perftest('ib_write_bw', address, size=65536, iterations=50), rstream(address), cmtime(address)]


def full(we_serve):
    both = addresses(we_serve)
    cases = [cm.rping(a) for a in both] + [cm.rping(a, '-q') for a in both]
    cases += [cm.pair_of_examples('ucmatose', a, 'tcp') for a in both]
    cases += [cm.pair_of_examples('udaddy', a, 'udp') for a in both]
    cases += [cm.pair_of_examples('ucmatose', both[0], 'tcp', '-m', '-c', '3'),
              cm.pair_of_examples('udaddy', both[0], 'udp', '-c', '5', '-C', '10', '-S', '1000')]
    cases += [cm.perftest(p, both[0], iterations=50) for p in ('ib_send_lat', 'ib_read_lat')]
    return cases + disturbed(we_serve)


def kernel_listens(port):
    done = subprocess.run(['rdma', 'resource', 'show', 'cm_id'], capture_output=True, text=True)
    return any('LISTEN' in line and re.search(rf':{port}\b', line) for line in done.stdout.splitlines())


def is_ready(case, server, we_serve):
    port_space, port = case.ready
    if not we_serve:
        return kernel_listens(port)
    return cm.holds(port_space, port, f'/proc/{server.pid}/net/unix')


# perftest closes its listener and opens it again between its two connections; the kernel refuses who comes meanwhile, and
# the client, which does not try again, ends in an id that it has destroyed.
TOO_EARLY = 'RDMA_CM_EVENT_REJECTED; error: 8'


def run(hosts, case, we_serve):
    for attempts_left in range(4, -1, -1):
        try:
            return run_once(hosts, case, we_serve)
        except pairs.Failure as e:
            if we_serve or not attempts_left or not any(TOO_EARLY in note for note in e.notes):
                raise


def run_once(hosts, case, we_serve):
    """Both ends to their exit. Raises pairs.Failure."""
    near, far = (hosts.ours, hosts.kernel) if we_serve else (hosts.kernel, hosts.ours)
    server = client = None
    deadline = time.monotonic() + case.limit
    try:
        server = pairs.Side(near, case.server, env=case.env, prefix=guest.THERE if we_serve else ())
        while not is_ready(case, server, we_serve):
            if server.p.poll() is not None:
                raise pairs.Failure(f'server ended before it listened, status {server.p.returncode}')
            if time.monotonic() > deadline:
                raise pairs.Failure(f'server did not listen within {case.limit} s')
            time.sleep(0.05)
        client = pairs.Side(far, case.client, env=case.env, prefix=() if we_serve else guest.THERE)
        for name, side in ('client', client), ('server', server):
            if side is server and case.persistent:
                server.kill()
            elif (status := side.wait(deadline)) != 0:
                raise pairs.Failure(f'{name} exit status {status}' if status is not None
                                    else f'{name} not done within {case.limit} s')
        cm.judge_case(case, server.text(), client.text())
    except pairs.Failure as e:
        for name, side in ('server', server), ('client', client):
            if side:
                side.kill()
                e.note(f'{name}: {" ".join(map(str, side.p.args))}\n{side.text()}')
        raise
    finally:
        for side in server, client:
            if side:
                side.kill()
                side.out.close()
