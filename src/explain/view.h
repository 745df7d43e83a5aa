/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A published segment for reading: our own, which is mapped, or another process's, whose file is read. The owner
 * continues to change it and may be hostile: records are copied once, with bounds that were checked when the view was
 * opened, and only the copy is used. Another process's is not mapped: its owner chose its size, and to touch its holes
 * would take memory of ours (base/memory_file.h). */
#ifndef EXPLAIN_VIEW_H
#define EXPLAIN_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "segment/segment.h"

/* Processes that a look has asked the kernel about. */
#define VIEW_ASKED 32u
struct view_asked {
    unsigned count;
    struct {
        int32_t pid;
        bool stopped;
    } of[VIEW_ASKED];
};

struct view {
    const char *base; /* NULL: the files are read */
    uint64_t size;
    int fd;               /* of the tables, also to find their empty parts; -1: all is read */
    int queues_fd;        /* if base is NULL */
    uint64_t tables_size; /* if base is NULL: offsets from here on are in the other file */
    pid_t pid;            /* by which we see the process in /proc; 0: we do not */
    bool same_pids;       /* the numbers of threads and processes that it knows are ours, too */
    /* The segment of another process of this host, by the number that this one knows; NULL, or answers NULL:
     * unknown. */
    const struct view *(*find_peer)(int32_t pid);
    /* Those of all processes of this host that we may look at, from 0 on; NULL behind the last, or not set. */
    const struct view *(*find_process)(unsigned index);
    struct view_asked
        *asked; /* each process is asked about once, and so many at most; NULL: whenever it matters */
    struct segment_header header;
    uint64_t now_ns; /* as it was when the view was opened */
    uint32_t stamp;
};

/* By which we see the process, or it sees itself where we do not. */
static inline pid_t view_pid(const struct view *view)
{
    return view->pid ? view->pid : (pid_t)view->header.pid;
}

/* A segment that is mapped, fd: of its tables, or -1. 0; -EPROTO: no segment of ours, or a damaged one;
 * -EPROTONOSUPPORT: of another version. */
int view_open(struct view *ret_view, const void *base, uint64_t size, int fd, pid_t pid);
/* So one whose files are read, which memory_file_check() has accepted. */
int view_open_files(struct view *ret_view, const int files[SEGMENT_PARTS],
                    const uint64_t sizes[SEGMENT_PARTS], pid_t pid);

/* Copies; false if it is not all inside the segment. */
bool view_copy(const struct view *view, uint64_t offset, void *ret, size_t size);
/* One record; false if the table has no such number. */
bool view_record(const struct view *view, const struct segment_table *table, uint32_t number, void *ret);

/* Walks over the numbers of a table whose records may hold something. */
struct view_walk {
    const struct view *view;
    const struct segment_table *table;
    uint64_t next;   /* number */
    uint64_t filled; /* number; up to there the segment is not empty */
};
struct view_walk view_walk(const struct view *view, const struct segment_table *table);
/* The next record, copied; false at the end. */
bool view_next(struct view_walk *walk, uint32_t *ret_number, void *ret_record);

/* How long ago that was, in milliseconds. */
uint64_t view_age(const struct view *view, uint64_t ns);
uint64_t view_stamp_age(const struct view *view, uint32_t stamp);

#endif
