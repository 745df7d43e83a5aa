/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names of blocks of QP numbers. A block has one name, which any user can take, and a user can take all there are. So
 * blocks of shard 0 are kept for that case: their names end with the uid of their owner, and mean nothing if another
 * user listens there. Of two users with the same block, a process finds that of its own user. */
#ifndef LOCAL_BLOCK_NAMES_H
#define LOCAL_BLOCK_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "local/local.h"

/* Shard 0: a name with a uid. */
static inline bool block_is_of_user(uint32_t block)
{
    return block % LOCAL_SHARDS == 0;
}

/* The name, without NAME_PREFIX, of the block if it belongs to that user. */
void block_name_of(uint32_t block, uid_t uid, char ret_text[LOCAL_BLOCK_NAME_MAX + 1]);
/* True if the name is good only if that user listens there. */
bool block_name_uid(const char *text, uid_t *ret_uid);
/* Calls visit for each block of which there is a name with a uid, whoever listens there. None are reported for a tenth
 * of a second after there were none. */
void block_names_of_users(void (*visit)(uint32_t block, uid_t uid, void *argument), void *argument);

#endif
