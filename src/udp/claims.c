/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The claims of this process: QPN blocks whose packets have to arrive here. Records which claims have been
 * declared to the port owner and which are served. Any thread adds claims and reads `served`; the helper thread
 * declares and serves them. */
#include <errno.h>
#include <stdlib.h>

#include "udp/control_message.h"
#include "udp/internal.h"

struct claim {
    uint32_t block;
    int proof;
    uint32_t serial; /* of the control message that declared it to the current port owner; 0: not declared */
};

/* Bitmap by block: packets arrive here. Released by set_served(), acquired by udp_serves(). */
static _Atomic uint64_t served[65536 / 64];

static struct lock claims_lock = LOCK_INIT; /* guards claims, claim_count, claim_capacity */
static struct claim *claims;
static unsigned claim_count, claim_capacity;

bool udp_serves(uint32_t block)
{
    return atomic_load_explicit(&served[block / 64], memory_order_acquire) >> (block % 64) & 1;
}

static void set_served(uint32_t block, bool is_served)
{
    uint64_t bit = 1ull << (block % 64);

    if (is_served)
        atomic_fetch_or_explicit(&served[block / 64], bit, memory_order_release);
    else
        atomic_fetch_and_explicit(&served[block / 64], ~bit, memory_order_release);
}

int claims_add(uint32_t block, int proof)
{
    bool known = false;
    int error = 0;

    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count && !known; i++)
        known = claims[i].block == block;
    if (!known && claim_count == claim_capacity) {
        unsigned capacity = claim_capacity ? 2 * claim_capacity : 8;
        struct claim *more = realloc(claims, capacity * sizeof(*more));

        if (more) {
            claims = more;
            claim_capacity = capacity;
        } else {
            error = -ENOMEM;
        }
    }
    if (!known && !error)
        claims[claim_count++] = (struct claim){.block = block, .proof = proof};
    lock_release(&claims_lock);
    return error;
}

bool claims_exist(void)
{
    bool there;

    lock_acquire(&claims_lock);
    there = claim_count > 0;
    lock_release(&claims_lock);
    return there;
}

bool claims_declare(struct udp_message *message, int *ret_proofs)
{
    bool more = false;

    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++) {
        if (claims[i].serial)
            continue;
        if (message->block_count == UDP_MESSAGE_BLOCKS) {
            more = true;
            break;
        }
        ret_proofs[message->block_count] = claims[i].proof;
        message->blocks[message->block_count++] = (uint16_t)claims[i].block;
        claims[i].serial = message->serial;
    }
    lock_release(&claims_lock);
    return more;
}

void claims_forget_declarations(void)
{
    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++)
        claims[i].serial = 0;
    lock_release(&claims_lock);
}

void claims_take_back(uint32_t serial)
{
    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++) {
        if (claims[i].serial == serial)
            claims[i].serial = 0;
    }
    lock_release(&claims_lock);
}

bool claims_update(bool is_member, bool is_port_owner, uint32_t acknowledged)
{
    bool missing = false;

    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++) {
        struct claim *claim = &claims[i];
        bool is_held = is_member && shards_acquire(claim->block % UDP_SHARDS, true);
        bool is_declared = is_port_owner || (claim->serial && (int32_t)(acknowledged - claim->serial) >= 0);

        missing |= !is_held;
        set_served(claim->block, is_held || is_declared);
    }
    lock_release(&claims_lock);
    return missing;
}

void claims_after_fork_in_child(void)
{
    lock_init(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++)
        set_served(claims[i].block, false);
    claims = NULL; /* leaked: another thread may have been in realloc() at the fork */
    claim_count = claim_capacity = 0;
}
