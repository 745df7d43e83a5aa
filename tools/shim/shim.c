/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libsofthca-shim.so, preloaded by `softhca run`: shows the sysfs files and device nodes that some programs
 * look for beside the verbs library (UCX wants a character device, rdma-core's tests an interface name). Each
 * function below is libc's, on another path where the path is one of ours; all else goes straight to libc, so
 * a cancellation point stays one. Interposing from libibverbs itself would not do: UCX loads it with local
 * scope, behind libc.
 */
/* Each name is defined by itself here: the headers must not turn stat into stat64, open into a checked inline, nor, as
 * before glibc 2.33, stat into an inline of __xstat. */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE
#include <features.h>
#undef __USE_EXTERN_INLINES
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "counters.h"
#include "libc.h"
#include "redirect.h"

/* sysfs shows its attributes read-only, to root as well; and the tree is shared by all programs of this user.
 */
static bool writes_sysfs(const struct redirect *where, int flags)
{
    return where->kind == REDIRECT_SYSFS &&
           ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)));
}

/* The nodes below /dev/infiniband are links to /dev/null in the tree, but must not look like links. */
static int without_nofollow(const struct redirect *where, int flags)
{
    return where->kind == REDIRECT_DEVICE ? flags & ~AT_SYMLINK_NOFOLLOW : flags;
}

/* --- open --- */

/* True: the call returns *ret, a file that the shim makes, or -1 of one that cannot be written. False: *path is where
 * the file is, in the memory of *where. */
static bool opens_here(const char **path, int flags, struct redirect *where, int *ret)
{
    *path = redirect_path(*path, where);
    if (writes_sysfs(where, flags)) {
        errno = EACCES;
        *ret = -1;
        return true;
    }
    return where->kind == REDIRECT_SYSFS && (*ret = counters_open(*path, flags)) >= 0;
}

#define MODE_OF(flags, last)                                                                                 \
    ({                                                                                                       \
        mode_t mode_ = 0;                                                                                    \
        if (((flags)&O_CREAT) || ((flags)&O_TMPFILE) == O_TMPFILE) {                                         \
            va_list arguments_;                                                                              \
            va_start(arguments_, last);                                                                      \
            mode_ = va_arg(arguments_, mode_t);                                                              \
            va_end(arguments_);                                                                              \
        }                                                                                                    \
        mode_;                                                                                               \
    })

