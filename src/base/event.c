/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/event.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"

#define FDS_MAX (1u << 20) /* the kernel's own default limit (fs.nr_open) */
#define BATCH   32

static _Atomic uint64_t our_fds[FDS_MAX / 64];
static _Atomic unsigned our_words; /* words of our_fds[] from here on are zero */
static int epoll_fd = -1;
/* Events of the running event_dispatch(); event_forget() clears those of a source that goes away. Helper thread. */
static struct epoll_event batch[BATCH];
static int batch_next, batch_count;

int fd_own(int fd)
{
    fd = fd_lift(fd);
    if (fd < 0)
        return fd;
    if ((unsigned)fd >= FDS_MAX) {
        sys_close(fd);
        errno = EMFILE;
        return -EMFILE;
    }
    unsigned words = atomic_load_explicit(&our_words, memory_order_relaxed), needed = (unsigned)fd / 64 + 1;

    while (words < needed && !atomic_compare_exchange_weak_explicit(
                                 &our_words, &words, needed, memory_order_relaxed, memory_order_relaxed)) {
    }
    atomic_fetch_or_explicit(&our_fds[fd / 64], 1ull << (fd % 64), memory_order_relaxed);
    return fd;
}

static void fd_disown(int fd)
{
    atomic_fetch_and_explicit(&our_fds[fd / 64], ~(1ull << (fd % 64)), memory_order_relaxed);
}

void fd_close(int fd)
{
    if (fd < 0)
        return;
    /* Clear the bit before close(): afterwards the number may be the program's, and a forked child must not close
     * that. */
    fd_disown(fd);
    sys_close(fd);
}

int event_start(void)
{
    int saved = errno;

    epoll_fd = sys_epoll_create();
    if (epoll_fd < 0) {
        errno = -epoll_fd;
        log_error("cannot create the epoll descriptor of the helper thread (epoll_create1: %m; limit: "
                  "ulimit -n): no device can be opened");
        errno = saved;
        return epoll_fd;
    }
    epoll_fd = fd_own(epoll_fd);
    return min_of(epoll_fd, 0);
}

int event_epoll_fd(void)
{
    return epoll_fd;
}

void event_after_fork_in_child(void)
{
    int saved = errno;

    /* No EPOLL_CTL_DEL: the epoll set is shared with the parent. */
    for (unsigned i = 0; i < atomic_load_explicit(&our_words, memory_order_relaxed); i++) {
        uint64_t bits = atomic_load_explicit(&our_fds[i], memory_order_relaxed);

        if (!bits)
            continue;
        atomic_store_explicit(&our_fds[i], 0, memory_order_relaxed);
        for (int bit = 0; bit < 64; bit++) {
            if (bits >> bit & 1)
                sys_close((int)(i * 64) + bit);
        }
    }
    epoll_fd = -1;
    batch_next = batch_count = 0;
    errno = saved;
}

static int control(int operation, struct event_source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};

    return sys_epoll_ctl(epoll_fd, operation, source->fd, &event);
}

/* 0: fd is not open, or the kernel has no memory to describe it. */
static ino_t inode_of(int fd, dev_t *ret_device)
{
    struct stat file;

    if (fd_stat(fd, &file) != 0)
        return 0;
    *ret_device = file.st_dev;
    return file.st_ino;
}

static int control_and_note(int operation, struct event_source *source, uint32_t events)
{
    int error = control(operation, source, events);

    if (error)
        return error;
    source->inode = inode_of(source->fd, &source->device);
    if (source->inode)
        return 0;
    control(EPOLL_CTL_DEL, source, 0);
    return -ENOMEM;
}

int event_add(struct event_source *source, uint32_t events)
{
    return control_and_note(EPOLL_CTL_ADD, source, events);
}

int event_change(struct event_source *source, uint32_t events)
{
    return control_and_note(EPOLL_CTL_MOD, source, events);
}

void event_note(struct event_source *source)
{
    source->inode = inode_of(source->fd, &source->device);
}

bool event_is_intact(const struct event_source *source)
{
    dev_t device = 0;

    return source->fd >= 0 && source->inode && inode_of(source->fd, &device) == source->inode &&
           device == source->device;
}

void event_pause(struct event_source *source)
{
    control(EPOLL_CTL_DEL, source, 0);
}

int event_resume(struct event_source *source, uint32_t events)
{
    return event_is_intact(source) ? control(EPOLL_CTL_ADD, source, events) : -EBADF;
}

void event_forget(struct event_source *source)
{
    for (int i = batch_next; i < batch_count; i++) {
        if (batch[i].data.ptr == source)
            batch[i].data.ptr = NULL;
    }
    source->fd = -1;
    source->inode = 0;
}

void event_close_now(struct event_source *source)
{
    int fd = source->fd;
    bool intact;

    if (fd < 0)
        return;
    intact = !source->inode || event_is_intact(source);
    /* close() alone would leave the descriptor in the epoll set while a forked child has a copy of it. A source that
     * cannot be told to be intact (fstat(): ENOMEM) may still be in the set, which must not name it any more. */
    control(EPOLL_CTL_DEL, source, 0);
    source->fd = -1;
    source->inode = 0; /* of the next descriptor, nothing is known */
    if (intact)
        fd_close(fd);
    else
        fd_disown(fd);
}

void event_close(struct event_source *source)
{
    if (source->fd < 0)
        return;
    event_close_now(source);
    event_forget(source);
}

void event_dispatch(void)
{
    int saved = errno;

    batch_count = sys_epoll_wait(epoll_fd, batch, BATCH, 0);
    for (batch_next = 0; batch_next < batch_count;) {
        const struct epoll_event *event = &batch[batch_next++];
        struct event_source *source = event->data.ptr;

        if (source)
            source->ready(source, event->events);
    }
    batch_next = batch_count = 0;
    errno = saved;
}
