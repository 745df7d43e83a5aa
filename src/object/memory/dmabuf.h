/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of a dma-buf, mapped into this process (verbs.md §4.1). SoftHCA accesses it by the processor, which the
 * dma-buf's exporter has to permit. */
#ifndef OBJECT_MEMORY_DMABUF_H
#define OBJECT_MEMORY_DMABUF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct dmabuf {
    char *at;      /* the registered range; NULL: none */
    size_t offset; /* bytes mapped in front of `at` */
    size_t length;
    int fd; /* our duplicate of the program's descriptor */
    dev_t device;
    ino_t inode;
};

/* The program may close its descriptor afterwards. -EBADF; -EINVAL: not a dma-buf, or beyond its end; -EACCES:
 * write access by a read-only descriptor; -EOPNOTSUPP: the exporter does not permit mapping by the processor. */
int dmabuf_map(int fd, uint64_t offset, size_t length, bool write, struct dmabuf *ret_dmabuf);
void dmabuf_unmap(struct dmabuf *dmabuf);

#endif
