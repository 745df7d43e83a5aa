/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What threads have asked the helper thread to look for: owners of blocks (local_resolve(),
 * local_discover_peers()) and holders of names (local_name_search()). */
#ifndef LOCAL_LOOKUPS_H
#define LOCAL_LOOKUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "local/local.h"

/* A search for the holder of a name. */
struct name_search {
    struct list node;
    uint64_t cookie;
    char text[LOCAL_NAME_MAX + 1];
};

/* Asks for a block. Any thread. */
void requests_want(uint32_t block);
/* The rest is the helper thread's. Begins what was asked for, as far as there is room
 * (handshake_can_begin()). */
void requests_begin(void);
/* Is something left to begin? */
bool requests_any(void);
/* The block's owner is `link`, or nobody that we can reach. */
void requests_answer(uint32_t block, struct link *link);
void requests_after_fork_in_child(void);

/* discover.c: requests_want() for every block on the host that is not ours and has no link. Returns how many.
 */
unsigned discover_blocks(void);

#endif
