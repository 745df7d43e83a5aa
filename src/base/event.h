/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Our descriptors, and the epoll set by which the helper thread watches them for the rooms that have some.
 * Every descriptor is noted in a bitmap, so that a forked child can close ours whatever the other threads of
 * the parent were doing. */
#ifndef BASE_EVENT_H
#define BASE_EVENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/types.h"

struct event_source {
    int fd; /* -1: none */
    /* Which file that was when it was added: programs close descriptors that they do not know, and open
     * others under the same numbers. */
    dev_t device;
    ino_t inode;
    /* Helper thread. May remove any source, its own too. */
    void (*ready)(struct event_source *source, uint32_t events);
};

int event_start(void);
void event_after_fork_in_child(void);
int event_epoll_fd(void);

/* Notes a new descriptor as ours, after fd_lift(). Passes on fd, also a negative one; closes it if it is too
 * large to be noted, with -EMFILE and errno. */
int fd_own(int fd);
void fd_close(int fd);

/* Watches source->fd. 0 or -errno. The same descriptor may move to another source. */
int event_add(struct event_source *source, uint32_t events);
int event_change(struct event_source *source, uint32_t events);
/* Watches no longer, and again. What is in the set still costs whoever writes to it, even if nothing is
 * waited for. */
void event_pause(struct event_source *source);
int event_resume(struct event_source *source, uint32_t events);
/* Notes which file source->fd is, without watching it. */
void event_note(struct event_source *source);
/* Is the descriptor still the file that was added or noted? To be asked before writing to it. */
bool event_is_intact(const struct event_source *source);
/* Stops watching and closes; safe on a source without descriptor. */
void event_close(struct event_source *source);
/* The same from any thread: the source must stay until event_dispatch() has returned, which may still call
 * it. */
void event_close_now(struct event_source *source);
/* Forgets the source, which goes away; the descriptor lives on in another one that event_change() has named.
 */
void event_forget(struct event_source *source);
/* Handles what is ready. */
void event_dispatch(void);

#endif
