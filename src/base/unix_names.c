/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/unix_names.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/event.h"
#include "base/fd.h"
#include "base/types.h"

/* Bytes of the list that are read at most, because any process can make it longer. */
#define BYTES_MAX    (16u << 20)
#define LONGEST_LINE 512
#define PART_MAX     64

socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address)
{
    size_t length = strnlen(name, sizeof(ret_address->sun_path) - 1);

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_address->sun_path + 1, name, length); /* abstract: behind a zero */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

struct search {
    char prefix[2 + PART_MAX + 1]; /* a space, and '@' for the zero byte of an abstract name */
    size_t prefix_length, rest_length;
    void (*visit)(const char *rest, void *argument);
    void *argument;
};

/* The line ends with the socket's name. A name may contain any byte, so the match includes the space before it. */
static void look_at(const struct search *search, const char *line, size_t length)
{
    const size_t wanted = search->prefix_length + search->rest_length;
    char rest[PART_MAX + 1] = {0};

    if (length < wanted || memcmp(line + length - wanted, search->prefix, search->prefix_length) != 0)
        return;
    memcpy(rest, line + length - search->rest_length, search->rest_length);
    search->visit(rest, search->argument);
}

static int open_list(void)
{
    /* Each thread has a network namespace of its own; /proc/net shows that of the main thread. */
    int fd = fd_lift(open("/proc/thread-self/net/unix", O_RDONLY | O_CLOEXEC));

    if (fd < 0)
        fd = fd_lift(open("/proc/net/unix", O_RDONLY | O_CLOEXEC));
    return fd_own(fd);
}

static int search_list(const struct search *search)
{
    char buffer[8192];
    size_t filled = 0, total = 0;
    int fd = open_list();

    if (fd < 0)
        return -errno;
    while (total < BYTES_MAX) {
        ssize_t got = read(fd, buffer + filled, sizeof(buffer) - filled);
        char *line = buffer, *end;

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        total += (size_t)got;
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

int unix_names_visit(const char *prefix, size_t length, void (*visit)(const char *rest, void *argument),
                     void *argument)
{
    struct search search = {.prefix = " @",
                            .prefix_length = 2 + strlen(prefix),
                            .rest_length = length,
                            .visit = visit,
                            .argument = argument};
    int saved = errno, cancellation, error;

    if (search.prefix_length > 2 + PART_MAX || length > PART_MAX)
        return -EINVAL;
    memcpy(search.prefix + 2, prefix, search.prefix_length - 2);
    /* A posting thread holds its QP's lock here and must not be cancelled. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    error = search_list(&search);
    pthread_setcancelstate(cancellation, NULL);
    errno = saved;
    return error;
}
