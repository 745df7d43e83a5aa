/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What this process keeps on behalf of other users: of each thing so many together, and per uid as much as is still
 * free. One user can thus take half, two can take a third each, and something is left for the next one, however much
 * they ask for. (The rule is that of switches with shared memory: Choudhury and Hahne, "Dynamic queue length
 * thresholds for shared-memory packet switches", with the factor 1.)
 *
 * What processes of our own user hold is not counted in it: they may do more to this process anyway (SECURITY.md).
 * Things that are charged one by one are counted for them apart, because a fault of one of them must be bounded,
 * too. */
#ifndef BASE_BUDGET_H
#define BASE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/log.h"

struct budget {
    const char *what;     /* for the message: "file descriptors" */
    const char *advice;   /* a sentence: what to do if honest programs need more */
    struct lock lock;     /* a leaf; guards all below */
    struct list users;    /* those who hold something */
    uint32_t used;        /* by all of them */
    _Atomic uint32_t own; /* things that are charged to our own user; without the lock */
    struct log_once refused;
};

#define BUDGET_INIT(name, what_, advice_)                                                                    \
    {                                                                                                        \
        .what = (what_), .advice = (advice_), .lock = LOCK_INIT, .users = { &(name).users, &(name).users }   \
    }

/* Takes so much for that user, out of `limit` for all other users together. False: the user may hold no more now, which
 * is logged once per user. */
bool budget_take(struct budget *budget, uid_t uid, uint32_t amount, uint32_t limit);
/* Exactly what was taken, in parts or at once. */
void budget_return(struct budget *budget, uid_t uid, uint32_t amount);
/* All that was taken is returned. For what is counted per time. */
void budget_return_all(struct budget *budget);
/* In a forked child, which holds nothing. */
void budget_after_fork_in_child(struct budget *budget);

/* Whom a thing is charged to. All zero: to nobody. */
struct charge {
    enum charge_kind { CHARGE_NONE, CHARGE_OWN, CHARGE_OTHER } kind;
    uid_t uid; /* CHARGE_OTHER */
};

/* Charges one thing to that user: to another one as budget_take() does, to our own as long as it has fewer than `limit`
 * of them. False: there are too many, and nothing is charged. */
bool budget_charge(struct budget *budget, uid_t uid, uint32_t limit, struct charge *ret_charge);
/* To our own user. */
bool budget_charge_own(struct budget *budget, uint32_t limit, struct charge *ret_charge);
/* Also of a thing that is charged to nobody, as it is afterwards. */
void budget_discharge(struct budget *budget, struct charge *charge);

/* The descriptors of this process that all users but its own may cause together: links, connections to the owner of UDP
 * port 4791, multicast groups. Half of RLIMIT_NOFILE. */
bool budget_take_descriptors(uid_t uid, uint32_t count);
void budget_return_descriptors(uid_t uid, uint32_t count);
void budget_descriptors_after_fork_in_child(void);

#endif
