/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of a program at b, which it has registered and lends to its peer, a. */
#ifndef TESTS_BEHAVIOUR_LENT_H
#define TESTS_BEHAVIOUR_LENT_H

#include "work.h"

enum {
    PAGE = 4096, /* or a part of one */
    LENGTH = 64 * PAGE,
    RIGHTS =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

/* Memory of a program and its registration; pointers mean something only where it is. */
struct lent {
    bool (*make)(struct lent *lent); /* false: this machine has none, and why */
    void (*change)(struct lent *lent);
    uint8_t *at;
    struct ibv_mr *mr;
    uint32_t lkey, rkey;
    bool switched; /* peers map it, where this machine and the path allow that */
    bool replaced;
    char why_not[120];
};

/* Anonymous memory, to .make; also how other kinds begin. */
bool private_memory(struct lent *lent);
uint8_t *map_at(void *at, size_t length, int flags, int fd); /* NULL: errno */

/* Connected, with the memory registered at b. *ret_to: what requests name. */
void lend(struct pair *p, struct lent *lent, struct end *ret_to);

/* To be called at b. */
void register_here(struct end *end, void *arg);
void deregister_here(struct end *end, void *arg);

/* The whole of it, by requests of a. */
void peer_writes(struct pair *p, struct end *to, uint64_t seed);
void peer_reads(struct pair *p, struct end *to, uint64_t seed);

#endif
