/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which blocks are owned on this host: the kernel's list of unix sockets names them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "local/greeting.h"
#include "local/rendezvous.h"

/* A host with more sockets than this has the rest of them ignored: the list is somebody else's to fill. */
#define BYTES_MAX    (16u << 20)
#define LONGEST_LINE 512

/* A line ends with the socket's name, '@' for the zero of an abstract one; a name may contain anything, so
 * ours must be all of it. */
static bool block_of_line(const char *line, size_t length, uint32_t *ret_block)
{
    static const char prefix[] = " @" BLOCK_NAME_PREFIX;
    const size_t name = sizeof(prefix) - 1 + 4;
    const char *digits = line + length - 4;
    uint32_t block = 0;

    if (length < name || memcmp(line + length - name, prefix, sizeof(prefix) - 1) != 0)
        return false;
    for (int i = 0; i < 4; i++) {
        char digit = digits[i];

        if (digit >= '0' && digit <= '9')
            block = block << 4 | (uint32_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f')
            block = block << 4 | (uint32_t)(digit - 'a' + 10);
        else
            return false;
    }
    *ret_block = block;
    return block != 0 && block <= BLOCKS_LAST;
}

static unsigned visit_line(const char *line, size_t length)
{
    uint32_t block;

    if (!block_of_line(line, length, &block) || link_table_get(block))
        return 0;
    rendezvous_want(block);
    return 1;
}

static int open_list(void)
{
    /* The network namespace is a thread's: /proc/net would be that of the main thread. */
    int fd = open("/proc/thread-self/net/unix", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        fd = open("/proc/net/unix", O_RDONLY | O_CLOEXEC);
    return fd_own(fd);
}

static unsigned read_list(void)
{
    char buffer[8192];
    size_t filled = 0, total = 0;
    unsigned found = 0;
    int saved = errno, fd = open_list();

    if (fd < 0) {
        log_warn("other processes cannot be discovered: /proc/net/unix: %m");
        errno = saved;
        return 0;
    }
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
            found += visit_line(line, (size_t)(end - line));
            line = end + 1;
        }
        filled -= (size_t)(line - buffer);
        if (filled > LONGEST_LINE)
            filled = 0; /* no line is that long: not what we think it is */
        memmove(buffer, line, filled);
    }
    fd_close(fd);
    errno = saved;
    return found;
}

unsigned discover_blocks(void)
{
    unsigned found;
    int cancellation;

    /* A thread that posts holds its QP's lock: it must not be cancelled while it reads. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    found = read_list();
    pthread_setcancelstate(cancellation, NULL);
    return found;
}
