/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The probes of softhca doctor. A probe performs the operation itself, in a child where it could do harm, and
 * fills in a finding. */
#ifndef SOFTHCA_DOCTOR_H
#define SOFTHCA_DOCTOR_H

enum finding_state {
    FINDING_OK,      /* allowed */
    FINDING_LIMITED, /* SoftHCA works, but something is slower or missing */
    FINDING_BROKEN,  /* SoftHCA cannot work */
    FINDING_NOTE,    /* good to know */
};

struct finding {
    enum finding_state state;
    char reason[256]; /* what was found, and what it means */
    char remedy[256]; /* what to change; "" if nothing */
};

struct probe {
    const char *name;
    void (*run)(struct finding *ret);
};

extern const struct probe probes[];
extern const unsigned probe_count;

void finding_set(struct finding *ret, enum finding_state state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void finding_remedy(struct finding *ret, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
