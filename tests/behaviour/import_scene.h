/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A device of one process, which others import by its file. Whatever ends in _here is done at one side, to a
 * struct part. */
#ifndef TESTS_BEHAVIOUR_IMPORT_SCENE_H
#define TESTS_BEHAVIOUR_IMPORT_SCENE_H

#include <sys/types.h>

#include "work.h"

/* What one side has of another one's device. Pointers mean something only on their side. */
struct part {
    pid_t owner;
    int cmd_fd; /* of the owner's */
    uint32_t pd_handle, dm_handle, mr_handle;
    uid_t user; /* to become, before anything else; 0: none */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_dm *dm;
    struct ibv_mr *mr;
    int error;
    uint32_t word;
};

extern char memory[4096]; /* of this process, to be registered */

void make_here(void *arg);
/* Another process's descriptor. */
int open_of(pid_t owner, int fd);
void import_here(void *arg);
void import_at(struct side *side, struct part *part, const struct part *of);
void unimport_here(void *arg);
void register_here(void *arg);
void register_dm_here(void *arg);
void deregister_here(void *arg);
void dealloc_here(void *arg);
void free_dm_here(void *arg);
void read_dm_here(void *arg);
void write_dm_here(void *arg);
void close_here(void *arg);
void unimport_pd_here(void *arg);
void unimport_dm_here(void *arg);
int result_at(struct side *side, side_fn *fn, struct part *part);
void at(struct side *side, side_fn *fn, struct part *part);

#endif
