/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The probes of softhca doctor. A probe performs the operation itself, in a child where it could do harm, and
 * fills in a finding. */
#ifndef SOFTHCA_DOCTOR_H
#define SOFTHCA_DOCTOR_H

#include <stdbool.h>

#include "mapped/mapped.h"

enum finding_state {
    FINDING_OK,      /* allowed */
    FINDING_LIMITED, /* SoftHCA works, but something is slower or missing */
    FINDING_BROKEN,  /* SoftHCA cannot work */
    FINDING_NOTE,    /* good to know */
};

struct finding {
    enum finding_state state;
    char reason[800]; /* what was found, and what it means; in lines */
    char remedy[320]; /* what to change; "" if nothing */
};

struct probe {
    const char *name;
    void (*run)(struct finding *ret);
};

extern const struct probe probes[];
extern const unsigned probe_count;

/* Whether memory of a program is mapped by its peers. */
struct mapping {
    enum mapped_reason unasked; /* of one that does not ask for it; MAPPED_YES of one that asks */
    bool in_calls;              /* only in calls of a program with one thread */
    struct mapped_means means;
};

/* doctor_environment.c: what all of it comes to. */
struct mapping look_at_mapping(bool asks);
void probe_environment(struct finding *ret);
void probe_pid_namespace(struct finding *ret);

/* doctor_probes.c. A process reads memory of another that is not its child: 0 or -errno. */
int sibling_reads(bool with_permission);
/* kernel.yama.ptrace_scope; -1: the kernel has no Yama. */
int yama_scope(void);
/* A number from /proc/self/status; 0 if it is not there. */
long own_status(const char *field);

void finding_set(struct finding *ret, enum finding_state state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void finding_remedy(struct finding *ret, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
