/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes for the tests of the udp room, in a network namespace of their own. Each side owns the QPN blocks
 * that the test gives it, has a helper thread, and keeps what arrives. A side that finds something wrong says
 * so and exits; the test then fails. */
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
    _Atomic uint32_t word[64]; /* for the tests */
};
extern struct board *board;

/* What has arrived here, in order, and is kept until there is no room; written by whoever receives. */
struct arrived {
    struct packet packet; /* payload points into bytes */
    struct udp_arrival arrival;
    uint8_t bytes[PAYLOAD_MAX];
};
struct inbox {
    _Atomic unsigned count, batches, writable;
    _Atomic uint32_t congested_qpn; /* of the last notification */
    struct arrived kept[KEPT];
};
extern struct inbox *inbox;
/* Sees everything, also what is not kept. */
extern void (*on_arrival)(const struct packet *packet);

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# side %d: %s:%d: not so: %s\n", (int)getpid(), __FILE__, __LINE__,             \
                    #condition);                                                                             \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

/* Before all tests: a network of our own, with lo up. false: the machine does not allow it. */
bool own_network(void);

typedef void side_fn(unsigned number);
void board_clear(void);
pid_t side_start(side_fn *fn, unsigned number);
/* … of another user; only root can */
pid_t side_start_as(side_fn *fn, unsigned number, uid_t user);
void side_finish(pid_t pid);
void side_kill(pid_t pid);

/* In a side. The room is up and the helper thread runs; nothing is open yet. */
void own_block(uint32_t block);
/* udp_serve() of it */
int serve(uint32_t block);
/* Waits, as long as an alarm lets it, and polls meanwhile. */
#define UNTIL(condition)                                                                                     \
    while (!(condition))                                                                                     \
    take_turn()
void take_turn(void);
void reach(unsigned word,
           uint32_t value); /* raises a word of the board by one and waits until it is `value` */

/* An RC SEND only, whose payload is a pattern of `seed`. */
struct udp_path path_between(const char *from, const char *to);
void send_pattern(const struct udp_path *path, uint32_t dest_qpn, uint32_t psn, uint32_t length,
                  unsigned seed);
bool has_pattern(const struct packet *packet, unsigned seed);
bool is_pattern(const struct arrived *arrived, unsigned seed);
void fill_pattern(uint8_t *bytes, uint32_t length, unsigned seed);

#endif
