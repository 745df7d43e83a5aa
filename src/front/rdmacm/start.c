/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connects to libibverbs.so.1, and resets this library after a fork. */
#include <stdlib.h>

#include "base/lock.h"
#include "base/refusal.h"
#include "front/rdmacm/known_routes.h"
#include "front/rsockets/rsocket.h"
#include "front/verbs/private.h"

const struct cm_agent_calls *calls;

static struct lock start_lock = LOCK_INIT;
static _Atomic bool started;
static bool fork_handler_installed;

/* Ids and channels of the parent stay in the child's memory and are void (id_is_inherited()). */
static void after_fork_in_child(void)
{
    fence_after_fork_in_child();
    lock_after_fork_in_child();
    lock_init(&start_lock);
    atomic_store_explicit(&started, false, memory_order_relaxed);
    adapters_forget();
    routes_after_fork_in_child();
    cm_channels_after_fork_in_child();
    ids_after_fork_in_child();
    rsockets_after_fork_in_child();
}

cold_path void refused(const char *call, int error)
{
    struct refusal reason;

    if (calls && refusal_take(error, &reason))
        calls->refused(call, &reason);
}

static int start_locked(void)
{
    struct ibv_device **list;
    int error;

    if (!fork_handler_installed) {
        error = -pthread_atfork(NULL, NULL, after_fork_in_child);
        if (error)
            return error;
        fork_handler_installed = true;
        fence_ask(); /* this library has locks of its own */
    }
    calls = softhca_communication();
    list = ibv_get_device_list(NULL);
    if (!list)
        return errno == ENOSYS ? -ENODEV : -errno;
    ibv_free_device_list(list);
    return calls->start(&cm_agent_owner);
}

int start(void)
{
    int saved = errno, error = 0;

    if (likely(atomic_load_explicit(&started, memory_order_acquire)))
        return 0;
    lock_acquire(&start_lock);
    if (!atomic_load_explicit(&started, memory_order_relaxed)) {
        error = start_locked();
        if (!error)
            atomic_store_explicit(&started, true, memory_order_release);
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

uint32_t generation(void)
{
    return softhca_communication()->generation();
}
