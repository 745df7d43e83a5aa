/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What this process claims: the packets for its QPN blocks. Which of them the port owner has been told of, and
 * which have their packets come here by now. The helper thread makes it so; any thread claims and asks. */
#include <errno.h>
#include <stdlib.h>

#include "udp/control_message.h"
#include "udp/internal.h"

struct claim {
    uint32_t block;
    int proof;
    uint32_t serial; /* of the control message that declared it to the port owner of now; 0: none did */
};

static _Atomic uint64_t served[65536 / 64]; /* bits by block: claims that hold */

static struct lock claims_lock = LOCK_INIT; /* guards these */
static struct claim *claims;
static unsigned claim_count, claim_room;

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
    if (!known && claim_count == claim_room) {
        unsigned room = claim_room ? 2 * claim_room : 8;
        struct claim *more = realloc(claims, room * sizeof(*more));

        if (more) {
            claims = more;
            claim_room = room;
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

bool claims_update(bool is_member, bool is_port_owner, uint32_t acknowledged)
{
    bool missing = false;

    lock_acquire(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++) {
        struct claim *claim = &claims[i];
        bool held = is_member && shards_hold(claim->block % UDP_SHARDS, true);
        bool told = is_port_owner || (claim->serial && (int32_t)(acknowledged - claim->serial) >= 0);

        missing |= !held;
        set_served(claim->block, held || told);
    }
    lock_release(&claims_lock);
    return missing;
}

void claims_after_fork_in_child(void)
{
    lock_init(&claims_lock);
    for (unsigned i = 0; i < claim_count; i++)
        set_served(claims[i].block, false);
    claims = NULL; /* lost: somebody may have been enlarging it */
    claim_count = claim_room = 0;
}
