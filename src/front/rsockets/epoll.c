/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* repoll_*(): epoll(7) for rsockets and other descriptors. A set is a descriptor of the kernel's epoll, to which the
 * other descriptors belong, so that all of its rules apply to them. Rsockets are in a list here and are reported by
 * level; a waiting thread is in rpoll() on them, the kernel's set, and an eventfd through which it hears of changes of
 * the list. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"
#include "front/rsockets/rsocket.h"

/* Values of poll(2) and epoll(7) are equal. */
_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR && EPOLLHUP == POLLHUP &&
                   EPOLLRDNORM == POLLRDNORM && EPOLLWRNORM == POLLWRNORM && EPOLLPRI == POLLPRI,
               "events of a set are given to rpoll()");
#define POLL_BITS 0x3fffu
#define ALWAYS    (EPOLLERR | EPOLLHUP)

struct member {
    int fd;
    uint32_t events; /* with ALWAYS; 0: reported once, as EPOLLONESHOT wants */
    epoll_data_t data;
};

struct set {
    struct list node;
    int fd;
    unsigned users; /* calls inside */
    bool closing;
    struct list waiters;
    struct member *members;
    size_t count, room;
    /* What is reported first, so that a small array of the program leaves out others each time. */
    size_t first;
    bool others_first;
};

struct waiter {
    struct list node;
    int wake_fd;
};

/* Guards all sets. rpoll() and system calls that may block are outside. */
static struct lock sets_lock = LOCK_INIT;
static struct list sets = {&sets, &sets};
/* Most processes have no set: rclose() need not look. */
static _Atomic bool any;

/* --- sets; sets_lock held ------------------------------------------------------------------------------- */

static struct set *find(int fd)
{
    list_for_each (node, &sets)
        if (list_entry(node, struct set, node)->fd == fd)
            return list_entry(node, struct set, node);
    return NULL;
}

static void changed(struct set *set)
{
    const uint64_t one = 1;

    list_for_each (node, &set->waiters)
        sys_write(list_entry(node, struct waiter, node)->wake_fd, &one, sizeof(one));
}

static struct member *member_of(struct set *set, int fd)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->members[i].fd == fd)
            return &set->members[i];
    return NULL;
}

static int add(struct set *set, int fd, const struct epoll_event *event)
{
    if (set->count == set->room) {
        size_t room = set->room ? 2 * set->room : 8;
        struct member *members = realloc(set->members, room * sizeof(*members));

        if (!members)
            return -ENOMEM;
        set->members = members;
        set->room = room;
    }
    set->members[set->count++] =
        (struct member){.fd = fd, .events = event->events | ALWAYS, .data = event->data};
    return 0;
}

static void drop(struct set *set, struct member *member)
{
    *member = set->members[--set->count];
    changed(set);
}

static int control(struct set *set, int operation, int fd, const struct epoll_event *event)
{
    struct member *member = member_of(set, fd);

    switch (operation) {
    case EPOLL_CTL_ADD:
        if (member)
            return -EEXIST;
        changed(set);
        return add(set, fd, event);
    case EPOLL_CTL_MOD:
        if (!member)
            return -ENOENT;
        member->events = event->events | ALWAYS;
        member->data = event->data;
        changed(set);
        return 0;
    case EPOLL_CTL_DEL:
        if (!member)
            return -ENOENT;
        drop(set, member);
        return 0;
    default:
        return -EINVAL;
    }
}

/* --- what rclose() and fork do with them ----------------------------------------------------------------- */

void epoll_forget(int fd)
{
    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return;
    lock_acquire(&sets_lock);
    list_for_each (node, &sets) {
        struct set *set = list_entry(node, struct set, node);
        struct member *member = member_of(set, fd);

        if (member)
            drop(set, member);
    }
    lock_release(&sets_lock);
}

static void destroy(struct set *set)
{
    sys_close(set->fd);
    free(set->members);
    free(set);
}

/* The last call inside destroys the set. */
static void leave(struct set *set)
{
    if (--set->users == 0 && set->closing) {
        list_remove(&set->node);
        destroy(set);
    }
}

