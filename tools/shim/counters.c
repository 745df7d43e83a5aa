/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "counters.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../softhca/counters.h"
#include "base/lock.h"
#include "base/sys.h"
#include "redirect.h"

#define PARTS 5 /* DEVICE/ports/1/FOLDER/NAME */

static struct {
    struct lock lock; /* only tried: a thread that a fork has left behind may hold it */
    ns_t read_ns;     /* 0: never */
    int count;
    struct ledger_port ports[STATS_PORTS_MAX];
} latest = {.lock = LOCK_INIT};

/* The last components of a path, the last one first. */
static bool split(char *path, char *ret_parts[PARTS])
{
    for (unsigned i = 0; i < PARTS; i++) {
        char *slash;

        while ((slash = strrchr(path, '/')) != NULL && slash[1] == '\0')
            *slash = '\0';
        if (!slash)
            return false;
        *slash = '\0';
        ret_parts[i] = slash + 1;
    }
    return true;
}

static int find_file(const char *folder, const char *name)
{
    const struct stats_file *files;
    unsigned count = stats_files(&files);

    for (unsigned i = 0; i < count; i++) {
        if (strcmp(files[i].folder, folder) == 0 && strcmp(files[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

/* The ledger lies beside the trees, in the user's own directory. */
static int read_ports(struct ledger_port *ret, unsigned room)
{
    char path[PATH_MAX];
    const char *root = redirect_root();
    size_t length = root ? strlen(root) : 0;
    int directory, error, count;

    if (!length || length + 4 > sizeof(path))
        return -ENOENT;
    memcpy(path, root, length);
    memcpy(path + length, "/..", 4);
    directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    count = counters_ports(directory, false, ret, room, &error);
    if (directory >= 0)
        close(directory);
    return count;
}

static bool find_value(const char *device, int file, uint64_t *ret)
{
    bool cached = lock_try(&latest.lock);
    struct ledger_port *ports = latest.ports, *own = NULL;
    int count = -1;

    if (!cached) {
        own = ports = malloc(STATS_PORTS_MAX * sizeof(*ports));
        if (ports)
            count = read_ports(ports, STATS_PORTS_MAX);
    } else {
        ns_t now = sys_now();

        /* A program that reads all files of a port gets them of one time, as from drivers. */
        if (!latest.read_ns || now - latest.read_ns > COUNTERS_LIFE_MS * NS_PER_MS) {
            latest.count = read_ports(latest.ports, STATS_PORTS_MAX);
            latest.read_ns = now;
        }
        count = latest.count;
    }
    *ret = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(ports[i].device, device) == 0)
            *ret = ports[i].values.value[file];
    }
    if (cached)
        lock_release(&latest.lock);
    free(own);
    return count >= 0;
}

int counters_open(const char *path, int flags)
{
    char copy[REDIRECT_MAX], *part[PARTS], text[32];
    int saved = errno, file, fd, length;
    uint64_t value;

    if ((flags & (O_ACCMODE | O_CREAT | O_TRUNC | O_DIRECTORY | O_PATH)) != O_RDONLY ||
        strlen(path) >= sizeof(copy))
        return -1;
    strcpy(copy, path);
    if (!split(copy, part) || strcmp(part[2], "1") != 0 || strcmp(part[3], "ports") != 0)
        return -1;
    file = find_file(part[1], part[0]);
    if (file < 0 || access(path, R_OK) || !find_value(part[4], file, &value)) {
        errno = saved;
        return -1;
    }
    length = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)value);
    fd = memfd_create("softhca-counter", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (fd >= 0 && (write(fd, text, (size_t)length) != length || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        fd = -1;
    }
    errno = saved;
    return fd;
}

FILE *counters_fopen(const char *path, const char *mode)
{
    int fd = counters_open(path, strchr(mode, 'e') ? O_RDONLY | O_CLOEXEC : O_RDONLY);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");

    if (fd >= 0 && !file)
        close(fd);
    return file;
}
