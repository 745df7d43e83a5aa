/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Descriptors of SoftHCA, and the epoll set in which the helper thread watches some of them.
 *
 * A bitmap holds every descriptor, so that a forked child can close them without taking a lock of the parent.
 */
#ifndef BASE_EVENT_H
#define BASE_EVENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/types.h"

struct event_source {
    int fd; /* -1: none */
    /* The file behind fd when it was added. Some programs close descriptors that they did not open, and the number is
     * then reused for another file. */
    dev_t device;
    ino_t inode;
    /* Called by event_dispatch() in the helper thread. May close any source, including this one. */
    void (*ready)(struct event_source *source, uint32_t events);
};

int event_start(void);
void event_after_fork_in_child(void);
int event_epoll_fd(void);

/* Enters a new descriptor into the bitmap, after fd_lift(). Returns fd, also a negative one; -EMFILE, with errno: fd
 * is too large for the bitmap and was closed. */
int fd_own(int fd);
void fd_close(int fd);

/* Watches source->fd. event_change() also moves a watched descriptor to another source. 0 or -errno. */
int event_add(struct event_source *source, uint32_t events);
int event_change(struct event_source *source, uint32_t events);
/* Removes the source from the epoll set, and adds it again. A descriptor in the set makes every write to it more
 * expensive, even with an empty event mask. */
void event_pause(struct event_source *source);
int event_resume(struct event_source *source, uint32_t events);
/* Records the file behind source->fd without watching it. */
void event_note(struct event_source *source);
/* True if the descriptor is still the file that was added or noted. A caller checks this before it writes. */
bool event_is_intact(const struct event_source *source);
/* Stops watching and closes; no effect on a source without descriptor. Helper thread. */
void event_close(struct event_source *source);
/* The same from any thread. A running event_dispatch() may still call the source, whose memory must stay valid until
 * it has returned. */
void event_close_now(struct event_source *source);
/* Detaches the source from its descriptor, which event_change() has moved to another source. Helper thread. */
void event_forget(struct event_source *source);
/* Calls ready() of all ready sources. Helper thread. */
void event_dispatch(void);

#endif
