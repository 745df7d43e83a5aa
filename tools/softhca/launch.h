/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How softhca becomes a program: its environment, and exec. */
#ifndef SOFTHCA_LAUNCH_H
#define SOFTHCA_LAUNCH_H

#include <argp.h>
#include <stdbool.h>

/* As env(1) and nohup(1) exit. */
enum { EXIT_OURS = 125, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* What softhca run and watch have in common. */
enum { LAUNCH_EXPLAIN = 256, LAUNCH_ALL, LAUNCH_KEYS };
struct launch_options {
    const char *explain; /* text, json or off; NULL: as the environment says */
    bool all;
    char **program;
};
error_t launch_parse(int key, char *argument, struct argp_state *state, struct launch_options *options);

/* 0, or -errno with a sentence on stderr. */
int launch_set(const char *name, const char *value);
/* The value, else what is set already, else the last one. */
int launch_set_or_keep(const char *name, const char *value, const char *otherwise);
/* first:rest, unless first is there already (softhca run inside softhca run). */
int launch_set_in_front(const char *name, const char *first);
/* Returns only if it cannot: the exit status, with a sentence on stderr. */
int launch(char **program);

#endif
