/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of rdma(8) and their answers: RDMA_NLDEV_CMD_GET, _PORT_GET, _SYS_GET and _RES_*_GET, by index or for all.
 * Other requests are -EOPNOTSUPP. An adapter's index is what ibv_get_device_index() says. */
#include "rdma.h"

#include <dirent.h>
#include <dlfcn.h>
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

#include "resources.h"

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
    bool lost; /* the program's queue is full */
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
    if (answer->length && sendto(answer->from, answer->bytes, answer->length, MSG_DONTWAIT | MSG_NOSIGNAL,
                                 (const struct sockaddr *)answer->to, sizeof(*answer->to)) < 0)
        answer->lost = true;
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
    struct nlmsghdr *message;

    flush(answer);
    message = begin(answer, NLMSG_DONE, answer->lost ? NLM_F_MULTI | NLM_F_DUMP_INTR : NLM_F_MULTI);

    memset(NLMSG_DATA(message), 0, sizeof(int));
    message->nlmsg_len += (uint32_t)sizeof(int);
    end(answer, message);
    flush(answer);
}

/* --- objects --- */

/* Of Linux 5.15; the values are ABI. */
enum {
    GET_CTX = 22,
    GET_SRQ,
    TABLE_CTX = 86,
    ENTRY_CTX,
    TABLE_SRQ,
    ENTRY_SRQ,
    NUMBER_SRQ,
};

static const struct {
    uint8_t get;
    uint16_t table, entry, number;
    const char *name;
} objects[RESOURCE_KINDS] = {
    [RESOURCE_PD] = {RDMA_NLDEV_CMD_RES_PD_GET, RDMA_NLDEV_ATTR_RES_PD, RDMA_NLDEV_ATTR_RES_PD_ENTRY,
                     RDMA_NLDEV_ATTR_RES_PDN, "pd"},
    [RESOURCE_CQ] = {RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQ, RDMA_NLDEV_ATTR_RES_CQ_ENTRY,
                     RDMA_NLDEV_ATTR_RES_CQN, "cq"},
    [RESOURCE_QP] = {RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP, RDMA_NLDEV_ATTR_RES_QP_ENTRY,
                     RDMA_NLDEV_ATTR_RES_LQPN, "qp"},
    [RESOURCE_CM_ID] = {RDMA_NLDEV_CMD_RES_CM_ID_GET, RDMA_NLDEV_ATTR_RES_CM_ID,
                        RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY, RDMA_NLDEV_ATTR_RES_CM_IDN, "cm_id"},
    [RESOURCE_MR] = {RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR, RDMA_NLDEV_ATTR_RES_MR_ENTRY,
                     RDMA_NLDEV_ATTR_RES_MRN, "mr"},
    [RESOURCE_CTX] = {GET_CTX, TABLE_CTX, ENTRY_CTX, RDMA_NLDEV_ATTR_RES_CTXN, "ctx"},
    [RESOURCE_SRQ] = {GET_SRQ, TABLE_SRQ, ENTRY_SRQ, NUMBER_SRQ, "srq"},
};

static void put_u32(struct nlmsghdr *message, uint16_t type, uint32_t value)
{
    put(message, type, &value, sizeof(value));
}

static void put_u64(struct nlmsghdr *message, uint16_t type, uint64_t value)
{
    put(message, type, &value, sizeof(value));
}

static void put_u8(struct nlmsghdr *message, uint16_t type, uint32_t value)
{
    const uint8_t byte = (uint8_t)value;

    put(message, type, &byte, sizeof(byte));
}

/* The attributes from here on are part of it, until close_nest(). */
static struct nlattr *open_nest(struct nlmsghdr *message, uint16_t type)
{
    struct nlattr *nest = (struct nlattr *)((char *)message + message->nlmsg_len);

    put(message, type | NLA_F_NESTED, "", 0);
    return nest;
}

