/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains (verbs.md §1.4). A domain that is opened with a file is the same for all processes of this host that
 * open the file; device and inode identify it. A process that has the domain open binds an abstract unix socket
 * NAME_PREFIX DEVICE-INODE/RANDOM, which is never read: the kernel lists the sockets with their users, and removes
 * those of a process that dies. A process that opens the domain binds DEVICE-INODE/turnRANDOM before it looks at the
 * list, and goes on when it sees no other such name: so only one of several processes with O_EXCL succeeds. Any
 * process can bind such names; those of users who may not open the file are overlooked. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/event.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "object/xrc/xrc_domain.h"

#define NAME_PREFIX "softhca/1/xrcd/"
#define REST_LENGTH 16 /* hexadecimal digits, or TURN and so many that it is as long */
#define TURN        "turn"
#define NAME_SIZE   (sizeof(NAME_PREFIX) + 2 * 17 + REST_LENGTH)

/* How long a process waits for its turn; then it continues without: who has it may be stopped. */
#define TURN_LIMIT (2 * NS_PER_S)
#define TURN_PAUSE NS_PER_MS

/* Guards the list and references. Held during system calls, so never taken on the data path. */
static struct lock domains_lock = LOCK_INIT;
static struct list domains = {&domains, &domains};

/* The descriptors are closed with all others of the parent (base/event.h). */
void xrc_domains_after_fork_in_child(void)
{
    lock_init(&domains_lock);
    list_init(&domains);
}

/* --- descriptors ---------------------------------------------------------------------------------------- */

static int keep(struct xrc_descriptor *descriptor, int fd)
{
    struct stat status;

    descriptor->fd = fd;
    if (fd < 0 || fstat(fd, &status) != 0)
        return min_of(fd, 0);
    descriptor->device = status.st_dev;
    descriptor->inode = status.st_ino;
    return 0;
}

/* Closes the descriptor unless the program has closed it and the number is another file's now. */
static void give_back(const struct xrc_descriptor *descriptor)
{
    struct stat status;
    int saved = errno;

    if (descriptor->fd >= 0 && fstat(descriptor->fd, &status) == 0 && status.st_dev == descriptor->device &&
        status.st_ino == descriptor->inode)
        fd_close(descriptor->fd);
    errno = saved;
}

/* By O_PATH: closing an ordinary descriptor would drop all record locks that the program has on the file. */
static int pin_file(struct xrc_domain *domain, int fd)
{
    char path[32];
    int own;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = sys_open(path, O_PATH | O_CLOEXEC);
    if (own < 0)
        own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return keep(&domain->pin, own < 0 ? -EMFILE : fd_own(own));
}

/* --- whom the file's mode admits ------------------------------------------------------------------------ */

/* The kernel does not tell which users have the file open, so its mode decides. */
static bool mode_admits(const struct xrc_domain *domain, uid_t uid)
{
    if (uid == geteuid() || uid == 0)
        return true;
    if (uid == domain->owner)
        return domain->mode & (S_IRUSR | S_IWUSR);
    return domain->mode & (S_IROTH | S_IWOTH);
}

/* --- between processes ---------------------------------------------------------------------------------- */

static void name_of(const struct xrc_domain *domain, const char *rest, char ret_name[NAME_SIZE + 1])
{
    snprintf(ret_name, NAME_SIZE + 1, NAME_PREFIX "%016llx-%016llx/%s", (unsigned long long)domain->device,
             (unsigned long long)domain->inode, rest);
}

/* Binds a socket to a name that nobody has: the first characters of its rest, and random digits. Its descriptor, or
 * -errno. */
static int bind_name(const struct xrc_domain *domain, const char *first, char ret_rest[REST_LENGTH + 1])
{
    int saved = errno, error = 0, fd;
    char digits[REST_LENGTH + 1], name[NAME_SIZE + 1];
    struct sockaddr_un address;
    socklen_t length;
    uint64_t bits;

    sys_random(&bits, sizeof(bits));
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)bits);
    snprintf(ret_rest, REST_LENGTH + 1, "%s%s", first, digits + strlen(first));
    name_of(domain, ret_rest, name);
    length = unix_name_address(name, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        error = -errno;
    else if (bind(fd, (struct sockaddr *)&address, length) != 0)
        error = -errno;
    if (error && fd >= 0)
        fd_close(fd);
    errno = saved;
    return error ? error : fd;
}

/* What the list of sockets shows of the domain. */
struct view {
    const struct xrc_domain *domain;
    const char *own_turn;
    bool is_open;               /* by another process */
    bool turn_taken, is_before; /* another process looks as well, and has the smaller number */
};

/* The kernel tells the user of a socket and not his groups. Who is not told, or may be in the file's group, is
 * believed. */
static bool may_have_it_open(const struct xrc_domain *domain, uid_t uid)
{
    return uid == UNIX_NAME_UID_UNKNOWN || (domain->mode & (S_IRGRP | S_IWGRP)) || mode_admits(domain, uid);
}

static void see_name(const char *rest, uid_t uid, void *argument)
{
    struct view *view = argument;
    const int order = strcmp(rest, view->own_turn);

    if (order == 0 || !may_have_it_open(view->domain, uid))
        return;
    if (strncmp(rest, TURN, strlen(TURN)) != 0) {
        view->is_open = true;
        return;
    }
    view->turn_taken = true;
    view->is_before |= order < 0;
}