#define DEFINE_OPEN(name)                                                                                    \
    exported int name(const char *path, int flags, ...)                                                      \
    {                                                                                                        \
        struct redirect where;                                                                               \
        int made;                                                                                            \
        mode_t mode = MODE_OF(flags, flags);                                                                 \
        if (opens_here(&path, flags, &where, &made))                                                         \
            return made;                                                                                     \
        return CALL_OR(-1, #name, int (*)(const char *, int, ...), path, flags, mode);                       \
    }

#define DEFINE_OPENAT(name)                                                                                  \
    exported int name(int directory, const char *path, int flags, ...)                                       \
    {                                                                                                        \
        struct redirect where;                                                                               \
        int made;                                                                                            \
        mode_t mode = MODE_OF(flags, flags);                                                                 \
        if (opens_here(&path, flags, &where, &made))                                                         \
            return made;                                                                                     \
        return CALL_OR(-1, #name, int (*)(int, const char *, int, ...), directory, path, flags, mode);       \
    }

/* What open(path, flags) becomes under _FORTIFY_SOURCE. */
#define DEFINE_OPEN_2(name)                                                                                  \
    int name(const char *path, int flags);                                                                   \
    exported int name(const char *path, int flags)                                                           \
    {                                                                                                        \
        struct redirect where;                                                                               \
        int made;                                                                                            \
        if (opens_here(&path, flags, &where, &made))                                                         \
            return made;                                                                                     \
        return CALL_OR(-1, #name, int (*)(const char *, int), path, flags);                                  \
    }

#define DEFINE_OPENAT_2(name)                                                                                \
    int name(int directory, const char *path, int flags);                                                    \
    exported int name(int directory, const char *path, int flags)                                            \
    {                                                                                                        \
        struct redirect where;                                                                               \
        int made;                                                                                            \
        if (opens_here(&path, flags, &where, &made))                                                         \
            return made;                                                                                     \
        return CALL_OR(-1, #name, int (*)(int, const char *, int), directory, path, flags);                  \
    }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
DEFINE_OPEN_2(__open_2)
DEFINE_OPEN_2(__open64_2)
DEFINE_OPENAT_2(__openat_2)
DEFINE_OPENAT_2(__openat64_2)

#define DEFINE_FOPEN(name)                                                                                   \
    exported FILE *name(const char *path, const char *mode)                                                  \
    {                                                                                                        \
        struct redirect where;                                                                               \
        FILE *made;                                                                                          \
        path = redirect_path(path, &where);                                                                  \
        if (where.kind == REDIRECT_SYSFS && (mode[0] != 'r' || strchr(mode, '+'))) {                         \
            errno = EACCES;                                                                                  \
            return NULL;                                                                                     \
        }                                                                                                    \
        if (where.kind == REDIRECT_SYSFS && (made = counters_fopen(path, mode)) != NULL)                     \
            return made;                                                                                     \
        return CALL_OR(NULL, #name, FILE * (*)(const char *, const char *), path, mode);                     \
    }

DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

/* --- stat, in all the shapes that glibc has exported over time --- */

#define DEFINE_STAT(name, type)                                                                              \
    exported int name(const char *restrict path, struct type *restrict status)                               \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, int (*)(const char *, struct type *), path, status);                       \
    }

/* Not following links must not show that the device nodes are links: those are asked for through the stat of
 * the same kind. */
#define DEFINE_LSTAT(name, follows, type)                                                                    \
    exported int name(const char *restrict path, struct type *restrict status)                               \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        if (where.kind == REDIRECT_DEVICE)                                                                   \
            return CALL_OR(-1, #follows, int (*)(const char *, struct type *), path, status);                \
        return CALL_OR(-1, #name, int (*)(const char *, struct type *), path, status);                       \
    }

#define DEFINE_FSTATAT(name, type)                                                                           \
    exported int name(int directory, const char *restrict path, struct type *restrict status, int flags)     \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, int (*)(int, const char *, struct type *, int), directory, path, status,   \
                       without_nofollow(&where, flags));                                                     \
    }

#define DEFINE_XSTAT(name, type)                                                                             \
    int name(int version, const char *path, struct type *status);                                            \
    exported int name(int version, const char *path, struct type *status)                                    \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, int (*)(int, const char *, struct type *), version, path, status);         \
    }

#define DEFINE_LXSTAT(name, follows, type)                                                                   \
    int name(int version, const char *path, struct type *status);                                            \
    exported int name(int version, const char *path, struct type *status)                                    \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        if (where.kind == REDIRECT_DEVICE)                                                                   \
            return CALL_OR(-1, #follows, int (*)(int, const char *, struct type *), version, path, status);  \
        return CALL_OR(-1, #name, int (*)(int, const char *, struct type *), version, path, status);         \
    }

#define DEFINE_FXSTATAT(name, type)                                                                          \
    int name(int version, int directory, const char *path, struct type *status, int flags);                  \
    exported int name(int version, int directory, const char *path, struct type *status, int flags)          \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, int (*)(int, int, const char *, struct type *, int), version, directory,   \
                       path, status, without_nofollow(&where, flags));                                       \
    }

DEFINE_STAT(stat, stat)
DEFINE_STAT(stat64, stat64)
DEFINE_LSTAT(lstat, stat, stat)
DEFINE_LSTAT(lstat64, stat64, stat64)
DEFINE_FSTATAT(fstatat, stat)
DEFINE_FSTATAT(fstatat64, stat64)
DEFINE_XSTAT(__xstat, stat)
DEFINE_XSTAT(__xstat64, stat64)
DEFINE_LXSTAT(__lxstat, __xstat, stat)
DEFINE_LXSTAT(__lxstat64, __xstat64, stat64)
DEFINE_FXSTATAT(__fxstatat, stat)
DEFINE_FXSTATAT(__fxstatat64, stat64)

exported int statx(int directory, const char *restrict path, int flags, unsigned mask,
                   struct statx *restrict status)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return CALL_OR(-1, "statx", int (*)(int, const char *, int, unsigned, struct statx *), directory, path,
                   without_nofollow(&where, flags), mask, status);
}

/* --- access and extended attributes (ls -l asks for access control lists by path) --- */

#define DEFINE_ACCESS(name)                                                                                  \
    exported int name(const char *path, int mode)                                                            \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, int (*)(const char *, int), path, mode);                                   \
    }

DEFINE_ACCESS(access)
DEFINE_ACCESS(euidaccess)
DEFINE_ACCESS(eaccess)

