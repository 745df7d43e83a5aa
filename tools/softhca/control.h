/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Asking a running process for something (published/control_request.h). */
#ifndef SOFTHCA_CONTROL_H
#define SOFTHCA_CONTROL_H

#include <stddef.h>
#include <sys/types.h>

#include "published/control_request.h"

/* file: a memfd that goes along, or -1. 0: done. More: done, and it lasts until this descriptor, the connection, is
 * closed. -1: refused, and why says for what reason: at once for a process that is stopped, or that has no QP to be
 * reached by; after three seconds for one that does not answer. */
int control_ask(pid_t pid, enum control_subject subject, int file, char *why, size_t size);

/* A request, which has no secret yet; and sending one. 0 or -errno. */
struct control_request control_request_of(enum control_subject subject);
int control_send(int socket, const struct control_request *request, int file);

#endif
