/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of a dma-buf, mapped into this process (verbs.md §4.1). Hardware would reach it by itself; we
 * are a processor, to which its exporter has to be willing to show it. */
#ifndef OBJECT_MEMORY_DMABUF_H
#define OBJECT_MEMORY_DMABUF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct dmabuf {
    char *at;      /* what was asked for; NULL: none */
    size_t offset; /* in front of it, mapped with it */
    size_t length;
    int fd; /* ours */
    dev_t device;
    ino_t inode;
};

/* The program may close its descriptor afterwards. -EBADF; -EINVAL: not a dma-buf, or beyond its end;
 * -EACCES: written to, and the descriptor is read-only; -EOPNOTSUPP: its exporter does not let processors map
 * it. */
int dmabuf_map(int fd, uint64_t offset, size_t length, bool write, struct dmabuf *ret_dmabuf);
void dmabuf_unmap(struct dmabuf *dmabuf);

#endif