int epoll_close(int fd)
{
    struct set *set;

    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return -EBADF;
    lock_acquire(&sets_lock);
    set = find(fd);
    if (set && !set->closing) {
        set->users++;
        set->closing = true;
        changed(set);
        leave(set);
    }
    lock_release(&sets_lock);
    return set ? 0 : -EBADF;
}

/* Rsockets are the parent's; the kernel's set is common to both. */
void epoll_after_fork_in_child(void)
{
    lock_init(&sets_lock);
    list_for_each (node, &sets) {
        struct set *set = list_entry(node, struct set, node);

        set->users = 0;
        set->count = set->first = 0;
        list_init(&set->waiters);
    }
}

/* --- repoll_create(), repoll_ctl() ---------------------------------------------------------------------- */

static int create(int flags)
{
    struct set *set;

    if (flags & ~(EPOLL_CLOEXEC | O_NONBLOCK))
        return -EINVAL;
    set = calloc(1, sizeof(*set));
    if (!set)
        return -ENOMEM;
    set->fd = sys_epoll_create();
    if (set->fd < 0) {
        int error = set->fd;

        free(set);
        return error;
    }
    if (!(flags & EPOLL_CLOEXEC))
        syscall(SYS_fcntl, (long)set->fd, (long)F_SETFD, 0l);
    list_init(&set->waiters);
    lock_acquire(&sets_lock);
    list_push_back(&sets, &set->node);
    atomic_store_explicit(&any, true, memory_order_relaxed);
    lock_release(&sets_lock);
    return set->fd;
}

int repoll_create(int flags);
int repoll_ctl(int fd, int operation, int member, struct epoll_event *event);
int repoll_wait(int fd, struct epoll_event *events, int count, int timeout);

RDMACM_EXPORT int repoll_create(int flags)
{
    return (int)rsocket_conclude(create(flags));
}

static int control_one(int fd, int operation, int member, const struct epoll_event *event)
{
    struct rsocket *rsocket;
    struct set *set;
    int error;

    if (operation != EPOLL_CTL_DEL && !event)
        return -EFAULT;
    /* rclose() forgets the rsocket when no other call can enter it. */
    if (rsocket_is_one(member)) {
        error = rsocket_enter(member, &rsocket);
        if (error)
            return error;
        lock_acquire(&sets_lock);
        set = find(fd);
        error = set && !set->closing ? control(set, operation, member, event) : -EINVAL;
        lock_release(&sets_lock);
        rsocket_leave(rsocket);
        return error;
    }
    lock_acquire(&sets_lock);
    set = find(fd);
    /* A set in a set would tell of its other descriptors only. */
    error = !set || set->closing || find(member) ? -EINVAL : sys_epoll_ctl(fd, operation, member, event);
    lock_release(&sets_lock);
    return error;
}

RDMACM_EXPORT int repoll_ctl(int fd, int operation, int member, struct epoll_event *event)
{
    return conclude(control_one(fd, operation, member, event));
}

/* --- repoll_wait() -------------------------------------------------------------------------------------- */

enum { WAKE, KERNEL, FIXED };
#define ON_STACK 64

struct wait {
    struct set *set;
    struct waiter waiter;
    struct pollfd *fds; /* FIXED ones, then rsockets */
    size_t room;
    nfds_t count;
    struct pollfd on_stack[ON_STACK];
};

/* sets_lock held. The rsockets to be polled, the one to be reported first in front. */
static int list_members(struct wait *wait)
{
    struct set *set = wait->set;

    if (set->count + FIXED > wait->room) {
        struct pollfd *fds = malloc((set->room + FIXED) * sizeof(*fds));

        if (!fds)
            return -ENOMEM;
        if (wait->fds != wait->on_stack)
            free(wait->fds);
        wait->fds = fds;
        wait->room = set->room + FIXED;
    }
    wait->fds[WAKE] = (struct pollfd){.fd = wait->waiter.wake_fd, .events = POLLIN};
    wait->fds[KERNEL] = (struct pollfd){.fd = set->fd, .events = POLLIN};
    wait->count = FIXED;
    for (size_t i = 0; i < set->count; i++) {
        const struct member *member = &set->members[(set->first + i) % set->count];

        if (member->events)
            wait->fds[wait->count++] =
                (struct pollfd){.fd = member->fd, .events = (short)(member->events & POLL_BITS)};
    }
    return 0;
}

