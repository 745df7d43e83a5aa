/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "threads.h"
#include "side.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *run(void *arg)
{
    struct caller *caller = arg;

    atomic_store(&caller->tid, (pid_t)syscall(SYS_gettid));
    caller->result = caller->fn(caller->arg);
    atomic_store(&caller->done, true);
    return NULL;
}

void caller_start(struct caller *caller, int (*fn)(void *arg), void *arg)
{
    caller->fn = fn;
    caller->arg = arg;
    caller->result = -1;
    atomic_init(&caller->tid, 0);
    atomic_init(&caller->done, false);
    CHECK(!pthread_create(&caller->thread, NULL, run, caller), "pthread_create");
}

/* The state letter of proc(5) */
static char state_of(pid_t tid)
{
    char path[64], line[256] = "";
    char *end_of_name;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    file = fopen(path, "re");
    if (!file)
        return '?';
    if (!fgets(line, sizeof line, file))
        line[0] = '\0';
    fclose(file);
    end_of_name = strrchr(line, ')');
    return end_of_name && end_of_name[1] ? end_of_name[2] : '?';
}

bool caller_is_blocked(struct caller *caller)
{
    /* a thread may sleep shortly for another reason (a lock, a page): look for a sleep that lasts */
    unsigned int asleep = 0;

    EVENTUALLY(asleep >= 1000 || atomic_load(&caller->done), "a thread to block in its call")
    {
        const pid_t tid = atomic_load(&caller->tid);

        asleep = tid && state_of(tid) == 'S' ? asleep + 1 : 0;
    }
    return !atomic_load(&caller->done);
}

int caller_finish(struct caller *caller)
{
    EVENTUALLY(atomic_load(&caller->done), "a blocked call to return");
    pthread_join(caller->thread, NULL);
    return caller->result;
}
