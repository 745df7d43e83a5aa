/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of rdma(8) and their answers: RDMA_NLDEV_CMD_GET, _PORT_GET and _SYS_GET, by index or for all.
 * Other requests are -EOPNOTSUPP. An adapter's index is what ibv_get_device_index() says. */
#include "rdma.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <rdma/rdma_netlink.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define NODE_TYPE_CA 1
#define ONE_PORT     1u
#define NETNS_SHARED 1
#define MAX_ADAPTERS 256

struct answer {
    _Alignas(struct nlmsghdr) char bytes[RDMA_DATAGRAM];
    size_t length;
    const struct nlmsghdr *request;
    int from;
    const struct sockaddr_nl *to;
};

struct adapter {
    uint32_t index;
    char name[NAME_MAX + 1];
};

struct adapters {
    size_t count;
    struct adapter list[MAX_ADAPTERS];
};

/* --- the tree --- */

/* The first line of a file; "" if there is none. */
__attribute__((format(printf, 3, 4))) static void read_line(char *line, size_t size, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    FILE *file;
    int length;

    line[0] = '\0';
    va_start(arguments, format);
    length = vsnprintf(path, sizeof(path), format, arguments);
    va_end(arguments);
    file = length < (int)sizeof(path) ? fopen(path, "re") : NULL;
    if (!file)
        return;
    if (fgets(line, (int)size, file))
        line[strcspn(line, "\n")] = '\0';
    else
        line[0] = '\0';
    fclose(file);
}

static int compare_indices(const void *left, const void *right)
{
    const struct adapter *a = left, *b = right;

    return a->index < b->index ? -1 : a->index > b->index;
}

static void read_adapters(const char *root, struct adapters *adapters)
{
    char path[PATH_MAX];
    struct dirent *entry;
    unsigned number;
    DIR *directory;

    adapters->count = 0;
    if (snprintf(path, sizeof(path), "%s/sys/class/infiniband_verbs", root) >= (int)sizeof(path))
        return;
    directory = opendir(path);
    if (!directory)
        return;
    while (adapters->count < MAX_ADAPTERS && (entry = readdir(directory))) {
        struct adapter *adapter = &adapters->list[adapters->count];

        if (sscanf(entry->d_name, "uverbs%u", &number) != 1)
            continue;
        read_line(adapter->name, sizeof(adapter->name), "%s/%s/ibdev", path, entry->d_name);
        adapter->index = number + 1;
        adapters->count += adapter->name[0] != '\0';
    }
    closedir(directory);
    qsort(adapters->list, adapters->count, sizeof(adapters->list[0]), compare_indices);
}

static uint8_t read_number(const char *root, const struct adapter *adapter, const char *file)
{
    char line[64];

    read_line(line, sizeof(line), "%s/sys/class/infiniband/%s/ports/1/%s", root, adapter->name, file);
    return (uint8_t)strtoul(line, NULL, 10);
}

/* Four groups of four digits. */
static uint64_t read_guid(const char *root, const struct adapter *adapter, const char *file)
{
    unsigned group[4] = {0};
    char line[64];

    read_line(line, sizeof(line), "%s/sys/class/infiniband/%s/%s", root, adapter->name, file);
    if (sscanf(line, "%x:%x:%x:%x", &group[0], &group[1], &group[2], &group[3]) != 4)
        return 0;
    return (uint64_t)group[0] << 48 | (uint64_t)group[1] << 32 | (uint64_t)group[2] << 16 | group[3];
}

/* --- messages --- */

static void flush(struct answer *answer)
{
    if (answer->length)
        sendto(answer->from, answer->bytes, answer->length, MSG_DONTWAIT | MSG_NOSIGNAL,
               (const struct sockaddr *)answer->to, sizeof(*answer->to));
    answer->length = 0;
}

/* None is as large as half of a datagram: names are those of files. */
static struct nlmsghdr *begin(struct answer *answer, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *message;

    if (answer->length > sizeof(answer->bytes) / 2)
        flush(answer);
    message = (struct nlmsghdr *)(answer->bytes + answer->length);
    memset(message, 0, sizeof(*message));
    message->nlmsg_type = type;
    message->nlmsg_flags = flags;
    message->nlmsg_seq = answer->request->nlmsg_seq;
    message->nlmsg_pid = answer->to->nl_pid;
    message->nlmsg_len = NLMSG_HDRLEN;
    return message;
}

