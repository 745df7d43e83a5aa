/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Runs a command under a seccomp filter that refuses the named system calls. */
#include "filter.h"

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: bench_filtered NAME[,NAME...] COMMAND [ARG...]\n", stderr);
        return 2;
    }
    filter_install(argv[1]);
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
