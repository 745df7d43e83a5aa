/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "netlink.h"

#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>

/* Without memory the datagram is lost, and the end of the answer says so. */
void netlink_flush(struct answer *answer)
{
    struct datagram *datagram = answer->length ? malloc(sizeof(*datagram) + answer->length) : NULL;

    answer->lost |= answer->length && !datagram;
    if (datagram) {
        datagram->next = NULL;
        datagram->length = answer->length;
        memcpy(datagram->bytes, answer->bytes, answer->length);
        *answer->to->end = datagram;
        answer->to->end = &datagram->next;
    }
    answer->length = 0;
}

/* None is as large as half of a datagram: names are those of files. */
struct nlmsghdr *netlink_begin(struct answer *answer, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *message;

    if (answer->length > sizeof(answer->bytes) / 2)
        netlink_flush(answer);
    message = (struct nlmsghdr *)(answer->bytes + answer->length);
    memset(message, 0, sizeof(*message));
    message->nlmsg_type = type;
    message->nlmsg_flags = flags;
    message->nlmsg_seq = answer->request->nlmsg_seq;
    message->nlmsg_pid = answer->port;
    message->nlmsg_len = NLMSG_HDRLEN;
    return message;
}

void netlink_end(struct answer *answer, const struct nlmsghdr *message)
{
    answer->length += NLMSG_ALIGN(message->nlmsg_len);
}

/* NLA_ALIGN is of a signed number. */
static size_t aligned(size_t length)
{
    return (length + 3) & ~(size_t)3;
}

void netlink_put(struct nlmsghdr *message, uint16_t type, const void *value, size_t length)
{
    struct nlattr *attribute = (struct nlattr *)((char *)message + message->nlmsg_len);

    memset(attribute, 0, sizeof(*attribute) + aligned(length));
    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(sizeof(*attribute) + length);
    memcpy(attribute + 1, value, length);
    message->nlmsg_len += (uint32_t)(sizeof(*attribute) + aligned(length));
}

void netlink_put_text(struct nlmsghdr *message, uint16_t type, const char *text)
{
    if (text[0])
        netlink_put(message, type, text, strlen(text) + 1);
}

void netlink_put_u32(struct nlmsghdr *message, uint16_t type, uint32_t value)
{
    netlink_put(message, type, &value, sizeof(value));
}

void netlink_put_u64(struct nlmsghdr *message, uint16_t type, uint64_t value)
{
    netlink_put(message, type, &value, sizeof(value));
}

void netlink_put_u8(struct nlmsghdr *message, uint16_t type, uint32_t value)
{
    const uint8_t byte = (uint8_t)value;

    netlink_put(message, type, &byte, sizeof(byte));
}

/* The attributes from here on are part of it, until netlink_close_nest(). */
struct nlattr *netlink_open_nest(struct nlmsghdr *message, uint16_t type)
{
    struct nlattr *nest = (struct nlattr *)((char *)message + message->nlmsg_len);

    netlink_put(message, type | NLA_F_NESTED, "", 0);
    return nest;
}

void netlink_close_nest(const struct nlmsghdr *message, struct nlattr *nest)
{
    nest->nla_len = (uint16_t)((const char *)message + message->nlmsg_len - (const char *)nest);
}

/* 0: an acknowledgement. */
void netlink_error(struct answer *answer, int error)
{
    struct nlmsghdr *message;
    struct nlmsgerr body = {.error = error, .msg = *answer->request};

    netlink_flush(answer);
    message = netlink_begin(answer, NLMSG_ERROR, NLM_F_CAPPED);
    memcpy(NLMSG_DATA(message), &body, sizeof(body));
    message->nlmsg_len += (uint32_t)sizeof(body);
    netlink_end(answer, message);
    netlink_flush(answer);
}

void netlink_done(struct answer *answer)
{
    struct nlmsghdr *message;

    netlink_flush(answer);
    message = netlink_begin(answer, NLMSG_DONE, answer->lost ? NLM_F_MULTI | NLM_F_DUMP_INTR : NLM_F_MULTI);

    memset(NLMSG_DATA(message), 0, sizeof(int));
    message->nlmsg_len += (uint32_t)sizeof(int);
    netlink_end(answer, message);
    netlink_flush(answer);
}

/* A number among the attributes of the request, 0 if there is none: adapters and ports count from 1. */
uint32_t netlink_asked_for(const struct nlmsghdr *request, uint16_t type)
{
    const char *at = NLMSG_DATA(request);
    size_t left = request->nlmsg_len - NLMSG_HDRLEN;
    struct nlattr attribute;
    uint32_t value;

    while (left >= sizeof(attribute)) {
        memcpy(&attribute, at, sizeof(attribute));
        if (attribute.nla_len < sizeof(attribute) || attribute.nla_len > left)
            break;
        if ((attribute.nla_type & NLA_TYPE_MASK) == type &&
            attribute.nla_len >= sizeof(attribute) + sizeof(value)) {
            memcpy(&value, at + sizeof(attribute), sizeof(value));
            return value;
        }
        if (aligned(attribute.nla_len) > left)
            break;
        at += aligned(attribute.nla_len);
        left -= aligned(attribute.nla_len);
    }
    return 0;
}
