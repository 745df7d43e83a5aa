/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/unix_names.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/event.h"
#include "base/fd.h"
#include "base/netlink.h"
#include "base/types.h"

/* Bytes of the list that are read at most, because any process can make it longer. */
#define BYTES_MAX    (16u << 20)
#define LONGEST_LINE 512
#define PART_MAX     64

socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address)
{
    size_t length = min_of(strlen(name), sizeof(ret_address->sun_path) - 1);

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_address->sun_path + 1, name, length); /* abstract: behind a zero */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

struct search {
    char prefix[2 + PART_MAX + 1]; /* a space, and '@' for the zero byte of an abstract name */
    size_t prefix_length, rest_length;
    void (*visit)(const char *rest, void *argument);
    void (*visit_of)(const char *rest, uid_t uid, void *argument); /* in place of visit */
    void *argument;
    size_t total; /* bytes of the list that were read */
};

/* rest: not terminated. */
static void found(const struct search *search, const char *rest, uid_t uid)
{
    char copy[PART_MAX + 1] = {0};

    memcpy(copy, rest, search->rest_length);
    if (search->visit_of)
        search->visit_of(copy, uid, search->argument);
    else
        search->visit(copy, search->argument);
}

/* --- /proc/net/unix --------------------------------------------------------------------------------------- */

/* The line ends with the socket's name. A name may contain any byte, so the match includes the space before it. */
static void look_at(const struct search *search, const char *line, size_t length)
{
    const size_t wanted = search->prefix_length + search->rest_length;

    if (length >= wanted && memcmp(line + length - wanted, search->prefix, search->prefix_length) == 0)
        found(search, line + length - search->rest_length, UNIX_NAME_UID_UNKNOWN);
}

static int open_list(void)
{
    /* Each thread has a network namespace of its own; /proc/net shows that of the main thread. */
    int fd = fd_lift(open("/proc/thread-self/net/unix", O_RDONLY | O_CLOEXEC));

    if (fd < 0)
        fd = fd_lift(open("/proc/net/unix", O_RDONLY | O_CLOEXEC));
    return fd_own(fd);
}

static int search_list(struct search *search)
{
    char buffer[8192];
    size_t filled = 0;
    int fd = open_list();

    if (fd < 0)
        return -errno;
    while (search->total < BYTES_MAX) {
        ssize_t got = read(fd, buffer + filled, sizeof(buffer) - filled);
        char *line = buffer, *end;

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        search->total += (size_t)got;
        filled += (size_t)got;
        while ((end = memchr(line, '\n', filled - (size_t)(line - buffer))) != NULL) {
            look_at(search, line, (size_t)(end - line));
            line = end + 1;
        }
        filled -= (size_t)(line - buffer);
        if (filled > LONGEST_LINE)
            filled = 0; /* longer than any line of the list: discard */
        memmove(buffer, line, filled);
    }
    fd_close(fd);
    return 0;
}

/* --- sock_diag(7) ----------------------------------------------------------------------------------------- */

static int look_at_message(void *argument, const struct nlmsghdr *message)
{
    struct search *search = argument;
    const struct unix_diag_msg *socket = NLMSG_DATA(message);
    const size_t header = NLMSG_SPACE(sizeof(*socket));
    /* A name of the kernel's list has a space and '@' before it, an abstract one here a zero byte. */
    const size_t wanted = search->prefix_length - 1 + search->rest_length;
    uid_t uid = UNIX_NAME_UID_UNKNOWN;
    const char *name = NULL;
    unsigned left;

    search->total += message->nlmsg_len;
    if (search->total > BYTES_MAX)
        return -EFBIG;
    if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY || message->nlmsg_len < header)
        return 0;
    left = message->nlmsg_len - (unsigned)header;
    for (const struct rtattr *attribute = (const struct rtattr *)(socket + 1); RTA_OK(attribute, left);
         attribute = RTA_NEXT(attribute, left)) {
        if (attribute->rta_type == UNIX_DIAG_NAME && RTA_PAYLOAD(attribute) == wanted)
            name = RTA_DATA(attribute);
        else if (attribute->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(attribute) == sizeof(uid))
            memcpy(&uid, RTA_DATA(attribute), sizeof(uid));
    }
    if (name && !name[0] && memcmp(name + 1, search->prefix + 2, search->prefix_length - 2) == 0)
        found(search, name + search->prefix_length - 1, uid);
    return 0;
}

static int ask_for_owners(struct search *search)
{
    const struct {
        struct nlmsghdr header;
        struct unix_diag_req body;
    } request = {
        .header = {.nlmsg_len = sizeof(request),
                   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .body = {.sdiag_family = AF_UNIX,
                 .udiag_states = 1u << TCP_CLOSE,
                 .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID},
    };
    char *buffer = malloc(NETLINK_DUMP_BUFFER);
    int fd = fd_own(fd_lift(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)));
    int error = fd < 0 ? -errno : !buffer ? -ENOMEM : 0;

    if (!error)
        error = netlink_dump(fd, &request.header, buffer, look_at_message, search);
    fd_close(fd);
    free(buffer);
    return error == -EFBIG ? 0 : error;
}

/* ---------------------------------------------------------------------------------------------------------- */

static int visit_names(const char *prefix, struct search *search)
{
    int saved = errno, cancellation, error = -ENOENT;

    search->prefix_length = 2 + strlen(prefix);
    if (search->prefix_length > 2 + PART_MAX || search->rest_length > PART_MAX)
        return -EINVAL;
    memcpy(search->prefix, " @", 2);
    memcpy(search->prefix + 2, prefix, search->prefix_length - 2);
    /* A posting thread holds its QP's lock here and must not be cancelled. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    if (search->visit_of)
        error = ask_for_owners(search);
    if (error)
        error = search_list(search);
    pthread_setcancelstate(cancellation, NULL);
    errno = saved;
    return error;
}

int unix_names_visit(const char *prefix, size_t length, void (*visit)(const char *rest, void *argument),
                     void *argument)
{
    struct search search = {.rest_length = length, .visit = visit, .argument = argument};

    return visit_names(prefix, &search);
}

int unix_names_visit_unconnected(const char *prefix, size_t length,
                                 void (*visit)(const char *rest, uid_t uid, void *argument), void *argument)
{
    struct search search = {.rest_length = length, .visit_of = visit, .argument = argument};

    return visit_names(prefix, &search);
}
