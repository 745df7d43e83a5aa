/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages and attributes of an answer (netlink(7)), in datagrams that wait for room in the socket of who asked. */
#ifndef SHIM_NETLINK_H
#define SHIM_NETLINK_H

#include <linux/netlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What programs have room for in a call: libmnl takes a page. */
#define NETLINK_DATAGRAM 4096

struct datagram {
    struct datagram *next;
    size_t length;
    char bytes[];
};

struct datagrams {
    struct datagram *first, **end; /* end: of the last one's `next`, or first */
};

/* The answer to one request. */
struct answer {
    _Alignas(struct nlmsghdr) char bytes[NETLINK_DATAGRAM];
    size_t length;
    const struct nlmsghdr *request;
    uint32_t port; /* of who asked */
    struct datagrams *to;
    bool lost; /* there was no memory for all of it */
};

/* A message, to which attributes are put until netlink_end(). None is as large as half of a datagram: names are those
 * of files. */
struct nlmsghdr *netlink_begin(struct answer *answer, uint16_t type, uint16_t flags);
void netlink_end(struct answer *answer, const struct nlmsghdr *message);

void netlink_put(struct nlmsghdr *message, uint16_t type, const void *value, size_t length);
/* Nothing where it is "". */
void netlink_put_text(struct nlmsghdr *message, uint16_t type, const char *text);
void netlink_put_u8(struct nlmsghdr *message, uint16_t type, uint32_t value);
void netlink_put_u32(struct nlmsghdr *message, uint16_t type, uint32_t value);
void netlink_put_u64(struct nlmsghdr *message, uint16_t type, uint64_t value);
/* The attributes from here on are part of it, until netlink_close_nest(). */
struct nlattr *netlink_open_nest(struct nlmsghdr *message, uint16_t type);
void netlink_close_nest(const struct nlmsghdr *message, struct nlattr *nest);

/* 0: an acknowledgement. Ends the answer, as does netlink_done(). */
void netlink_error(struct answer *answer, int error);
/* The end of a dump. */
void netlink_done(struct answer *answer);
/* Of an answer that is neither: what was begun is complete. */
void netlink_flush(struct answer *answer);

/* A number among the attributes of the request, 0 if there is none: adapters and ports count from 1. */
uint32_t netlink_asked_for(const struct nlmsghdr *request, uint16_t type);

#endif
