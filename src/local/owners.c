/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who owns a block of QP numbers, and so who speaks for them. The name of the block belongs to one process at a time; a
 * connection to it is closed at once, and the kernel has said by then who listens (peer_identity()).
 *
 * The answer is kept as long as the link: a process owns its blocks until it ends. But another user's process can close
 * its listeners and go on, so its answers are kept for OWNED_FOR, and each user causes so many questions at most. */
#include "local/owners.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/budget.h"
#include "base/sys.h"
#include "local/block_names.h"
#include "local/handshake_message.h"
#include "local/names.h"

#define BLOCKS         65536u
#define OWNED_FOR      NS_PER_S
#define QUESTIONS_EACH NS_PER_S
#define QUESTIONS      2048u /* for all other users in that time; one user gets half (base/budget.c) */

static struct budget questions =
    BUDGET_INIT(questions, "look-ups of the owner of a QP number answered in this second",
                "The processes of that user send from very many QP numbers, or from ones "
                "that they do not own: look at those programs");
static _Atomic ns_t questions_since;

void owners_after_fork_in_child(void)
{
    budget_after_fork_in_child(&questions);
}

/* Without a system call, and exact to some milliseconds. */
static ns_t coarse_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (ns_t)now.tv_sec * NS_PER_S + (ns_t)now.tv_nsec;
}

/* --- what is known ---------------------------------------------------------------------------------------- */

bool link_owns_for_good(const struct link *link)
{
    return !link->is_of_other_user;
}

/* Concurrent threads may forget what has just been noted, and ask again. */
static void forget_old(struct link *link, _Atomic uint64_t *owned)
{
    ns_t now = coarse_now();

    if (now - atomic_load_explicit(&link->owned_since, memory_order_relaxed) < OWNED_FOR)
        return;
    atomic_store_explicit(&link->owned_since, now, memory_order_relaxed);
    for (unsigned i = 0; i < BLOCKS / 64; i++)
        atomic_store_explicit(&owned[i], 0, memory_order_relaxed);
}

static bool is_known_to_own(struct link *link, uint32_t block)
{
    _Atomic uint64_t *owned = atomic_load_explicit(&link->owned, memory_order_acquire);

    if (!owned)
        return false;
    if (unlikely(link->is_of_other_user))
        forget_old(link, owned);
    block = segment_request_named_block(block); /* all blocks of an area have one owner */
    return atomic_load_explicit(&owned[block / 64], memory_order_relaxed) >> block % 64 & 1;
}

/* Without memory nothing is noted, and the next packet asks again. */
void owners_note(struct link *link, uint32_t block)
{
    _Atomic uint64_t *owned = atomic_load_explicit(&link->owned, memory_order_acquire), *made;

    if (!owned) {
        made = calloc(BLOCKS / 64, sizeof(*made));
        if (!made)
            return;
        atomic_store_explicit(&link->owned_since, coarse_now(), memory_order_relaxed);
        if (atomic_compare_exchange_strong_explicit(&link->owned, &owned, made, memory_order_acq_rel,
                                                    memory_order_acquire))
            owned = made;
        else
            free(made);
    }
    block = segment_request_named_block(block);
    atomic_fetch_or_explicit(&owned[block / 64], 1ull << block % 64, memory_order_relaxed);
}

/* --- questions -------------------------------------------------------------------------------------------- */

static bool may_ask(const struct link *link)
{
    ns_t now, since = atomic_load_explicit(&questions_since, memory_order_relaxed);

    if (!link->is_of_other_user)
        return true;
    now = coarse_now();
    if (now - since >= QUESTIONS_EACH &&
        atomic_compare_exchange_strong_explicit(&questions_since, &since, now, memory_order_relaxed,
                                                memory_order_relaxed))
        budget_return_all(&questions);
    return budget_take(&questions, link->peer_uid, 1, QUESTIONS);
}

/* Nobody owns the block. What a process wrote before it ended is read after its names are free. In our own user's
 * processes that is believed at any time, because a process closes its descriptors one after the other. */
static bool may_be_last_words(const struct link *link)
{
    return !link->is_of_other_user || !link_peer_is_there(link);
}

/* Is the process that listens at the other end that of the link? 1, 0, or -errno: the kernel does not say now. */
static int is_peer(const struct link *link, int fd)
{
    struct ucred holder;

    if (identity_is_for_good(link->identity)) {
        uint64_t identity;
        int error = peer_identity(fd, &identity);

        return error ? error : identity == link->identity;
    }
    if (!peer_credentials(fd, &holder))
        return -errno;
    /* A number, which is not used again while the process is there; of all whom we do not see, only the user is
     * known. */
    return link->identity ? process_identity(-1, holder.pid) == link->identity && link_peer_is_there(link)
                          : !holder.pid && holder.uid == link->peer_uid;
}

static bool ask(struct link *link, uint32_t block)
{
    char text[LOCAL_BLOCK_NAME_MAX + 1];
    int fd, answer;

    block_name_of(block, link->peer_uid, text);
    fd = names_connect(text);
    if (fd == -ECONNREFUSED)
        return may_be_last_words(link);
    answer = fd < 0 ? fd : is_peer(link, fd);
    fd_close(fd);
    if (answer > 0)
        owners_note(link, block);
    /* Not answered: the listener's backlog is full (EAGAIN) while many processes meet, or we lack descriptors or
     * memory. What is refused then is lost, and our own user's processes could as well trace us. */
    return answer < 0 ? !link->is_of_other_user : answer;
}

struct link *local_known_owner(uint32_t block)
{
    struct link *link = link_table_get(block);

    return link && (!link->is_of_other_user || local_is_owner(link, block)) ? link : NULL;
}

bool local_is_owner(struct link *link, uint32_t block)
{
    struct link *owner;
    int saved = errno;
    bool is_owner;

    if (likely(is_known_to_own(link, block)))
        return true;
    owner = link_table_get(block);
    if (link->is_self)
        return owner == link;
    if (!block || block > BLOCKS_LAST)
        return false; /* those have no owner */
    if (owner && !owner->is_of_other_user)
        return owner->process == link->process;
    if (!may_ask(link))
        return false;
    is_owner = ask(link, block);
    /* The table may lead to a process that has given up the block. */
    if (is_owner && owner && owner->process != link->process)
        link_table_clear(block, owner);
    errno = saved;
    return is_owner;
}
