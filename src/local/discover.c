/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Discovery of all QPN blocks that have an owner, by the kernel's list of unix sockets (/proc/net/unix). */
#include <string.h>

#include "base/log.h"
#include "base/unix_names.h"
#include "local/block_names.h"
#include "local/handshake_message.h"
#include "local/lookups.h"

#define DIGITS 4

static bool block_of(const char digits[DIGITS], uint32_t *ret_block)
{
    uint32_t block = 0;

    for (int i = 0; i < DIGITS; i++) {
        char digit = digits[i];

        if (digit >= '0' && digit <= '9')
            block = block << 4 | (uint32_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f')
            block = block << 4 | (uint32_t)(digit - 'a' + 10);
        else
            return false;
    }
    *ret_block = block;
    return block != 0 && block <= BLOCKS_LAST && !block_is_of_user(block) &&
           segment_request_named_block(block) == block;
}

static void look_up(uint32_t block, unsigned *found)
{
    if (link_table_get(block))
        return;
    lookup_block(block);
    ++*found;
}

static void visit(const char *digits, void *argument)
{
    uint32_t block;

    if (block_of(digits, &block))
        look_up(block, argument);
}

static void visit_of_user(uint32_t block, uid_t uid, void *argument)
{
    look_up(block, argument);
}

unsigned discover_blocks(void)
{
    unsigned found = 0;
    int error = unix_names_visit(BLOCK_NAME_PREFIX, DIGITS, visit, &found);

    if (error)
        log_warn("cannot find other processes of this host, so their QPs cannot be reached: reading "
                 "/proc/net/unix: %s",
                 strerror(-error));
    block_names_of_users(visit_of_user, &found);
    return found;
}
