/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "counters.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"

int counted_read(bool by_sockets, bool own_space, bool with_qps, struct counted *ret)
{
    struct attached *around = NULL;
    unsigned count = by_sockets ? attach_all(&around) : attach_visible(&around);
    int error = 0;

    *ret = (struct counted){.list = calloc(count ? count : 1, sizeof(*ret->list))};
    if (!ret->list)
        error = -ENOMEM;
    for (unsigned i = 0; i < count && !error; i++) {
        if (around[i].files[SEGMENT_TABLES] < 0)
            ret->hidden++;
        else if (!own_space || attached_is_of_own_network(&around[i]))
            error = stats_read(&around[i].view, with_qps, &ret->list[ret->count++]);
    }
    attached_free(around, count);
    if (error)
        counted_free(ret);
    return error;
}

void counted_free(struct counted *counted)
{
    for (unsigned i = 0; i < counted->count; i++)
        stats_free(&counted->list[i]);
    free(counted->list);
    *counted = (struct counted){0};
}

int counters_ports(int directory, bool by_sockets, struct ledger_port *ret_ports, unsigned room,
                   int *ret_error)
{
    struct counted counted;
    char boot[64] = "", name[64], space[128];
    int error = counted_read(by_sockets, true, false, &counted), fd;
    unsigned count;

    if (error)
        return error;
    fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t length = read(fd, boot, sizeof(boot) - 1);

        boot[length > 0 ? length : 0] = '\0';
        boot[strcspn(boot, "\n")] = '\0';
        close(fd);
    }
    snprintf(name, sizeof(name), "counters-%llu", (unsigned long long)network_of("self"));
    snprintf(space, sizeof(space), "space %.40s %s", boot, name);
    *ret_error = ledger_update(directory, name, space, counted.list, counted.count, ret_ports, room, &count);
    counted_free(&counted);
    return (int)count;
}