static void end(struct answer *answer, const struct nlmsghdr *message)
{
    answer->length += NLMSG_ALIGN(message->nlmsg_len);
}

/* NLA_ALIGN is of a signed number. */
static size_t aligned(size_t length)
{
    return (length + 3) & ~(size_t)3;
}

static void put(struct nlmsghdr *message, uint16_t type, const void *value, size_t length)
{
    struct nlattr *attribute = (struct nlattr *)((char *)message + message->nlmsg_len);

    memset(attribute, 0, sizeof(*attribute) + aligned(length));
    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(sizeof(*attribute) + length);
    memcpy(attribute + 1, value, length);
    message->nlmsg_len += (uint32_t)(sizeof(*attribute) + aligned(length));
}

static void put_text(struct nlmsghdr *message, uint16_t type, const char *text)
{
    if (text[0])
        put(message, type, text, strlen(text) + 1);
}

static void put_device(struct nlmsghdr *message, const char *root, const struct adapter *adapter)
{
    const uint64_t node = read_guid(root, adapter, "node_guid"),
                   image = read_guid(root, adapter, "sys_image_guid");
    const uint32_t ports = ONE_PORT;
    const uint8_t type = NODE_TYPE_CA, dim = 0;
    char firmware[64];

    read_line(firmware, sizeof(firmware), "%s/sys/class/infiniband/%s/fw_ver", root, adapter->name);
    put(message, RDMA_NLDEV_ATTR_PORT_INDEX, &ports, sizeof(ports)); /* how many there are */
    put_text(message, RDMA_NLDEV_ATTR_FW_VERSION, firmware);
    put(message, RDMA_NLDEV_ATTR_NODE_GUID, &node, sizeof(node));
    put(message, RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, &image, sizeof(image));
    put(message, RDMA_NLDEV_ATTR_DEV_NODE_TYPE, &type, sizeof(type));
    put_text(message, RDMA_NLDEV_ATTR_DEV_PROTOCOL, "roce");
    put(message, RDMA_NLDEV_ATTR_DEV_DIM, &dim, sizeof(dim));
}

static void put_port(struct nlmsghdr *message, const char *root, const struct adapter *adapter)
{
    const uint8_t state = read_number(root, adapter, "state"),
                  physical = read_number(root, adapter, "phys_state");
    const uint32_t port = ONE_PORT;
    char interface[64];
    uint32_t ifindex;

    put(message, RDMA_NLDEV_ATTR_PORT_INDEX, &port, sizeof(port));
    put(message, RDMA_NLDEV_ATTR_PORT_STATE, &state, sizeof(state));
    put(message, RDMA_NLDEV_ATTR_PORT_PHYS_STATE, &physical, sizeof(physical));
    read_line(interface, sizeof(interface), "%s/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0", root,
              adapter->name);
    ifindex = if_nametoindex(interface);
    if (ifindex) {
        put(message, RDMA_NLDEV_ATTR_NDEV_INDEX, &ifindex, sizeof(ifindex));
        put_text(message, RDMA_NLDEV_ATTR_NDEV_NAME, interface);
    }
}

static void tell(struct answer *answer, const char *root, const struct adapter *adapter, bool of_many)
{
    struct nlmsghdr *message = begin(answer, answer->request->nlmsg_type, of_many ? NLM_F_MULTI : 0);

    put(message, RDMA_NLDEV_ATTR_DEV_INDEX, &adapter->index, sizeof(adapter->index));
    put_text(message, RDMA_NLDEV_ATTR_DEV_NAME, adapter->name);
    if (RDMA_NL_GET_OP(answer->request->nlmsg_type) == RDMA_NLDEV_CMD_GET)
        put_device(message, root, adapter);
    else
        put_port(message, root, adapter);
    end(answer, message);
}