/* sets_lock held. Members may have changed since; what is not wanted any more is not reported. */
static int report_rsockets(struct wait *wait, struct epoll_event *events, int most)
{
    struct set *set = wait->set;
    int reported = 0;

    for (nfds_t i = FIXED; i < wait->count && reported < most; i++) {
        struct member *member = wait->fds[i].revents ? member_of(set, wait->fds[i].fd) : NULL;
        uint32_t ready;

        if (!member)
            continue;
        ready = (uint16_t)wait->fds[i].revents & member->events;
        if (!ready)
            continue;
        if (member->events & EPOLLONESHOT)
            member->events = 0;
        events[reported++] = (struct epoll_event){.events = ready, .data = member->data};
        set->first = (size_t)(member - set->members) + 1;
    }
    return reported;
}

static int report_others(struct wait *wait, struct epoll_event *events, int most)
{
    int reported = 0;

    if (wait->fds[KERNEL].revents && most > 0)
        reported = sys_epoll_wait(wait->set->fd, events, most, 0);
    return max_of(reported, 0);
}

/* sets_lock held. */
static int report(struct wait *wait, struct epoll_event *events, int most)
{
    int first;

    wait->set->others_first = !wait->set->others_first;
    if (wait->set->others_first) {
        first = report_others(wait, events, most);
        return first + report_rsockets(wait, events + first, most - first);
    }
    first = report_rsockets(wait, events, most);
    return first + report_others(wait, events + first, most - first);
}

/* Waits once, with sets_lock held before and after. -errno, or how many are reported, which may be 0 before the
 * deadline. */
static int wait_once(struct wait *wait, struct epoll_event *events, int most, int timeout)
{
    struct set *set = wait->set;
    int error = list_members(wait);

    if (error)
        return error;
    lock_release(&sets_lock);
    error = rpoll(wait->fds, wait->count, timeout) < 0 ? -errno : 0;
    if (!error && wait->fds[WAKE].revents) {
        uint64_t count;

        sys_read(wait->waiter.wake_fd, &count, sizeof(count));
    }
    lock_acquire(&sets_lock);
    if (error || set->closing)
        return error ? error : -EBADF;
    return report(wait, events, most);
}

static int wait_for(int fd, struct epoll_event *events, int most, int timeout)
{
    ns_t start = timeout > 0 ? sys_now() : 0, passed = 0,
         limit = (ns_t)(unsigned)max_of(timeout, 0) * NS_PER_MS;
    struct wait wait = {.room = ON_STACK};
    int ready, left;

    if (most <= 0)
        return -EINVAL;
    if (!events)
        return -EFAULT;
    wait.fds = wait.on_stack;
    wait.waiter.wake_fd = poll_take_wake_fd();
    if (wait.waiter.wake_fd < 0)
        return wait.waiter.wake_fd;
    lock_acquire(&sets_lock);
    wait.set = find(fd);
    if (!wait.set || wait.set->closing) {
        lock_release(&sets_lock);
        poll_return_wake_fd(wait.waiter.wake_fd);
        return -EINVAL;
    }
    wait.set->users++;
    list_push_back(&wait.set->waiters, &wait.waiter.node);
    do {
        left = timeout <= 0 ? timeout : (int)((limit - passed + NS_PER_MS - 1) / NS_PER_MS);
        ready = wait_once(&wait, events, most, left);
        passed = timeout > 0 ? sys_now() - start : 0;
    } while (!ready && timeout && (timeout < 0 || passed < limit));
    list_remove(&wait.waiter.node);
    leave(wait.set);
    lock_release(&sets_lock);
    poll_return_wake_fd(wait.waiter.wake_fd);
    if (wait.fds != wait.on_stack)
        free(wait.fds);
    return ready;
}

RDMACM_EXPORT int repoll_wait(int fd, struct epoll_event *events, int count, int timeout)
{
    return (int)rsocket_conclude(wait_for(fd, events, count, timeout));
}
