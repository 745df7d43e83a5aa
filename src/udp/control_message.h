/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What processes that share the port say to each other, over SOCK_SEQPACKET connections: one struct letter
 * each.
 *
 *   caller → member    CALL      at first with the caller's mailbox; later with blocks, each with its proof
 * if the two are of different users member → caller    WELCOME   for each CALL, with its serial. To the same
 * user with the box and the ledger; from the warden to the same user with its mailbox, too
 *
 * Who the other end is, the kernel says. */
#ifndef UDP_CONTROL_MESSAGE_H
#define UDP_CONTROL_MESSAGE_H

#include <assert.h>
#include <stdint.h>

#define LETTER_MAGIC   0x55434853u /* "SHCU" */
#define LETTER_VERSION 1u
#define LETTER_BLOCKS  16
#define LETTER_FDS     LETTER_BLOCKS

enum letter_type { LETTER_CALL = 1, LETTER_WELCOME };
enum letter_flags {
    LETTER_FROM_WARDEN = 1,
    LETTER_HAS_BOX = 2,     /* descriptors: box, ledger */
    LETTER_HAS_MAILBOX = 4, /* behind those */
    LETTER_JOIN = 16,       /* CALL, of another user: packets of this group, too */
    LETTER_LEAVE = 32,
    LETTER_WANTS_BOX = 8, /* CALL. Whoever has the ledger must not get it again: to close it once is to give
                             up all   locks on it */
};

struct letter {
    uint32_t magic;
    uint16_t version, type; /* enum letter_type */
    uint32_t serial;
    uint16_t flags;       /* enum letter_flags */
    uint16_t block_count; /* CALL */
    uint16_t blocks[LETTER_BLOCKS];
    uint8_t group[16]; /* LETTER_JOIN, LETTER_LEAVE */
    uint32_t ifindex;
    uint8_t reserved[12];
};
static_assert(sizeof(struct letter) == 80, "letters are a format between versions");

/* 0 or -errno. */
int letter_send(int fd, const struct letter *letter, const int *fds, unsigned fd_count);
/* 0, -EAGAIN (nothing there), -ECONNRESET (the end), -EPROTO. Descriptors, at most LETTER_FDS, are the
 * caller's to close in any case. */
int letter_receive(int fd, enum letter_type type, struct letter *letter, int ret_fds[LETTER_FDS],
                   unsigned *ret_fd_count);

/* The box: a socket with one message in it, which nobody takes out and everybody can look at: the descriptors
 * of all sockets of the port. So they stay open, in their places, as long as anybody has the box, and a
 * process needs few descriptors to keep them all. Makes one of the sockets, which stay the caller's; or
 * -errno. */
int box_make(const int *sockets, unsigned count);
/* The descriptor of one of the sockets in it, or -errno. */
int box_get(int box, unsigned index, unsigned count);

#endif
