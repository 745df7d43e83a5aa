/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/block_names.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/event.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "local/handshake_message.h"
#include "local/names.h"

#define BLOCK_DIGITS 4
#define UID_DIGITS   8
#define REST_DIGITS  (BLOCK_DIGITS + 1 + UID_DIGITS)
#define NONE_FOR     (100 * NS_PER_MS)
/* Users with the same block: so many are asked. */
#define USERS_MAX 16u

static _Atomic ns_t none_until; /* the list has no names with a uid, and is not read before */

void block_name_of(uint32_t block, uid_t uid, char ret_text[LOCAL_BLOCK_NAME_MAX + 1])
{
    _Static_assert(sizeof(BLOCK_NAME_PREFIX) == sizeof(NAME_PREFIX "qpn/"), "the rest of that name");

    block = segment_request_named_block(block & 0xffff);
    if (block_is_of_user(block))
        snprintf(ret_text, LOCAL_BLOCK_NAME_MAX + 1, "qpn/%04x.%08x", block, (unsigned)uid);
    else
        snprintf(ret_text, LOCAL_BLOCK_NAME_MAX + 1, "qpn/%04x", block);
}

/* Of "0040.000003e8", or without the block. */
static bool read_hex(const char *digits, size_t count, uint32_t *ret_number)
{
    char copy[UID_DIGITS + 1] = {0}, *end;

    memcpy(copy, digits, count);
    if (strspn(copy, "0123456789abcdef") != count)
        return false;
    *ret_number = (uint32_t)strtoul(copy, &end, 16);
    return true;
}

static bool read_rest(const char *rest, uint32_t *ret_block, uid_t *ret_uid)
{
    return rest[BLOCK_DIGITS] == '.' && read_hex(rest, BLOCK_DIGITS, ret_block) &&
           read_hex(rest + BLOCK_DIGITS + 1, UID_DIGITS, ret_uid) && *ret_block &&
           block_is_of_user(*ret_block);
}

bool block_name_uid(const char *text, uid_t *ret_uid)
{
    uint32_t block;

    return strncmp(text, "qpn/", 4) == 0 && strlen(text) == 4 + REST_DIGITS &&
           read_rest(text + 4, &block, ret_uid);
}

struct visitor {
    void (*visit)(uint32_t block, uid_t uid, void *argument);
    void *argument;
    bool any;
};

static void visit_name(const char *rest, void *argument)
{
    struct visitor *visitor = argument;
    uint32_t block;
    uid_t uid;

    if (!read_rest(rest, &block, &uid))
        return;
    visitor->any = true;
    visitor->visit(block, uid, visitor->argument);
}

void block_names_of_users(void (*visit)(uint32_t block, uid_t uid, void *argument), void *argument)
{
    struct visitor visitor = {visit, argument, false};
    ns_t now = sys_now();

    if (now < atomic_load_explicit(&none_until, memory_order_relaxed))
        return;
    (void)unix_names_visit(BLOCK_NAME_PREFIX, REST_DIGITS, visit_name, &visitor);
    if (!visitor.any)
        atomic_store_explicit(&none_until, now + NONE_FOR, memory_order_relaxed);
}

/* --- whose is the block? ---------------------------------------------------------------------------------- */

struct users {
    uint32_t block;
    unsigned count;
    uid_t uid[USERS_MAX];
};

static void note_user(uint32_t block, uid_t uid, void *argument)
{
    struct users *users = argument;

    if (block == users->block && users->count < USERS_MAX)
        users->uid[users->count++] = uid;
}

void local_block_name(uint32_t block, char ret_text[LOCAL_BLOCK_NAME_MAX + 1])
{
    struct users users = {.block = segment_request_named_block(block)};

    block_name_of(block, geteuid(), ret_text);
    if (!block_is_of_user(block) || local_name_is_held(ret_text))
        return;
    block_names_of_users(note_user, &users);
    for (unsigned i = 0; i < users.count; i++) {
        char text[LOCAL_BLOCK_NAME_MAX + 1];

        block_name_of(block, users.uid[i], text);
        if (local_name_is_held(text)) {
            memcpy(ret_text, text, sizeof(text));
            return;
        }
    }
}