/* 0: an acknowledgement. */
static void report_error(struct answer *answer, int error)
{
    struct nlmsghdr *message;
    struct nlmsgerr body = {.error = error, .msg = *answer->request};

    flush(answer);
    message = begin(answer, NLMSG_ERROR, NLM_F_CAPPED);
    memcpy(NLMSG_DATA(message), &body, sizeof(body));
    message->nlmsg_len += (uint32_t)sizeof(body);
    end(answer, message);
    flush(answer);
}

static void report_done(struct answer *answer)
{
    struct nlmsghdr *message = begin(answer, NLMSG_DONE, NLM_F_MULTI);

    memset(NLMSG_DATA(message), 0, sizeof(int));
    message->nlmsg_len += (uint32_t)sizeof(int);
    end(answer, message);
    flush(answer);
}

/* --- requests --- */

/* A number among the attributes of the request, 0 if there is none: adapters and ports count from 1. */
static uint32_t asked_for(const struct nlmsghdr *request, uint16_t type)
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

static int report_one(struct answer *answer, const char *root, const struct adapters *adapters, bool ports)
{
    uint32_t index = asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);

    for (size_t i = 0; i < adapters->count; i++) {
        if (adapters->list[i].index != index)
            continue;
        if (ports && asked_for(answer->request, RDMA_NLDEV_ATTR_PORT_INDEX) != ONE_PORT)
            return -EINVAL;
        tell(answer, root, &adapters->list[i], false);
        return 0;
    }
    return -EINVAL;
}

static int report_all(struct answer *answer, const char *root, const struct adapters *adapters, bool ports)
{
    uint32_t index = asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);
    bool found = !ports;

    for (size_t i = 0; i < adapters->count; i++) {
        if (ports && adapters->list[i].index != index)
            continue;
        tell(answer, root, &adapters->list[i], true);
        found = true;
    }
    return found ? 0 : -EINVAL;
}

static void answer_one(struct answer *answer, const char *root)
{
    const struct nlmsghdr *request = answer->request;
    const bool dump = (request->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
    const unsigned operation = RDMA_NL_GET_OP(request->nlmsg_type);
    const uint8_t mode = NETNS_SHARED;
    struct adapters *adapters;
    struct nlmsghdr *message;
    int error = -EOPNOTSUPP;

    if (RDMA_NL_GET_CLIENT(request->nlmsg_type) == RDMA_NL_NLDEV &&
        (operation == RDMA_NLDEV_CMD_GET || operation == RDMA_NLDEV_CMD_PORT_GET)) {
        adapters = malloc(sizeof(*adapters));
        error = -ENOMEM;
        if (adapters) {
            read_adapters(root, adapters);
            error = (dump ? report_all : report_one)(answer, root, adapters,
                                                     operation == RDMA_NLDEV_CMD_PORT_GET);
            free(adapters);
        }
    } else if (RDMA_NL_GET_CLIENT(request->nlmsg_type) == RDMA_NL_NLDEV &&
               operation == RDMA_NLDEV_CMD_SYS_GET && !dump) {
        message = begin(answer, request->nlmsg_type, 0);
        put(message, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, &mode, sizeof(mode));
        end(answer, message);
        error = 0;
    }
    if (error == 0 && dump)
        report_done(answer);
    else if (error || (request->nlmsg_flags & NLM_F_ACK))
        report_error(answer, error);
    flush(answer);
}

void rdma_answer(const char *root, const void *data, size_t length, int from, const struct sockaddr_nl *to)
{
    struct answer answer = {.from = from, .to = to};
    struct nlmsghdr header, *request;

    /* Copied, because the program's buffer need not be aligned. */
    while (length >= sizeof(header)) {
        memcpy(&header, data, sizeof(header));
        if (header.nlmsg_len < sizeof(header) || header.nlmsg_len > length)
            return;
        request = malloc(header.nlmsg_len);
        if (!request)
            return;
        memcpy(request, data, header.nlmsg_len);
        request->nlmsg_len = header.nlmsg_len;
        answer.request = request;
        if (request->nlmsg_flags & NLM_F_REQUEST)
            answer_one(&answer, root);
        free(request);
        if (NLMSG_ALIGN(header.nlmsg_len) >= length)
            return;
        data = (const char *)data + NLMSG_ALIGN(header.nlmsg_len);
        length -= NLMSG_ALIGN(header.nlmsg_len);
    }
}
