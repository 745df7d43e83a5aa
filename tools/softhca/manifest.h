/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A small tree of files in memory, its hash, and writing what is missing of it. */
#ifndef SOFTHCA_MANIFEST_H
#define SOFTHCA_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>

enum manifest_kind { MANIFEST_DIRECTORY, MANIFEST_FILE, MANIFEST_LINK };

struct manifest_entry {
    enum manifest_kind kind;
    char *path;    /* relative to the root */
    char *content; /* of a file, without the closing newline; or the target of a link */
};

struct manifest {
    struct manifest_entry *entries;
    size_t count, room;
    bool failed; /* out of memory; asked once at the end */
};

/* Directories above an entry are added by themselves. */
void manifest_directory(struct manifest *manifest, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void manifest_file(struct manifest *manifest, const char *content, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void manifest_link(struct manifest *manifest, const char *target, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void manifest_link_format(struct manifest *manifest, const char *directory, const char *name,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Names the content; two processes that come to the same name write the same bytes. */
void manifest_hash(const struct manifest *manifest, char *ret_text, size_t size);
/* 0 or -errno. Processes may do this at the same time in the same root: each entry appears complete or not at
 * all. */
int manifest_write(const struct manifest *manifest, int root);
void manifest_free(struct manifest *manifest);

#endif
