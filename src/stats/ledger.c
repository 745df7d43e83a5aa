/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The counters of a process vanish with it, and those of a port must not fall: a file keeps what was seen last of
 * each. It is read and replaced by one at a time (flock). A line for each process and device:
 *
 *   space NAME
 *   past DEVICE VALUE...            of all processes that ended long ago
 *   process INSTANCE DEVICE VALUE...
 *
 * An entry is never lowered: a process that was not readable for a while, or that lies, is counted once. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/types.h"
#include "stats/stats.h"

/* Entries of processes that have ended; the oldest beyond them are added up. */
#define ENDED_MAX 1024u
#define FILE_MAX  (64l << 20)
/* Names, and 20 digits for each value. */
#define LINE_ROOM (STATS_DEVICE + INSTANCE_TEXT + 22 * STATS_FILES_MAX)

#define INSTANCE_TEXT 33
#define PAST          "-" /* the instance of what is added up */

struct entry {
    char instance[INSTANCE_TEXT];
    bool exists;
    struct ledger_port port;
};

struct ledger {
    struct entry *list;
    unsigned count, room;
    bool failed; /* no memory */
};

static struct entry *find(struct ledger *ledger, const char *instance, const char *device)
{
    struct entry *list;

    for (unsigned i = 0; i < ledger->count; i++) {
        if (strcmp(ledger->list[i].instance, instance) == 0 &&
            strcmp(ledger->list[i].port.device, device) == 0)
            return &ledger->list[i];
    }
    if (ledger->count == ledger->room) {
        unsigned room = ledger->room ? ledger->room * 2 : 32;

        list = realloc(ledger->list, room * sizeof(*list));
        if (!list) {
            ledger->failed = true;
            return NULL;
        }
        ledger->list = list;
        ledger->room = room;
    }
    list = &ledger->list[ledger->count++];
    memset(list, 0, sizeof(*list));
    snprintf(list->instance, sizeof(list->instance), "%s", instance);
    snprintf(list->port.device, sizeof(list->port.device), "%s", device);
    return list;
}

static void raise_values(struct stats_values *to, const struct stats_values *from)
{
    for (unsigned i = 0; i < STATS_FILES_MAX; i++)
        to->value[i] = max_of(to->value[i], from->value[i]);
}

static void add_values(struct stats_values *to, const struct stats_values *from)
{
    for (unsigned i = 0; i < STATS_FILES_MAX; i++)
        counter_add(&to->value[i], from->value[i]);
}

/* --- the file -------------------------------------------------------------------------------------------- */

static void read_entry(struct ledger *ledger, char *line)
{
    char *rest, *instance = strtok_r(line, " \n", &rest), *device = strtok_r(NULL, " \n", &rest), *value;
    struct entry *entry;

    if (!instance || !device || strlen(instance) >= INSTANCE_TEXT || strlen(device) >= STATS_DEVICE)
        return;
    entry = find(ledger, instance, device);
    for (unsigned i = 0; entry && i < STATS_FILES_MAX && (value = strtok_r(NULL, " \n", &rest)) != NULL; i++)
        entry->port.values.value[i] = strtoull(value, NULL, 10);
}

/* The whole file, with a zero behind it; NULL: it cannot be read. */
static char *read_file(int fd)
{
    struct stat status;
    char *text = NULL;
    size_t length = 0;
    ssize_t got = 1;

    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < FILE_MAX)
        text = malloc((size_t)status.st_size + 1);
    while (text && length < (size_t)status.st_size && got > 0) {
        got = read(fd, text + length, (size_t)status.st_size - length);
        length += got > 0 ? (size_t)got : 0;
    }
    if (text)
        text[length] = '\0';
    return text;
}

static void read_ledger(struct ledger *ledger, int fd, const char *space)
{
    char *text = read_file(fd), *rest, *line = text ? strtok_r(text, "\n", &rest) : NULL;

    if (line && strcmp(line, space) == 0) {
        while ((line = strtok_r(NULL, "\n", &rest)) != NULL)
            read_entry(ledger, line);
    }
    free(text);
}

static int write_line(int fd, const char *line, size_t length)
{
    ssize_t written = write(fd, line, length);

    if (written < 0)
        return -errno;
    return (size_t)written == length ? 0 : -ENOSPC;
}

static int write_entry(int fd, const struct entry *entry)
{
    const struct stats_file *files;
    unsigned values = stats_files(&files);
    char line[LINE_ROOM];
    size_t length = (size_t)snprintf(line, sizeof(line), "%s %s", entry->instance, entry->port.device);

    for (unsigned i = 0; i < values; i++)
        length +=
            (size_t)snprintf(line + length, sizeof(line) - length, " %" PRIu64, entry->port.values.value[i]);
    line[length++] = '\n';
    return write_line(fd, line, length);
}