static struct view look(const struct xrc_domain *domain, const char *own_turn)
{
    struct view view = {.domain = domain, .own_turn = own_turn};
    char prefix[NAME_SIZE + 1];
    int error;

    name_of(domain, "", prefix);
    error = unix_names_visit_unconnected(prefix, REST_LENGTH, see_name, &view);
    if (error)
        log_warn("cannot list unix sockets: %s; the XRC domain is taken as not open in another process",
                 strerror(-error));
    return view;
}

/* Has another process the domain open? Waits until no other one looks as well. A process sees those that were there
 * before it, so of two at least one waits; the one with the larger number withdraws its name meanwhile. *ret_turn: the
 * descriptor of this process's name, to be closed after the user name is bound. */
static bool is_open_elsewhere(const struct xrc_domain *domain, int *ret_turn)
{
    const ns_t until = sys_now() + TURN_LIMIT;
    char turn[REST_LENGTH + 1];
    int fd = bind_name(domain, TURN, turn);
    struct view view = look(domain, turn);

    while (view.turn_taken && sys_now() < until) {
        if (view.is_before)
            fd_close(fd);
        (void)sys_poll(NULL, 0, TURN_PAUSE);
        if (view.is_before)
            fd = bind_name(domain, TURN, turn);
        view = look(domain, turn);
    }
    if (view.turn_taken)
        log_warn("ibv_open_xrcd(), file with inode %llu: another process has not finished opening its XRC "
                 "domain for "
                 "2 s (is it stopped?); continuing without waiting, so O_EXCL may be wrong",
                 (unsigned long long)domain->inode);
    *ret_turn = fd;
    return view.is_open;
}

/* Checks O_CREAT and O_EXCL and binds the user name, for the first XRCD of the domain in this process: 0, -EINVAL,
 * -EAGAIN, -EMFILE... */
static int bind_user_name(struct xrc_domain *domain, int flags)
{
    int turn, error = 0;
    bool elsewhere = is_open_elsewhere(domain, &turn);
    char rest[REST_LENGTH + 1];

    if (elsewhere && (flags & O_CREAT) && (flags & O_EXCL))
        error = -EINVAL;
    else if (!elsewhere && !(flags & O_CREAT))
        error = -EAGAIN;
    if (!error)
        error = keep(&domain->user_name, bind_name(domain, "", rest));
    fd_close(turn);
    return error;
}

/* --- in this process ------------------------------------------------------------------------------------ */

/* Lock held. */
static struct xrc_domain *find(const struct stat *status)
{
    list_for_each (node, &domains) {
        struct xrc_domain *domain = list_entry(node, struct xrc_domain, all);

        if (!domain->is_private && domain->device == status->st_dev && domain->inode == status->st_ino)
            return domain;
    }
    return NULL;
}

static int join(int fd, const struct stat *status, int flags, struct xrc_domain *fresh,
                struct xrc_domain **ret_domain)
{
    struct xrc_domain *domain = find(status);
    int error;

    if (domain) {
        if ((flags & O_CREAT) && (flags & O_EXCL))
            return -EINVAL;
        domain->references++;
        *ret_domain = domain;
        return 0;
    }
    fresh->device = status->st_dev;
    fresh->inode = status->st_ino;
    fresh->owner = status->st_uid;
    fresh->mode = status->st_mode;
    fresh->is_unlinked = status->st_nlink == 0;
    error = pin_file(fresh, fd);
    if (!error)
        error = bind_user_name(fresh, flags);
    if (error) {
        give_back(&fresh->pin);
        return error;
    }
    fresh->references = 1;
    list_push_back(&domains, &fresh->all);
    *ret_domain = fresh;
    return 0;
}

int xrc_domain_take(int fd, int flags, struct xrc_domain **ret_domain)
{
    struct xrc_domain *fresh = calloc(1, sizeof(*fresh));
    struct stat status;
    int error = 0;

    if (!fresh)
        return -ENOMEM;
    fresh->user_name.fd = fresh->pin.fd = -1;
    if (fd == -1) {
        fresh->is_private = true;
        fresh->references = 1;
        *ret_domain = fresh;
        return 0;
    }
    if (fstat(fd, &status) != 0) {
        free(fresh);
        return -EBADF;
    }
    lock_acquire(&domains_lock);
    error = join(fd, &status, flags, fresh, ret_domain);
    lock_release(&domains_lock);
    if (error || *ret_domain != fresh)
        free(fresh);
    return error;
}

void xrc_domain_get(struct xrc_domain *domain)
{
    atomic_fetch_add_explicit(&domain->references, 1, memory_order_relaxed);
}

void xrc_domain_drop(struct xrc_domain *domain)
{
    bool last;

    lock_acquire(&domains_lock);
    last = --domain->references == 0;
    if (last && !domain->is_private) {
        list_remove(&domain->all);
        give_back(&domain->user_name);
        give_back(&domain->pin);
    }
    lock_release(&domains_lock);
    if (last)
        free(domain);
}

bool xrc_domain_admits(const struct xrc_domain *domain, uid_t uid)
{
    if (domain->is_private)
        return false;
    if (domain->is_unlinked) /* other users cannot open it */
        return uid == geteuid() || uid == 0;
    return mode_admits(domain, uid);
}
