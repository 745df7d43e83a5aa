/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains (verbs.md §1.4). A domain that is opened with a file is the same for all processes of this host that
 * open the file; device and inode identify it. A process that has the domain open binds an abstract unix socket
 * USER_PREFIX DEVICE-INODE/RANDOM, which is never read: the kernel lists the sockets in /proc/net/unix, and removes
 * those of a process that dies. A process that opens the domain binds DEVICE-INODE/turn while it examines the list:
 * the name is a lock, so that only one of several processes with O_EXCL succeeds. Processes of all versions use these
 * names. Any process can bind them, which changes the results of O_CREAT and O_EXCL and nothing else. */
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

#define USER_PREFIX "softhca/1/xrcd/"
#define USER_DIGITS 16
#define NAME_SIZE   (sizeof(USER_PREFIX) + 2 * 17 + USER_DIGITS)

/* How often a process tries to bind the lock name, a millisecond apart; then it continues without the lock: the
 * holder may be stopped. */
#define LOCK_TRIES 2000
#define LOCK_PAUSE (NS_PER_S / 1000)

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

/* --- between processes ---------------------------------------------------------------------------------- */

/* The descriptor of a bound socket, or -errno; -EADDRINUSE: another process has bound the name. */
static int bind_name(const struct xrc_domain *domain, const char *rest)
{
    int saved = errno, error = 0, fd;
    struct sockaddr_un address;
    char name[NAME_SIZE + 1];
    socklen_t length;

    snprintf(name, sizeof(name), USER_PREFIX "%016llx-%016llx/%s", (unsigned long long)domain->device,
             (unsigned long long)domain->inode, rest);
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

static int lock_domain(const struct xrc_domain *domain)
{
    int fd = bind_name(domain, "turn");

    for (int tries = 0; fd == -EADDRINUSE && tries < LOCK_TRIES; tries++) {
        (void)sys_poll(NULL, 0, LOCK_PAUSE);
        fd = bind_name(domain, "turn");
    }
    if (fd == -EADDRINUSE)
        log_warn("ibv_open_xrcd(), file with inode %llu: another process has held the lock of its XRC domain "
                 "for 2 s "
                 "(is it stopped?); continuing without the lock, so O_EXCL and EBUSY may be wrong",
                 (unsigned long long)domain->inode);
    return fd;
}

static void count_user(const char *rest, void *argument)
{
    ++*(unsigned *)argument;
}

static bool is_open_elsewhere(const struct xrc_domain *domain)
{
    char prefix[NAME_SIZE + 1];
    unsigned users = 0;
    int error;

    snprintf(prefix, sizeof(prefix), USER_PREFIX "%016llx-%016llx/", (unsigned long long)domain->device,
             (unsigned long long)domain->inode);
    error = unix_names_visit(prefix, USER_DIGITS, count_user, &users);
    if (error)
        log_warn("cannot read /proc/net/unix: %s; the XRC domain is taken as not open in another process",
                 strerror(-error));
    return users != 0;
}

/* Checks O_CREAT and O_EXCL and binds the user name, for the first XRCD of the domain in this process: 0, -EINVAL,
 * -EAGAIN, -EMFILE... */
static int bind_user_name(struct xrc_domain *domain, int flags)
{
    int lock_fd = lock_domain(domain), error = 0;
    bool elsewhere = is_open_elsewhere(domain);
    char digits[USER_DIGITS + 1];
    uint64_t bits;

    if (elsewhere && (flags & O_CREAT) && (flags & O_EXCL))
        error = -EINVAL;
    else if (!elsewhere && !(flags & O_CREAT))
        error = -EAGAIN;
    if (!error) {
        sys_random(&bits, sizeof(bits));
        snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)bits);
        error = keep(&domain->user_name, bind_name(domain, digits));
    }
    fd_close(lock_fd);
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
    fresh->mode = status->st_nlink ? status->st_mode : 0; /* other users cannot open an unlinked file */
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

/* The kernel does not tell which users have the file open, so its mode decides. */
bool xrc_domain_admits(const struct xrc_domain *domain, uid_t uid)
{
    if (domain->is_private)
        return false;
    if (uid == geteuid() || uid == 0)
        return true;
    if (uid == domain->owner)
        return domain->mode & (S_IRUSR | S_IWUSR);
    return domain->mode & (S_IROTH | S_IWOTH);
}
