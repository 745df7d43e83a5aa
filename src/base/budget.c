/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/budget.h"

#include <stdlib.h>

#include "base/fd.h"
#include "base/types.h"
#include "base/user.h"

struct budget_user {
    struct list node;
    uid_t uid;
    uint32_t used;
};

/* budget->lock held. */
static struct budget_user *find(struct budget *budget, uid_t uid)
{
    list_for_each (node, &budget->users) {
        struct budget_user *user = list_entry(node, struct budget_user, node);

        if (user->uid == uid)
            return user;
    }
    return NULL;
}

/* budget->lock held. */
static struct budget_user *find_or_add(struct budget *budget, uid_t uid)
{
    struct budget_user *user = find(budget, uid);

    if (user)
        return user;
    user = calloc(1, sizeof(*user));
    if (!user)
        return NULL;
    user->uid = uid;
    list_push_back(&budget->users, &user->node);
    return user;
}

/* budget->lock held. */
static void forget_if_idle(struct budget_user *user)
{
    if (user->used)
        return;
    list_remove(&user->node);
    free(user);
}

/* budget->lock held. */
static void complain(struct budget *budget, uid_t uid, uint32_t used, uint32_t limit)
{
    uint64_t unlogged;

    if (log_first(&budget->refused, (uint64_t)uid + 1, &unlogged))
        log_warn("limit per user reached: uid %u has %u %s, other users have %u, and this process allows %u "
                 "in all. One user may have at most as many as are then left free, so further ones of uid %u "
                 "are refused. %s",
                 (unsigned)uid, used, budget->what, budget->used - used, limit, (unsigned)uid,
                 budget->advice);
}

bool budget_take(struct budget *budget, uid_t uid, uint32_t amount, uint32_t limit)
{
    struct budget_user *user;
    bool may = false;

    lock_acquire(&budget->lock);
    user = find_or_add(budget, uid);
    if (user) {
        /* In 64 bits: nobody can wrap a sum. */
        may = (uint64_t)user->used + budget->used + amount <= limit;
        if (may) {
            user->used += amount;
            budget->used += amount;
        } else {
            complain(budget, uid, user->used, limit);
        }
        forget_if_idle(user);
    }
    lock_release(&budget->lock);
    return may;
}

void budget_return(struct budget *budget, uid_t uid, uint32_t amount)
{
    struct budget_user *user;

    lock_acquire(&budget->lock);
    user = find(budget, uid);
    if (user) { /* else: it was taken before a fork */
        amount = min_of(amount, user->used);
        user->used -= amount;
        budget->used -= amount;
        forget_if_idle(user);
    }
    lock_release(&budget->lock);
}

void budget_return_all(struct budget *budget)
{
    lock_acquire(&budget->lock);
    list_for_each_safe (node, following, &budget->users) {
        struct budget_user *user = list_entry(node, struct budget_user, node);

        user->used = 0;
        forget_if_idle(user);
    }
    budget->used = 0;
    lock_release(&budget->lock);
}

void budget_after_fork_in_child(struct budget *budget)
{
    lock_init(&budget->lock);
    list_init(&budget->users); /* leaked: another thread may have been changing the list at the fork */
    budget->used = 0;
    atomic_store_explicit(&budget->own, 0, memory_order_relaxed);
}

/* --- things ---------------------------------------------------------------------------------------------- */

bool budget_charge_own(struct budget *budget, uint32_t limit, struct charge *ret_charge)
{
    if (atomic_fetch_add_explicit(&budget->own, 1, memory_order_relaxed) < limit) {
        ret_charge->kind = CHARGE_OWN;
        return true;
    }
    atomic_fetch_sub_explicit(&budget->own, 1, memory_order_relaxed);
    return false;
}

bool budget_charge(struct budget *budget, uid_t uid, uint32_t limit, struct charge *ret_charge)
{
    if (user_is_own(uid))
        return budget_charge_own(budget, limit, ret_charge);
    if (!budget_take(budget, uid, 1, limit))
        return false;
    *ret_charge = (struct charge){CHARGE_OTHER, uid};
    return true;
}

void budget_discharge(struct budget *budget, struct charge *charge)
{
    if (charge->kind == CHARGE_OTHER)
        budget_return(budget, charge->uid, 1);
    else if (charge->kind == CHARGE_OWN)
        atomic_fetch_sub_explicit(&budget->own, 1, memory_order_relaxed);
    charge->kind = CHARGE_NONE;
}

/* --- descriptors ----------------------------------------------------------------------------------------- */

static struct budget descriptors = BUDGET_INIT(descriptors, "file descriptors of this process",
                                               "The limit is half of RLIMIT_NOFILE: raise it (ulimit -n)");

bool budget_take_descriptors(uid_t uid, uint32_t count)
{
    return budget_take(&descriptors, uid, count, fd_limit() / 2);
}

void budget_return_descriptors(uid_t uid, uint32_t count)
{
    budget_return(&descriptors, uid, count);
}

void budget_descriptors_after_fork_in_child(void)
{
    budget_after_fork_in_child(&descriptors);
}
