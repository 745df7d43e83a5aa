/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool known(const struct manifest *manifest, const char *path)
{
    for (size_t i = 0; i < manifest->count; i++) {
        if (strcmp(manifest->entries[i].path, path) == 0)
            return true;
    }
    return false;
}

static void append(struct manifest *manifest, enum manifest_kind kind, const char *path, const char *content)
{
    struct manifest_entry *entry;

    if (manifest->count == manifest->room) {
        size_t room = manifest->room ? 2 * manifest->room : 64;
        void *grown = reallocarray(manifest->entries, room, sizeof(*manifest->entries));

        if (!grown) {
            manifest->failed = true;
            return;
        }
        manifest->entries = grown;
        manifest->room = room;
    }
    entry = &manifest->entries[manifest->count];
    entry->kind = kind;
    entry->path = strdup(path);
    entry->content = strdup(content);
    if (entry->path && entry->content) {
        manifest->count++;
        return;
    }
    free(entry->path);
    free(entry->content);
    manifest->failed = true;
}

static void add(struct manifest *manifest, enum manifest_kind kind, const char *content, const char *format,
                va_list arguments)
{
    char path[PATH_MAX];

    vsnprintf(path, sizeof(path), format, arguments);
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (!known(manifest, path))
            append(manifest, MANIFEST_DIRECTORY, path, "");
        *slash = '/';
    }
    if (!known(manifest, path))
        append(manifest, kind, path, content);
}

void manifest_directory(struct manifest *manifest, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    add(manifest, MANIFEST_DIRECTORY, "", format, arguments);
    va_end(arguments);
}

void manifest_file(struct manifest *manifest, const char *content, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    add(manifest, MANIFEST_FILE, content, format, arguments);
    va_end(arguments);
}

void manifest_link(struct manifest *manifest, const char *target, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    add(manifest, MANIFEST_LINK, target, format, arguments);
    va_end(arguments);
}

void manifest_link_format(struct manifest *manifest, const char *directory, const char *name,
                          const char *format, ...)
{
    char target[PATH_MAX];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(target, sizeof(target), format, arguments);
    va_end(arguments);
    manifest_link(manifest, target, "%s/%s", directory, name);
}

/* FNV-1a, twice with different bases: distinguishes configurations of one user's machine; no protection
 * against attacks. */
void manifest_hash(const struct manifest *manifest, char *ret_text, size_t size)
{
    uint64_t hash[2] = {0xcbf29ce484222325u, 0x6c62272e07bb0142u};

    for (size_t i = 0; i < manifest->count; i++) {
        const struct manifest_entry *entry = &manifest->entries[i];
        const char *const parts[] = {entry->kind == MANIFEST_DIRECTORY ? "d"
                                     : entry->kind == MANIFEST_FILE    ? "f"
                                                                       : "l",
                                     entry->path, entry->content};

        for (size_t part = 0; part < 3; part++) {
            /* With the closing zero, so that no two entries run together. */
            for (size_t at = 0; at <= strlen(parts[part]); at++) {
                for (int which = 0; which < 2; which++)
                    hash[which] = (hash[which] ^ (uint8_t)parts[part][at]) * 0x100000001b3u;
            }
        }
    }
    snprintf(ret_text, size, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

static int write_file(int root, const struct manifest_entry *entry)
{
    char temporary[PATH_MAX + 32];
    size_t length = strlen(entry->content);
    int fd, error = 0;

    snprintf(temporary, sizeof(temporary), "%s.new-%d", entry->path, (int)getpid());
    fd = openat(root, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    if (write(fd, entry->content, length) != (ssize_t)length || write(fd, "\n", 1) != 1 || fchmod(fd, 0444))
        error = errno ? -errno : -EIO;
    close(fd);
    if (!error && renameat(root, temporary, root, entry->path))
        error = -errno;
    if (error)
        unlinkat(root, temporary, 0);
    return error;
}

int manifest_write(const struct manifest *manifest, int root)
{
    for (size_t i = 0; i < manifest->count; i++) {
        const struct manifest_entry *entry = &manifest->entries[i];
        struct stat status;
        int error = 0;

        if (fstatat(root, entry->path, &status, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        switch (entry->kind) {
        case MANIFEST_DIRECTORY:
            error = mkdirat(root, entry->path, 0755) && errno != EEXIST ? -errno : 0;
            break;
        case MANIFEST_FILE:
            error = write_file(root, entry);
            break;
        case MANIFEST_LINK:
            error = symlinkat(entry->content, root, entry->path) && errno != EEXIST ? -errno : 0;
            break;
        }
        if (error)
            return error;
    }
    return 0;
}

void manifest_free(struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->count; i++) {
        free(manifest->entries[i].path);
        free(manifest->entries[i].content);
    }
    free(manifest->entries);
    *manifest = (struct manifest){0};
}
