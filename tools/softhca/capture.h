/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca capture:
 *
 *   capture.c          options, and the loop
 *   capture_source.c   the processes that are captured, and their rings
 *   capture_file.c     the files that are written */
#ifndef SOFTHCA_CAPTURE_H
#define SOFTHCA_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "capture/cut.h"
#include "capture/ring.h"

struct capture_options {
    uint32_t snap; /* bytes of a frame; UINT32_MAX: all */
    uint32_t buffer;
    uint32_t qpns[CAPTURE_QPNS], qpn_count;
};

/* --- capture_file.c -------------------------------------------------------------------------------------- */

struct capture_files {
    const char *name;     /* "-": standard output */
    uint64_t size, count; /* a new file after so many bytes, 0: never; how many are kept, 0: all */
    FILE *file;           /* the present one */
    uint64_t number;      /* of the present one, from 1 */
    uint32_t interfaces;  /* in it */
};

/* 0, or -errno with a sentence on stderr. */
int capture_files_open(struct capture_files *files);
/* Is the present one large enough? */
bool capture_files_is_full(const struct capture_files *files);
/* The next one, in which sources have no interface yet. */
int capture_files_turn(struct capture_files *files);
bool capture_files_is_stdout(const struct capture_files *files);
int capture_files_close(struct capture_files *files);

/* --- capture_source.c ------------------------------------------------------------------------------------ */

/* A process that is captured. Its ring stays until the end, for its statistics. */
struct capture_source {
    enum { SOURCE_ASKED, SOURCE_CAPTURED, SOURCE_ENDED } state;
    int socket;    /* -1: ended */
    bool answered; /* it has said that it records */
    pid_t pid;
    struct capture_ring ring;
    int64_t clock_ahead; /* of our CLOCK_MONOTONIC: not 0 in another time namespace */
    char name[64];
    bool has_interface; /* in the present file: */
    uint32_t interface;
    uint64_t packets; /* in all files */
    /* The next record of the present look: */
    bool has_record;
    struct capture_record record;
    const uint8_t *payload;
    uint64_t time;           /* of the record; later, of the last one that was taken */
    uint64_t unfilled_since; /* 0: the next entry is filled in */
};

/* 0; -1 with a sentence on stderr. */
int source_attach(struct capture_source *source, pid_t pid, const struct capture_options *options);
/* The same for a process that has connected to our socket and waits. */
int source_offer(struct capture_source *source, int socket, const struct capture_options *options);
/* The socket is readable: the answer to the offer, or the process has gone. */
void source_ready(struct capture_source *source);
/* Makes record, payload and time the next ones, if there are any. Lowers *limit, up to which records have their
 * order, where the process is about to write an earlier one. */
void source_peek(struct capture_source *source, uint64_t *limit);
void source_next(struct capture_source *source);
/* Asks the process to stop recording; source_ready() follows when it has. */
void source_stop(struct capture_source *source);

#endif
