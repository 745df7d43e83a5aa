/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The object room on its own: what it asks of the engine is counted here. */
#ifndef UNIT_OBJECT_FIXTURE_H
#define UNIT_OBJECT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "object/cq/cq.h"
#include "object/device/context.h"
#include "object/device/device.h"
#include "object/pd/pd.h"
#include "object/ports.h"

struct port_calls {
    unsigned progress, expect_sleep, event_owed, cq_overrun, moderation_timer, moderation_cancel;
    ns_t moderation_delay;
    int start_timers_error;
    unsigned explained[EXPLAIN_LEAKS + 1]; /* the last: */
    enum object_kind explained_kind;
    uint32_t explained_number;
    unsigned losses_noted, losses_told;
    void (*on_progress)(void); /* what arrives while an empty CQ is polled */
};
extern struct port_calls port_calls;
/* What channels are shown to peers by; NULL: they are not. */
extern struct notify_channel *port_line;

/* One context of one device, and one that is foreign to it. */
extern struct context *context, *other_context;

int open_contexts(void **state);
int close_contexts(void **state);

static inline bool readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

static inline void set_nonblocking(int fd)
{
    assert_return_code(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), errno);
}

#endif
