/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How softhca becomes a program: its environment, and exec. */
#ifndef SOFTHCA_LAUNCH_H
#define SOFTHCA_LAUNCH_H

/* As env(1) and nohup(1) exit. */
enum { EXIT_OURS = 125, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* 0, or -errno with a sentence on stderr. */
int launch_set(const char *name, const char *value);
/* first:rest, unless first is there already (softhca run inside softhca run). */
int launch_set_in_front(const char *name, const char *first);
/* Returns only if it cannot: the exit status, with a sentence on stderr. */
int launch(char **program);

#endif