static void close_nest(const struct nlmsghdr *message, struct nlattr *nest)
{
    nest->nla_len = (uint16_t)((const char *)message + message->nlmsg_len - (const char *)nest);
}

static void put_object(struct nlmsghdr *message, const struct resource *object)
{
    put_u32(message, objects[object->kind].number, object->number);
    if (object->pid)
        put_u32(message, RDMA_NLDEV_ATTR_RES_PID, object->pid);
    if (object->context != RESOURCE_NONE && object->kind != RESOURCE_CTX)
        put_u32(message, RDMA_NLDEV_ATTR_RES_CTXN, object->context);
    if (object->pd != RESOURCE_NONE && object->kind != RESOURCE_PD)
        put_u32(message, RDMA_NLDEV_ATTR_RES_PDN, object->pd);
    switch (object->kind) {
    case RESOURCE_CQ:
        put_u32(message, RDMA_NLDEV_ATTR_RES_CQE, object->entries);
        put_u64(message, RDMA_NLDEV_ATTR_RES_USECNT, object->users);
        break;
    case RESOURCE_PD:
        put_u64(message, RDMA_NLDEV_ATTR_RES_USECNT, object->users);
        break;
    case RESOURCE_QP:
        put_u32(message, RDMA_NLDEV_ATTR_PORT_INDEX, ONE_PORT);
        if (object->remote_qpn) {
            put_u32(message, RDMA_NLDEV_ATTR_RES_RQPN, object->remote_qpn);
            put_u32(message, RDMA_NLDEV_ATTR_RES_RQ_PSN, object->receive_psn);
            put_u8(message, RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE, object->migration);
        }
        put_u32(message, RDMA_NLDEV_ATTR_RES_SQ_PSN, object->send_psn);
        put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        put_u8(message, RDMA_NLDEV_ATTR_RES_STATE, object->state);
        break;
    case RESOURCE_CM_ID:
        put_u32(message, RDMA_NLDEV_ATTR_PORT_INDEX, ONE_PORT);
        put_u32(message, RDMA_NLDEV_ATTR_RES_LQPN, object->qpn);
        put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        put_u32(message, RDMA_NLDEV_ATTR_RES_PS, object->port_space);
        put_u8(message, RDMA_NLDEV_ATTR_RES_STATE, object->state);
        put(message, RDMA_NLDEV_ATTR_RES_SRC_ADDR, &object->source, sizeof(object->source));
        put(message, RDMA_NLDEV_ATTR_RES_DST_ADDR, &object->destination, sizeof(object->destination));
        break;
    case RESOURCE_MR:
        put_u32(message, RDMA_NLDEV_ATTR_RES_RKEY, object->rkey);
        put_u32(message, RDMA_NLDEV_ATTR_RES_LKEY, object->lkey);
        put_u64(message, RDMA_NLDEV_ATTR_RES_MRLEN, object->length);
        break;
    case RESOURCE_SRQ:
        put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        if (object->cq != RESOURCE_NONE)
            put_u32(message, RDMA_NLDEV_ATTR_RES_CQN, object->cq);
        break;
    case RESOURCE_CTX:
    case RESOURCE_KINDS:
        break;
    }
}

/* NULL: the installation has none. */
static resources_function *find_objects(void)
{
    char path[PATH_MAX];
    const char *slash;
    Dl_info here;
    void *library;

    if (!dladdr(objects, &here) || !(slash = strrchr(here.dli_fname, '/')) ||
        snprintf(path, sizeof(path), "%.*s/libsofthca-resources.so", (int)(slash - here.dli_fname),
                 here.dli_fname) >= (int)sizeof(path))
        return NULL;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library ? (resources_function *)dlsym(library, "softhca_resources") : NULL;
}

static struct nlmsghdr *begin_objects(struct answer *answer, const struct adapter *adapter, bool of_many)
{
    struct nlmsghdr *message = begin(answer, answer->request->nlmsg_type, of_many ? NLM_F_MULTI : 0);

