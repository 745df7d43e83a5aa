/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Defaults set by the administrator (rsocket(7)): files with one number each. */
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "front/rsockets/rsocket.h"

#define FOLDER "/etc/rdma/rsocket/"

#define DEFAULT_BUFFER     (128u << 10)
#define DEFAULT_REQUESTS   384
#define DEFAULT_INLINE     64
#define DEFAULT_POLLING_US 10

static struct lock defaults_lock = LOCK_INIT;
static struct rsocket_defaults defaults;
static _Atomic bool known;

uint32_t rsocket_number_in(const char *path, uint32_t otherwise)
{
    unsigned long number;
    char text[24], *end;

    if (fd_read_text(path, text, sizeof(text)) <= 0)
        return otherwise;
    number = strtoul(text, &end, 10);
    return end == text ? otherwise : (uint32_t)min_of(number, (unsigned long)UINT32_MAX);
}

static uint32_t bounded(const char *path, uint32_t otherwise, uint32_t least, uint32_t most)
{
    uint32_t number = min_of(most, rsocket_number_in(path, otherwise));

    return max_of(least, number);
}

static void read_all(void)
{
    defaults.send_bytes =
        bounded(FOLDER "wmem_default", DEFAULT_BUFFER, 2 * STREAM_LOW_WATER, RSOCKET_BUFFER_MAX);
    defaults.receive_bytes =
        bounded(FOLDER "mem_default", DEFAULT_BUFFER, 2 * STREAM_LOW_WATER, RSOCKET_BUFFER_MAX);
    defaults.send_requests =
        bounded(FOLDER "sqsize_default", DEFAULT_REQUESTS, RSOCKET_REQUESTS_MIN, RSOCKET_REQUESTS_MAX);
    defaults.receive_requests =
        bounded(FOLDER "rqsize_default", DEFAULT_REQUESTS, RSOCKET_REQUESTS_MIN, RSOCKET_REQUESTS_MAX);
    defaults.inline_bytes = bounded(FOLDER "inline_default", DEFAULT_INLINE, 0, endpoint_inline_limit());
    defaults.mappings = rsocket_round_mappings(bounded(FOLDER "iomap_size", 0, 0, RSOCKET_MAPPINGS_MAX));
    defaults.polling = bounded(FOLDER "polling_time", DEFAULT_POLLING_US, 0, 1000000) * NS_PER_US;
}

const struct rsocket_defaults *rsocket_defaults(void)
{
    if (likely(atomic_load_explicit(&known, memory_order_acquire)))
        return &defaults;
    lock_acquire(&defaults_lock);
    if (!atomic_load_explicit(&known, memory_order_relaxed)) {
        read_all();
        atomic_store_explicit(&known, true, memory_order_release);
    }
    lock_release(&defaults_lock);
    return &defaults;
}

void rsocket_defaults_after_fork_in_child(void)
{
    lock_init(&defaults_lock);
}