exported int faccessat(int directory, const char *path, int mode, int flags)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return CALL_OR(-1, "faccessat", int (*)(int, const char *, int, int), directory, path, mode,
                   without_nofollow(&where, flags));
}

#define DEFINE_GETXATTR(name)                                                                                \
    exported ssize_t name(const char *path, const char *attribute, void *value, size_t size)                 \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name, ssize_t(*)(const char *, const char *, void *, size_t), path, attribute,   \
                       value, size);                                                                         \
    }

DEFINE_GETXATTR(getxattr)
DEFINE_GETXATTR(lgetxattr)

/* --- directories --- */

exported DIR *opendir(const char *path)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return CALL_OR(NULL, "opendir", DIR * (*)(const char *), path);
}

#define DEFINE_SCANDIR(name, type)                                                                           \
    exported int name(const char *restrict path, struct type ***restrict names,                              \
                      int (*select)(const struct type *),                                                    \
                      int (*compare)(const struct type **, const struct type **))                            \
    {                                                                                                        \
        struct redirect where;                                                                               \
        path = redirect_path(path, &where);                                                                  \
        return CALL_OR(-1, #name,                                                                            \
                       int (*)(const char *, struct type ***, int (*)(const struct type *),                  \
                               int (*)(const struct type **, const struct type **)),                         \
                       path, names, select, compare);                                                        \
    }

DEFINE_SCANDIR(scandir, dirent)
DEFINE_SCANDIR(scandir64, dirent64)

exported int chdir(const char *path)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return CALL_OR(-1, "chdir", int (*)(const char *), path);
}

/* --- links --- */

/* Programs may ask that way whether it is a link (without_nofollow()). */
static ssize_t unless_device(const struct redirect *where, ssize_t length)
{
    if (length < 0 || where->kind != REDIRECT_DEVICE)
        return length;
    errno = EINVAL;
    return -1;
}

exported ssize_t readlink(const char *restrict path, char *restrict buffer, size_t size)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return unless_device(
        &where, CALL_OR(-1, "readlink", ssize_t(*)(const char *, char *, size_t), path, buffer, size));
}

exported ssize_t readlinkat(int directory, const char *restrict path, char *restrict buffer, size_t size)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return unless_device(&where, CALL_OR(-1, "readlinkat", ssize_t(*)(int, const char *, char *, size_t),
                                         directory, path, buffer, size));
}

/* The _chk forms pass the size of the caller's buffer; libc's own then abort the program as they should. */
ssize_t __readlink_chk(const char *path, char *buffer, size_t size, size_t room);
exported ssize_t __readlink_chk(const char *path, char *buffer, size_t size, size_t room)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return unless_device(&where,
                         CALL_OR(-1, "__readlink_chk", ssize_t(*)(const char *, char *, size_t, size_t), path,
                                 buffer, size, room));
}

ssize_t __readlinkat_chk(int directory, const char *path, char *buffer, size_t size, size_t room);
exported ssize_t __readlinkat_chk(int directory, const char *path, char *buffer, size_t size, size_t room)
{
    struct redirect where;

    path = redirect_path(path, &where);
    return unless_device(&where, CALL_OR(-1, "__readlinkat_chk",
                                         ssize_t(*)(int, const char *, char *, size_t, size_t), directory,
                                         path, buffer, size, room));
}

/* What realpath() finds inside the tree is returned without the root: UCX looks for "/sys/devices/" in it, and
 * what the program then opens is redirected again. */
exported char *realpath(const char *restrict path, char *restrict resolved)
{
    struct redirect where;
    char *found;

    path = redirect_path(path, &where);
    found = CALL_OR(NULL, "realpath", char *(*)(const char *, char *), path, resolved);
    if (found && where.kind != REDIRECT_NONE)
        redirect_hide_root(found);
    return found;
}

char *__realpath_chk(const char *path, char *resolved, size_t room);
exported char *__realpath_chk(const char *path, char *resolved, size_t room)
{
    struct redirect where;
    char *found;

    path = redirect_path(path, &where);
    found = CALL_OR(NULL, "__realpath_chk", char *(*)(const char *, char *, size_t), path, resolved, room);
    if (found && where.kind != REDIRECT_NONE)
        redirect_hide_root(found);
    return found;
}

exported char *canonicalize_file_name(const char *path)
{
    struct redirect where;
    char *found;

    path = redirect_path(path, &where);
    found = CALL_OR(NULL, "canonicalize_file_name", char *(*)(const char *), path);
    if (found && where.kind != REDIRECT_NONE)
        redirect_hide_root(found);
    return found;
}
