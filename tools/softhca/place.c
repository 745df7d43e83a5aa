/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int join(char *ret, const char *directory, const char *name)
{
    int length = snprintf(ret, PATH_MAX, "%s/%s", directory, name);

    return length < 0 || length >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int try_directory(const char *directory, struct place *ret)
{
    if (!realpath(directory, ret->directory) || join(ret->verbs, ret->directory, "libibverbs.so.1") ||
        join(ret->shim, ret->directory, "libsofthca-shim.so") ||
        join(ret->watch, ret->directory, "libsofthca-watch.so"))
        return -errno;
    return access(ret->verbs, R_OK) ? -errno : 0;
}

int place_find(struct place *ret)
{
    char self[PATH_MAX], candidate[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (length <= 0) {
        fprintf(stderr, "softhca: cannot read /proc/self/exe: %s\n", strerror(errno));
        return -ENOENT;
    }
    self[length] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    /* In the build directory, then installed: bin and lib as this build was told to lay them out. */
    if (join(candidate, self, "lib") == 0 && try_directory(candidate, ret) == 0)
        return 0;
    if (join(candidate, self, SOFTHCA_LIB_FROM_BIN) == 0 && try_directory(candidate, ret) == 0)
        return 0;
    fprintf(stderr,
            "softhca: no libibverbs.so.1 in %s/lib or %s/%s: reinstall SoftHCA, or run build/softhca\n", self,
            self, SOFTHCA_LIB_FROM_BIN);
    return -ENOENT;
}
