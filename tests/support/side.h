/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The two ends of a test. The near side is the process that runs the test body. A far side is either the same
 * process or, where the path under test lies between processes, one that was forked before anything called a
 * verb. Functions are shipped to the side that owns the objects they use: a fork shares the code, so a
 * function pointer names the same function there. What a test body holds of a far side are values and
 * handles, never memory to look into.
 */
#ifndef TESTS_SUPPORT_SIDE_H
#define TESTS_SUPPORT_SIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum path {
    PATH_PROCESS, /* both ends in one process */
    PATH_RING,    /* two processes, never CMA */
    PATH_CMA,     /* two processes, CMA for all that is not inline */
    PATH_AUTO,    /* two processes, the mechanism by size */
    PATH_COPY,    /* two processes, WRITE and READ by the kernel's copy in the requester */
    PATH_MAPPED,
    PATH_WIRE,         /* two processes, everything over UDP */
    PATH_WIRE_PROCESS, /* one process, everything over UDP */
    PATHS,
};

enum { FARS_MAX = 72 };

struct side {
    unsigned int index; /* 0: near */
    pid_t pid;
    int sock;  /* to the process of a far side, else -1 */
    bool dead; /* the test ended it */
};

extern struct side sides[1 + FARS_MAX];
#define NEAR (&sides[0])
#define FAR  (&sides[1])

enum path path_under_test(void);
const char *path_name(enum path path);
bool two_processes(void);
bool over_wire(void);
/* Before anything else, once: a network of our own, where the path needs one and we may have one. */
void sides_prepare(void);

/* Called by the runner around a test, in the test's process. */
void sides_begin(unsigned int fars);
void sides_end(void);

typedef void side_fn(void *arg);

/* Runs fn on that side; *arg travels there and back. A complaint over there fails the test here. */
void side_call(struct side *side, side_fn *fn, void *arg, size_t length);

/* The same in two steps, so that both sides work at the same time. */
struct call {
    struct side *side;
    side_fn *fn;
    void *arg;
    size_t length;
    pthread_t thread;
};

void side_start(struct call *call, struct side *side, side_fn *fn, void *arg, size_t length);
void side_finish(struct call *call);

bool side_is_here(const struct side *side);

/* Only between processes. side_kill waits until the process is gone. */
void side_kill(struct side *side);
void side_stop(struct side *side);
void side_continue(struct side *side);

/* Ends the test as failed, from whatever side or thread. */
void complain(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            complain(__FILE__, __LINE__, __VA_ARGS__);                                                       \
    } while (0)

#define CHECK_ZERO(call)                                                                                     \
    do {                                                                                                     \
        const int zero_ = (call);                                                                            \
        if (zero_)                                                                                           \
            complain(__FILE__, __LINE__, "%s is %d (%s), errno %s", #call, zero_,                            \
                     strerror(zero_ < 0 ? -zero_ : zero_), strerror(errno));                                 \
    } while (0)

/* A verb that makes an object makes none, and says why. */
#define assert_refused(call, error)                                                                          \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        assert_null(call);                                                                                   \
        assert_int_equal(errno, error);                                                                      \
    } while (0)

/* Deadlines: nothing here waits by time alone, but everything that waits gives up and says what it waited
 * for. */
struct patience {
    uint64_t until;
    unsigned int turns;
};

struct patience patience_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void patience_wait(struct patience *patience, const char *file, int line);
int patience_left_ms(const struct patience *patience);
void patience_end(void);
uint64_t now_ns(void);

/* Loops (over its body, if there is one) until the condition holds. */
#define EVENTUALLY(condition, ...)                                                                           \
    for (struct patience patience_ = patience_begin(__VA_ARGS__); !(condition) || (patience_end(), 0);       \
         patience_wait(&patience_, __FILE__, __LINE__))

/* What the test's process and its parent, the runner, share. */
enum { SIDE_ARG_MAX = 64 * 1024, SIDE_TEXT = 400 };

struct shared {
    char skip[SIDE_TEXT];
    struct shared_side {
        char waits_for[SIDE_TEXT];
        char complaint[SIDE_TEXT];
        side_fn *fn;
        size_t length;
        bool failed;
        unsigned char arg[SIDE_ARG_MAX] __attribute__((aligned(16)));
    } side[1 + FARS_MAX];
};

extern struct shared *shared;

#endif
