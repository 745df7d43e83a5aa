/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the memfd of a control request for faults holds (CONTROL_FAULTS in published/control_request.h): `softhca fault`
 * writes all but the answer, and the process writes the answer before it accepts or refuses.
 *
 * A format between processes of different builds: the version comes first, and values are only ever added. */
#ifndef PUBLISHED_FAULT_REQUEST_H
#define PUBLISHED_FAULT_REQUEST_H

#include <stdint.h>

#define FAULT_REQUEST_VERSION 1u
#define FAULT_SPECS_BYTES     8192u
#define FAULT_ANSWER_BYTES    16384u

enum fault_operation {
    FAULTS_LIST,  /* answer: a line for each fault that is loaded */
    FAULTS_ADD,   /* answer: lines that the user should know */
    FAULTS_CLEAR, /* answer: as FAULTS_LIST, of what is there no more */
};

struct fault_request {
    uint32_t version;
    uint32_t operation;              /* enum fault_operation */
    char specs[FAULT_SPECS_BYTES];   /* FAULTS_ADD: as in SOFTHCA_FAULT, ended by a NUL */
    char answer[FAULT_ANSWER_BYTES]; /* ended by a NUL */
};
_Static_assert(sizeof(struct fault_request) == 8 + 8192 + 16384, "a format between processes");

#endif