static int write_ledger(const struct ledger *ledger, int directory, const char *name, const char *space)
{
    char temporary[64];
    int fd, error;

    snprintf(temporary, sizeof(temporary), ".%s.new", name); /* of one at a time: the lock is held */
    unlinkat(directory, temporary, 0);
    fd = fd_lift(openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return -errno;
    error = write_line(fd, space, strlen(space));
    if (!error)
        error = write_line(fd, "\n", 1);
    for (unsigned i = 0; i < ledger->count && !error; i++)
        error = write_entry(fd, &ledger->list[i]);
    close(fd);
    if (!error && renameat(directory, temporary, directory, name))
        error = -errno;
    if (error)
        unlinkat(directory, temporary, 0);
    return error;
}

/* --- bringing it up to date ------------------------------------------------------------------------------ */

static void note_process(struct ledger *ledger, const struct stats_process *process)
{
    char instance[INSTANCE_TEXT];

    for (unsigned i = 0; i < sizeof(process->instance); i++)
        snprintf(instance + 2 * i, 3, "%02x", process->instance[i]);
    for (unsigned i = 0; i < process->port_count; i++) {
        struct entry *entry = find(ledger, instance, process->ports[i].device);
        struct stats_values values;

        if (!entry)
            return;
        stats_port_values(&process->ports[i].sum, &values);
        raise_values(&entry->port.values, &values);
        entry->exists = true;
    }
}

/* The entries are in the order in which they came. */
static void add_up_the_oldest(struct ledger *ledger)
{
    unsigned ended = 0, kept = 0;

    for (unsigned i = 0; i < ledger->count; i++)
        ended += !ledger->list[i].exists;
    if (ended <= 2 * ENDED_MAX)
        return;
    for (unsigned i = 0; i < ledger->count && ended > ENDED_MAX; i++) {
        struct entry *entry = &ledger->list[i], *past;
        struct ledger_port port = entry->port;

        if (entry->exists || !entry->instance[0] || strcmp(entry->instance, PAST) == 0)
            continue;
        entry->instance[0] = '\0';
        past = find(ledger, PAST, port.device);
        if (!past)
            return;
        add_values(&past->port.values, &port.values);
        ended--;
    }
    for (unsigned i = 0; i < ledger->count; i++) {
        if (ledger->list[i].instance[0])
            ledger->list[kept++] = ledger->list[i];
    }
    ledger->count = kept;
}

static unsigned sum_ports(const struct ledger *ledger, struct ledger_port *ret, unsigned room)
{
    unsigned count = 0;

    for (unsigned i = 0; i < ledger->count; i++) {
        const struct ledger_port *port = &ledger->list[i].port;
        unsigned j = 0;

        while (j < count && strcmp(ret[j].device, port->device) != 0)
            j++;
        if (j == room)
            continue;
        if (j == count) {
            memset(&ret[count], 0, sizeof(ret[count]));
            snprintf(ret[count].device, sizeof(ret[count].device), "%s", port->device);
            count++;
        }
        add_values(&ret[j].values, &port->values);
    }
    return count;
}

/* Held until the descriptor is closed, also by the kernel. */
static int lock_ledger(int directory, const char *name)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), ".%s.lock", name);
    fd = fd_lift(openat(directory, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return -errno;
    while (flock(fd, LOCK_EX)) {
        if (errno != EINTR) {
            int error = -errno;

            close(fd);
            return error;
        }
    }
    return fd;
}

int ledger_update(int directory, const char *name, const char *space, const struct stats_process *processes,
                  unsigned count, struct ledger_port *ret_ports, unsigned room, unsigned *ret_count)
{
    struct ledger ledger = {0};
    int lock = lock_ledger(directory, name), error = min_of(lock, 0), fd;

    fd = lock < 0 ? -1 : fd_lift(openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (fd >= 0) {
        read_ledger(&ledger, fd, space);
        close(fd);
    }
    for (unsigned i = 0; i < count; i++)
        note_process(&ledger, &processes[i]);
    add_up_the_oldest(&ledger);
    if (!error)
        error = ledger.failed ? -ENOMEM : write_ledger(&ledger, directory, name, space);
    *ret_count = sum_ports(&ledger, ret_ports, room);
    free(ledger.list);
    if (lock >= 0)
        close(lock);
    return error;
}
