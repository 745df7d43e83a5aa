/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Queue of lookups for the helper thread: owners of blocks (local_resolve(), local_discover_peers()) and holders of
 * names (local_name_search()). */
#ifndef LOCAL_LOOKUPS_H
#define LOCAL_LOOKUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "local/local.h"

/* A lookup of the holder of a name. */
struct name_search {
    struct list node;
    uint64_t cookie;
    char text[LOCAL_NAME_MAX + 1];
};

/* Requests the lookup of a block's owner. Any thread. */
void lookup_block(uint32_t block);
/* Begins a handshake for each requested lookup while handshake_can_begin(). Helper thread. */
void lookups_begin(void);
/* True if a requested lookup has not begun. Helper thread. */
bool lookups_any(void);
/* Ends the lookup of a block: its owner is behind `link`; NULL: no owner, or out of reach. Helper thread. */
void lookup_finish(uint32_t block, struct link *link);
void lookups_after_fork_in_child(void);

/* discover.c: lookup_block() for every owned block on the host without a link. Returns their number. */
unsigned discover_blocks(void);

#endif
