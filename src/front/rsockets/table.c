/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Finds the rsocket of a descriptor: a table in two levels, read without a lock. The reader locks the rsocket and
 * checks that it still has the number; the memory is an rsocket's for ever. */
#include <stdlib.h>

#include "base/sys.h"
#include "front/rsockets/rsocket.h"

#define PAGE_BITS 10
#define PAGE_SIZE (1 << PAGE_BITS)
#define PAGES     1024 /* more than fs.nr_open allows */

typedef struct rsocket *_Atomic entry;

static entry *_Atomic pages[PAGES];
static struct lock free_lock = LOCK_INIT;
static struct list free_rsockets = {&free_rsockets, &free_rsockets};
/* The generation() of this process, without a call. */
static uint32_t own_generation;

void rsockets_after_fork_in_child(void)
{
    own_generation++;
    lock_init(&free_lock);
    list_init(&free_rsockets); /* threads of the parent may hold locks of free ones */
    rsocket_defaults_after_fork_in_child();
    connect_after_fork_in_child();
    service_after_fork_in_child();
    poll_after_fork_in_child();
    epoll_after_fork_in_child();
}

/* --- the table ------------------------------------------------------------------------------------------ */

static entry *entry_of(int fd)
{
    entry *page;

    if (unlikely(fd < 0 || fd >= PAGES * PAGE_SIZE))
        return NULL;
    page = atomic_load_explicit(&pages[fd >> PAGE_BITS], memory_order_acquire);
    return page ? &page[fd & (PAGE_SIZE - 1)] : NULL;
}

static entry *make_entry(int fd)
{
    entry *page, *none = NULL;

    if (fd >= PAGES * PAGE_SIZE)
        return NULL;
    if (!entry_of(fd)) {
        page = calloc(PAGE_SIZE, sizeof(*page));
        if (!page)
            return NULL;
        if (!atomic_compare_exchange_strong(&pages[fd >> PAGE_BITS], &none, page))
            free(page);
    }
    return entry_of(fd);
}

static struct rsocket *find(int fd)
{
    entry *place = entry_of(fd);

    return place ? atomic_load_explicit(place, memory_order_acquire) : NULL;
}

static bool is_inherited(const struct rsocket *rsocket)
{
    return __atomic_load_n(&rsocket->generation, __ATOMIC_RELAXED) != own_generation;
}

int rsocket_publish(struct rsocket *rsocket, int fd)
{
    entry *place = make_entry(fd);

    if (!place)
        return fd >= PAGES * PAGE_SIZE ? -EMFILE : -ENOMEM;
    lock_acquire(&rsocket->lock);
    rsocket->fd = fd;
    lock_release(&rsocket->lock);
    atomic_store_explicit(place, rsocket, memory_order_release);
    return 0;
}

void rsocket_unpublish_number(int fd)
{
    atomic_store_explicit(entry_of(fd), NULL, memory_order_release);
}

void rsocket_unpublish(struct rsocket *rsocket)
{
    rsocket_unpublish_number(rsocket->fd);
    rsocket->fd = -1;
}

bool rsocket_is_one(int fd)
{
    return find(fd) != NULL;
}

struct rsocket *rsocket_inherited(int fd)
{
    struct rsocket *rsocket = find(fd);

    return rsocket && is_inherited(rsocket) ? rsocket : NULL;
}

/* --- entering ------------------------------------------------------------------------------------------- */

int rsocket_enter(int fd, struct rsocket **ret_rsocket)
{
    struct rsocket *rsocket = find(fd);

    if (unlikely(!rsocket || is_inherited(rsocket)))
        return -EBADF;
    lock_acquire(&rsocket->lock);
    if (unlikely(rsocket->fd != fd || rsocket->closing)) {
        lock_release(&rsocket->lock);
        return -EBADF;
    }
    rsocket->users++;
    *ret_rsocket = rsocket;
    return 0;
}

void rsocket_leave(struct rsocket *rsocket)
{
    rsocket->users--;
    if (unlikely(rsocket->closing))
        rsocket_changed(rsocket);
    lock_release(&rsocket->lock);
}

/* --- memory --------------------------------------------------------------------------------------------- */

static struct rsocket *take_free(void)
{
    struct list *node;

    lock_acquire(&free_lock);
    node = list_pop_front(&free_rsockets);
    lock_release(&free_lock);
    return node ? list_entry(node, struct rsocket, node) : NULL;
}

/* A thread with an old pointer may be about to read `fd` and `generation`. */
static void clear(struct rsocket *rsocket)
{
    _Static_assert(offsetof(struct rsocket, lock) == 0, "what is cleared comes behind the lock");

    memset((char *)rsocket + sizeof(rsocket->lock), 0,
           offsetof(struct rsocket, generation) - sizeof(rsocket->lock));
    __atomic_store_n(&rsocket->generation, own_generation, __ATOMIC_RELAXED);
    memset((char *)rsocket + offsetof(struct rsocket, node), 0,
           sizeof(*rsocket) - offsetof(struct rsocket, node));
    rsocket->fd = -1;
    list_init(&rsocket->node);
    list_init(&rsocket->sleepers);
    list_init(&rsocket->children);
    list_init(&rsocket->mappings);
}

static void set_defaults(struct rsocket *rsocket)
{
    const struct rsocket_defaults *defaults = rsocket_defaults();

    rsocket->options = (struct rsocket_options){
        .send_bytes = defaults->send_bytes,
        .receive_bytes = defaults->receive_bytes,
        .send_requests = defaults->send_requests,
        .receive_requests = defaults->receive_requests,
        .inline_bytes = defaults->inline_bytes,
        .mappings = defaults->mappings,
        .keepalive_interval = 75, /* defaults of tcp(7) */
        .keepalive_count = 9,
    };
}

struct rsocket *rsocket_new(int domain, int type)
{
    struct rsocket *rsocket = take_free();

    if (!rsocket)
        rsocket = calloc(1, sizeof(*rsocket));
    if (!rsocket)
        return NULL;
    lock_acquire(&rsocket->lock);
    clear(rsocket);
    rsocket->domain = domain;
    rsocket->type = type;
    rsocket->local.ss_family = rsocket->remote.ss_family = (sa_family_t)domain;
    set_defaults(rsocket);
    lock_release(&rsocket->lock);
    return rsocket;
}

void rsocket_recycle(struct rsocket *rsocket)
{
    lock_acquire(&free_lock);
    list_push_back(&free_rsockets, &rsocket->node);
    lock_release(&free_lock);
}
