/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes for the tests of src/udp, in a network namespace of their own. Each side is a process that owns the QPN
 * blocks the test gives it, has a helper thread, and records what arrives. A failed CHECK() ends the side, and the test
 * fails. */
#ifndef TESTS_UNIT_TEST_UDP_SIDES_H
#define TESTS_UNIT_TEST_UDP_SIDES_H

#include "unit.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "udp/udp.h"

enum { SIDES = 8, PAYLOAD_MAX = 4096, KEPT = 4096 };

struct board {
    _Atomic uint32_t word[64]; /* shared by all sides of a test */
};
extern struct board *board;

/* The first KEPT packets that have arrived at this side, in order. Written by receiving threads. */
struct arrived {
    struct packet packet; /* payload points into bytes */
    struct udp_arrival arrival;
    uint8_t bytes[PAYLOAD_MAX];
};
struct inbox {
    _Atomic unsigned count, batches, writable;
    _Atomic uint32_t congested_qpn; /* of the last CNP */
    struct arrived kept[KEPT];
};
extern struct inbox *inbox;
/* Called for every packet, also for those not in the inbox. */
extern void (*on_arrival)(const struct packet *packet);
/* How often the helper thread has looked for events. */
extern _Atomic unsigned wakeups;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# side %d: %s:%d: not so: %s\n", (int)getpid(), __FILE__, __LINE__,             \
                    #condition);                                                                             \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

/* Before all tests: a network namespace with lo up. false: not permitted on this machine. */
bool own_network(void);

typedef void side_fn(unsigned number);
void board_clear(void);
pid_t side_start(side_fn *fn, unsigned number);
/* The same as another user; needs root. */
pid_t side_start_as(side_fn *fn, unsigned number, uid_t user);
void side_finish(pid_t pid);
void side_kill(pid_t pid);

/* In a side, where udp_start() has been called and the helper thread runs. Makes the side own a block. */
void own_block(uint32_t block);
/* udp_serve() of an own block */
int serve(uint32_t block);
int serve_within(uint32_t block, ns_t timeout);
/* Polls until the condition is true; an alarm bounds the wait. */
#define UNTIL(condition)                                                                                     \
    while (!(condition))                                                                                     \
    take_turn()
void take_turn(void);
/* Increments a word of the board and waits until it is `value`. */
void reach(unsigned word, uint32_t value);

struct udp_path path_between(const char *from, const char *to);
/* Sends an RC SEND only with a payload generated from `seed`. */
void send_pattern(const struct udp_path *path, uint32_t dest_qpn, uint32_t psn, uint32_t length,
                  unsigned seed);
bool has_pattern(const struct packet *packet, unsigned seed);
bool is_pattern(const struct arrived *arrived, unsigned seed);
void fill_pattern(uint8_t *bytes, uint32_t length, unsigned seed);

#endif
