/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "redirect.h"

#include <stdlib.h>
#include <string.h>

/* As the tree below SOFTHCA_SYSFS_ROOT has them (tools/softhca/tree.c). */
static const struct {
    const char *name;
    enum redirect_kind kind;
} prefixes[] = {
    {"/sys/class/infiniband", REDIRECT_SYSFS},
    {"/sys/class/infiniband_verbs", REDIRECT_SYSFS},
    {"/sys/devices/virtual/softhca", REDIRECT_SYSFS},
    {"/dev/infiniband", REDIRECT_DEVICE},
};

/* secure_getenv: a setuid program that was given our environment on purpose must see the machine as it is. */
const char *redirect_root(void)
{
    const char *root = secure_getenv("SOFTHCA_SYSFS_ROOT");

    return root && root[0] == '/' && root[1] ? root : NULL;
}

static const char *skip_separators(const char *path)
{
    for (;;) {
        if (*path == '/')
            path++;
        else if (path[0] == '.' && (path[1] == '/' || path[1] == '\0'))
            path++;
        else
            return path;
    }
}

/* Component by component, because programs glue paths together with doubled slashes. Returns what follows the
 * prefix:
 * "" or something that begins with a slash; NULL if it is another path. */
static const char *behind_prefix(const char *path, const char *prefix)
{
    while (*prefix == '/') {
        size_t length = strcspn(++prefix, "/");

        path = skip_separators(path);
        if (strncmp(path, prefix, length) != 0 || (path[length] != '/' && path[length] != '\0'))
            return NULL;
        path += length;
        prefix += length;
    }
    return path;
}

const char *redirect_path(const char *path, struct redirect *ret)
{
    const char *root, *tail = NULL;
    size_t which, root_length, prefix_length, tail_length;

    ret->kind = REDIRECT_NONE;
    /* Almost all calls of a program return here. */
    if (!path || path[0] != '/')
        return path;
    for (which = 0; which < sizeof(prefixes) / sizeof(prefixes[0]); which++) {
        tail = behind_prefix(path, prefixes[which].name);
        if (tail)
            break;
    }
    if (!tail)
        return path;
    root = redirect_root();
    if (!root)
        return path;
    root_length = strlen(root);
    prefix_length = strlen(prefixes[which].name);
    tail_length = strlen(tail);
    if (root_length >= REDIRECT_MAX || tail_length >= REDIRECT_MAX ||
        root_length + prefix_length + tail_length >= REDIRECT_MAX)
        return path;
    memcpy(ret->path, root, root_length);
    memcpy(ret->path + root_length, prefixes[which].name, prefix_length);
    memcpy(ret->path + root_length + prefix_length, tail, tail_length + 1);
    ret->kind = prefixes[which].kind;
    return ret->path;
}

void redirect_hide_root(char *path)
{
    const char *root = redirect_root();
    size_t length = root ? strlen(root) : 0;

    if (length && strncmp(path, root, length) == 0 && path[length] == '/')
        memmove(path, path + length, strlen(path + length) + 1);
}
