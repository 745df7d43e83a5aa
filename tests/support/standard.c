/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "standard.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "runner.h"
#include "side.h"

enum { STANDARD = 3, OUT_OF_THE_WAY = 100 };

struct seen {
    char file[STANDARD][64]; /* empty: closed */
};

static int kept[STANDARD];

static void close_here(void *arg)
{
    (void)arg;
    for (int fd = 0; fd < STANDARD; fd++) {
        kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
        close(fd);
    }
}

static void look_here(void *arg)
{
    struct seen *seen = arg;

    for (int fd = 0; fd < STANDARD; fd++) {
        char path[32];
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, seen->file[fd], sizeof seen->file[fd] - 1);
        seen->file[fd][length < 0 ? 0 : length] = '\0';
        if (kept[fd] >= 0) {
            dup2(kept[fd], fd);
            close(kept[fd]);
        }
    }
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define UNDER_THREAD_SANITIZER 1
#endif

void standard_close(void)
{
#ifdef UNDER_THREAD_SANITIZER
    skip_because("ThreadSanitizer does not know that fcntl() copies a descriptor, nor what is ordered by it");
#endif
    side_call(NEAR, close_here, NULL, 0);
    if (two_processes())
        side_call(FAR, close_here, NULL, 0);
}

static void check(const struct seen *seen, const char *where)
{
    for (int fd = 0; fd < STANDARD; fd++)
        CHECK(!seen->file[fd][0], "descriptor %d of the %s side is %s", fd, where, seen->file[fd]);
}

void standard_check(void)
{
    struct seen near, far = {0};

    side_call(NEAR, look_here, &near, sizeof near);
    if (two_processes())
        side_call(FAR, look_here, &far, sizeof far);
    check(&near, "near");
    check(&far, "far");
}