    put_u32(message, RDMA_NLDEV_ATTR_DEV_INDEX, adapter->index);
    put_text(message, RDMA_NLDEV_ATTR_DEV_NAME, adapter->name);
    return message;
}

struct telling {
    struct answer *answer;
    const struct adapter *adapter;
    uint32_t number; /* RESOURCE_NONE: all */
    bool found;
    uint64_t counts[RESOURCE_KINDS];
};

static void count_object(const struct resource *object, void *argument)
{
    struct telling *telling = argument;

    telling->counts[object->kind] += strcmp(object->device, telling->adapter->name) == 0;
}

static void tell_object(const struct resource *object, void *argument)
{
    struct telling *telling = argument;
    const bool all = telling->number == RESOURCE_NONE;
    struct nlattr *table = NULL, *entry = NULL;
    struct nlmsghdr *message;

    if (strcmp(object->device, telling->adapter->name) != 0 ||
        (!all && (telling->found || object->number != telling->number)))
        return;
    telling->found = true;
    message = begin_objects(telling->answer, telling->adapter, all);
    if (all) {
        table = open_nest(message, objects[object->kind].table);
        entry = open_nest(message, objects[object->kind].entry);
    }
    put_object(message, object);
    if (all) {
        close_nest(message, entry);
        close_nest(message, table);
    }
    end(telling->answer, message);
}

static void tell_summary(struct telling *telling, bool of_many, resources_function *visit_all)
{
    struct nlmsghdr *message;
    struct nlattr *table, *entry;

    visit_all(~0u, count_object, telling);
    message = begin_objects(telling->answer, telling->adapter, of_many);
    table = open_nest(message, RDMA_NLDEV_ATTR_RES_SUMMARY);
    for (int kind = 0; kind < RESOURCE_KINDS; kind++) {
        entry = open_nest(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY);
        put_text(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, objects[kind].name);
        put_u64(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, telling->counts[kind]);
        close_nest(message, entry);
    }
    close_nest(message, table);
    end(telling->answer, message);
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

/* The kind of object that an operation asks for; RESOURCE_KINDS: the summary. -1: neither. */
static int kind_of(unsigned operation)
{
    if (operation == RDMA_NLDEV_CMD_RES_GET)
        return RESOURCE_KINDS;
    for (int kind = 0; kind < RESOURCE_KINDS; kind++)
        if (objects[kind].get == operation)
            return kind;
    return -1;
}

/* Of an adapter; a summary without one is of all, one after the other. */
static int report_objects(struct answer *answer, const struct adapters *adapters, int kind, bool dump)
{
    resources_function *visit_all = find_objects();
    uint32_t index = asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);
    bool found = dump && kind == RESOURCE_KINDS && !index;

    if (!visit_all)
        return -EOPNOTSUPP;
    for (size_t i = 0; i < adapters->count; i++) {
        struct telling telling = {.answer = answer, .adapter = &adapters->list[i], .number = RESOURCE_NONE};

        if (adapters->list[i].index != index && !(found && !index))
            continue;
        found = true;
        if (kind == RESOURCE_KINDS) {
            tell_summary(&telling, dump, visit_all);
            continue;
        }
        if (!dump)
            telling.number = asked_for(answer->request, objects[kind].number);
        visit_all(1u << kind, tell_object, &telling);
        if (!dump && !telling.found)
            return -ENOENT;
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
    int error = -EOPNOTSUPP, kind = kind_of(operation);

    if (RDMA_NL_GET_CLIENT(request->nlmsg_type) == RDMA_NL_NLDEV &&
        (operation == RDMA_NLDEV_CMD_GET || operation == RDMA_NLDEV_CMD_PORT_GET || kind >= 0)) {
        adapters = malloc(sizeof(*adapters));
        error = -ENOMEM;
        if (adapters) {
            read_adapters(root, adapters);
            error = kind >= 0 ? report_objects(answer, adapters, kind, dump)
                              : (dump ? report_all : report_one)(answer, root, adapters,
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
