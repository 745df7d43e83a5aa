/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The control request: a tool asks a running process to do something for it, and passes a memfd with what that takes.
 *
 * The tool connects to the socket name of one of the process's QPN blocks (published/segment_request.h) and sends a
 * struct control_request with the descriptor. The helper thread decides, and answers with a struct control_answer. A
 * request is accepted from whoever has read the published segment, which is whom the kernel would let trace the
 * process: the tool quotes segment_header.instance. What the memfd holds is the subject's own format; the process
 * checks it as it checks any file of another process (base/memory_file.h).
 *
 * Some subjects last: the connection then stays open, and what was asked for ends when either end closes it, by
 * whatever death. The others end with the answer.
 *
 * Both are formats between processes of different builds: magic, version and type lie where a handshake message has
 * them. */
#ifndef PUBLISHED_CONTROL_REQUEST_H
#define PUBLISHED_CONTROL_REQUEST_H

#include <stdint.h>

#include "published/segment_request.h"

#define CONTROL_REQUEST_TYPE 5u
#define CONTROL_SECRET_BYTES 16
#define CONTROL_WHY_MAX      176

/* Values are only ever added. */
enum control_subject {
    CONTROL_CAPTURE = 1, /* lasts; the memfd is the capture ring */
    CONTROL_FAULTS = 2,  /* the memfd holds rules of faults */
};

enum control_result {
    CONTROL_REQUESTED,
    CONTROL_ACCEPTED, /* done, and the connection ends */
    CONTROL_ATTACHED, /* done, and lasts as long as the connection */
    CONTROL_REFUSED,
};

struct control_request {
    uint32_t magic;         /* SEGMENT_REQUEST_MAGIC */
    uint16_t version, type; /* SEGMENT_REQUEST_VERSION, CONTROL_REQUEST_TYPE */
    uint32_t result;        /* CONTROL_REQUESTED */
    uint32_t subject;       /* enum control_subject */
    uint8_t secret[CONTROL_SECRET_BYTES];
    uint32_t reserved[8];
};
_Static_assert(sizeof(struct control_request) == sizeof(struct segment_request),
               "they come on the same socket");

struct control_answer {
    uint32_t magic;
    uint16_t version, type;
    uint32_t result; /* enum control_result */
    uint32_t subject;
    char why[CONTROL_WHY_MAX]; /* CONTROL_REFUSED: one sentence without a full stop, ended by a NUL */
};
_Static_assert(sizeof(struct control_answer) == 192, "a format between processes");

#endif
