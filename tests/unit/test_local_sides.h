/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes for the tests of local: each side is a forked process that starts local anew and runs the helper thread's
 * part itself. Sides and the test share a board of words. A side whose check fails prints that and exits; the test then
 * fails. */
#ifndef TESTS_UNIT_TEST_LOCAL_SIDES_H
#define TESTS_UNIT_TEST_LOCAL_SIDES_H

#include "unit.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/rundown.h"
#include "local/link.h"
#include "local/local.h"
#include "local/small.h"

struct board {
    _Atomic uint32_t qpn[8];
    _Atomic uint32_t word[32];
    _Atomic uint64_t value[16];
};
extern struct board *board;

#define NO_BLOCK UINT32_MAX
/* What has come to this side. */
struct seen {
    unsigned packets, batches, resolved, settled, downs, writable;
    struct packet last; /* pointers void */
    uint8_t payload[LOCAL_MTU];
    struct packet_reference references[PACKET_REFERENCES];
    struct lane *lane;        /* of the last packet */
    struct link *link, *down; /* last resolved, last taken down */
    uint32_t block;
    uint32_t awaits;    /* the block that find_link() asks for, or NO_BLOCK */
    struct link *found; /* its answer */
    unsigned searches;  /* of names that have ended, the last one: */
    uint64_t cookie;
    struct link *holder;
    unsigned files; /* of a peer's that have come */
};
extern struct seen seen;
/* local_ops of control requests; NULL: refused with -ENOSYS. */
extern int (*on_control)(enum control_subject subject, int file, char *why, size_t size);
extern void (*on_control_ended)(enum control_subject subject);
/* What whoever has read the side's published segment knows. */
#define SEGMENT_SECRET "0123456789abcdef"
/* Called for each packet, after it was noted down. */
extern void (*on_packet)(struct lane *lane, const struct packet *packet);

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# side %d: %s:%d: not so: %s\n", (int)getpid(), __FILE__, __LINE__,             \
                    #condition);                                                                             \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

/* Runs the tests in a network namespace of their own, where this is allowed: other processes of the host
 * would be found too, and find us. */
#define run_local_tests(name, tests) (own_network(), run_unit_tests(name, tests))
void own_network(void);

typedef void side_fn(unsigned number);
void board_clear(void); /* once per test, before the first side */
/* Forks; the side exits with 0 when fn returns. local is started, unless bare. */
pid_t side_start(side_fn *fn, unsigned number);
pid_t side_start_bare(side_fn *fn, unsigned number);
void side_finish(pid_t pid);
void side_kill(pid_t pid);
/* Starts them all and waits for all. */
void run_sides(side_fn *const *sides, unsigned count);
#define RUN_SIDES(...)                                                                                       \
    run_sides((side_fn *const[]){__VA_ARGS__}, array_size(((side_fn *const[]){__VA_ARGS__})))

/* In a side: one round of local_dispatch() and local_poll(); waits for an event at most that long. Returns the number
 * of packets taken. */
unsigned turn(int timeout_ms);
/* The part of turn() that serves handshakes and takes no packet. */
void turn_deaf(int timeout_ms);
#define UNTIL(condition)                                                                                     \
    while (!(condition))                                                                                     \
    turn(1)
void side_up(void);
/* Brings the number to the board; other sides wait for it. */
uint32_t publish_qpn(unsigned number);
uint32_t await_qpn(unsigned number);
/* The link to the owner; NULL if there is none. */
struct link *find_link(uint32_t qpn);
struct packet small_packet(uint32_t dest_qpn, uint32_t src_qpn);
/* Sends and rings; takes turns while the ring is full. */
void send_text(struct lane *lane, uint32_t dest_qpn, uint32_t src_qpn, const char *text);
/* All sides meet; `word` of the board is used up. */
void meet(unsigned word, unsigned sides);
unsigned count_fds(void);
unsigned count_maps(void);

#endif
