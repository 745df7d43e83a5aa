#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The lines of docs/running.md for sudo, service managers, debuggers and sanitizers; prints TAP. As root, programs run as an
ordinary user, but for those of sudo and of a service manager."""

import os
import re
import shutil
import subprocess
import sys
import time

import pairs
import special

# Asks for a device, makes what a program has, and destroys it.
PROGRAM = '''
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    char *memory = malloc(4096);
    struct ibv_mr *mr = pd ? ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE) : NULL;

    if (!mr || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
        return 1;
    printf("all was right on %s\\n", ibv_get_device_name(devices[0]));
    ibv_free_device_list(devices);
    free(memory);
#ifdef OVERRUN
    /* Found by the sanitizer, or by valgrind, and not hidden by what is preloaded. */
    printf("%d\\n", memory[OVERRUN]);
#endif
    return ibv_close_device(context) ? 1 : 0;
}
'''
RIGHT = 'all was right on softhca0'


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            raise pairs.Skip(f'{program} is not installed')


def built(folder, compiler, *options):
    needs(compiler)
    path = os.path.join(folder, '-'.join([compiler, *options]).replace('=', '-'))
    source = os.path.join(folder, 'program.c')
    with open(source, 'w', encoding='ascii') as file:
        file.write(PROGRAM)
    done = subprocess.run([compiler, '-g', '-o', path, *options, source, '-libverbs'], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise pairs.Skip(f'{compiler} {" ".join(options)} does not build here: ' + ' '.join(done.stderr.split())[-200:])
    return path


def says(text, wanted):
    if not re.search(wanted, text):
        raise pairs.Failure(f'it does not say {wanted!r}: {text}')


def plain(argv, **env):
    """As whoever runs this, with nothing in the environment but what is given."""
    done = subprocess.run(argv, env={'PATH': os.environ['PATH'], **env}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=120)
    return done.stdout + done.stderr


def service(host, folder):
    """What a service manager starts has no environment."""
    program = built(folder, 'gcc')
    done = subprocess.run(host.argv([program], 'run'), env={}, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    says(done.stdout + done.stderr, RIGHT)


def sudo(host, folder):
    needs('sudo')
    program = built(folder, 'gcc')
    text = plain(['sudo', '-n', 'true'])
    if text:
        raise pairs.Skip('sudo asks for a password, or may not be used: ' + ' '.join(text.split()))
    says(plain(['sudo', '-n', *host.argv([program], 'run')]), RIGHT)


def sanitized(compiler, name):
    def case(host, folder):
        env = {'ASAN_OPTIONS': 'detect_leaks=1'} if name == 'address' else {}
        says(special.output(host, [built(folder, compiler, f'-fsanitize={name}')], launch='run', env=env, limit=60), RIGHT)
    return case


def finds(compiler):
    """The sanitizer does its work."""
    def case(host, folder):
        program = built(folder, compiler, '-fsanitize=address', '-DOVERRUN=8')
        side = pairs.Side(host, [program], launch='run')
        try:
            status = side.wait(time.monotonic() + 60)
            says(side.text(), 'heap-use-after-free')
            if status == 0:
                raise pairs.Failure('the sanitizer did not end the program')
        finally:
            side.kill()
            side.out.close()
    return case


def gdb(host, folder):
    needs('gdb')
    wrapper = f'set exec-wrapper {host.softhca} run --'
    text = special.output(host, ['gdb', '-nx', '-batch', '-ex', wrapper, '-ex', 'break ibv_dereg_mr', '-ex', 'run', '-ex', 'backtrace',
                                 '-ex', 'continue', '--args', built(folder, 'gcc')], limit=120)
    says(text, r'(?s)ibv_dereg_mr.*in main.*' + RIGHT)


def valgrind(host, folder):
    needs('valgrind')
    text = special.output(host, ['valgrind', '--error-exitcode=9', built(folder, 'gcc')], launch='run', limit=120)
    says(text, '(?s)' + RIGHT + '.*ERROR SUMMARY: 0 errors')


CASES = [('sudo softhca run -- PROGRAM', sudo), ('a service without an environment', service),
         ('gdb with softhca run as its exec-wrapper', gdb), ('softhca run -- valgrind PROGRAM', valgrind)]
for which in 'gcc', 'clang':
    CASES += [(f'{which} -fsanitize={kind}', sanitized(which, kind)) for kind in ('address', 'undefined', 'thread')]
    CASES.append((f'{which} -fsanitize=address finds what is wrong', finds(which)))


if __name__ == '__main__':
    sys.exit(pairs.run_cases(__doc__, CASES, 'places', 0o755))
