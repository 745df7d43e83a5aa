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

#include "resources.h"

#define NODE_TYPE_CA 1
#define ONE_PORT     1u
#define NETNS_SHARED 1
#define MAX_ADAPTERS 256

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

/* --- adapters --- */

static void put_device(struct nlmsghdr *message, const char *root, const struct adapter *adapter)
{
    const uint64_t node = read_guid(root, adapter, "node_guid"),
                   image = read_guid(root, adapter, "sys_image_guid");
    const uint32_t ports = ONE_PORT;
    const uint8_t type = NODE_TYPE_CA, dim = 0;
    char firmware[64];

    read_line(firmware, sizeof(firmware), "%s/sys/class/infiniband/%s/fw_ver", root, adapter->name);
    netlink_put(message, RDMA_NLDEV_ATTR_PORT_INDEX, &ports, sizeof(ports)); /* how many there are */
    netlink_put_text(message, RDMA_NLDEV_ATTR_FW_VERSION, firmware);
    netlink_put(message, RDMA_NLDEV_ATTR_NODE_GUID, &node, sizeof(node));
    netlink_put(message, RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, &image, sizeof(image));
    netlink_put(message, RDMA_NLDEV_ATTR_DEV_NODE_TYPE, &type, sizeof(type));
    netlink_put_text(message, RDMA_NLDEV_ATTR_DEV_PROTOCOL, "roce");
    netlink_put(message, RDMA_NLDEV_ATTR_DEV_DIM, &dim, sizeof(dim));
}

static void put_port(struct nlmsghdr *message, const char *root, const struct adapter *adapter)
{
    const uint8_t state = read_number(root, adapter, "state"),
                  physical = read_number(root, adapter, "phys_state");
    const uint32_t port = ONE_PORT;
    char interface[64];
    uint32_t ifindex;

    netlink_put(message, RDMA_NLDEV_ATTR_PORT_INDEX, &port, sizeof(port));
    netlink_put(message, RDMA_NLDEV_ATTR_PORT_STATE, &state, sizeof(state));
    netlink_put(message, RDMA_NLDEV_ATTR_PORT_PHYS_STATE, &physical, sizeof(physical));
    read_line(interface, sizeof(interface), "%s/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0", root,
              adapter->name);
    ifindex = if_nametoindex(interface);
    if (ifindex) {
        netlink_put(message, RDMA_NLDEV_ATTR_NDEV_INDEX, &ifindex, sizeof(ifindex));
        netlink_put_text(message, RDMA_NLDEV_ATTR_NDEV_NAME, interface);
    }
}

static void tell(struct answer *answer, const char *root, const struct adapter *adapter, bool of_many)
{
    struct nlmsghdr *message = netlink_begin(answer, answer->request->nlmsg_type, of_many ? NLM_F_MULTI : 0);

    netlink_put(message, RDMA_NLDEV_ATTR_DEV_INDEX, &adapter->index, sizeof(adapter->index));
    netlink_put_text(message, RDMA_NLDEV_ATTR_DEV_NAME, adapter->name);
    if (RDMA_NL_GET_OP(answer->request->nlmsg_type) == RDMA_NLDEV_CMD_GET)
        put_device(message, root, adapter);
    else
        put_port(message, root, adapter);
    netlink_end(answer, message);
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

static void put_object(struct nlmsghdr *message, const struct resource *object)
{
    netlink_put_u32(message, objects[object->kind].number, object->number);
    if (object->pid)
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_PID, object->pid);
    if (object->context != RESOURCE_NONE && object->kind != RESOURCE_CTX)
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_CTXN, object->context);
    if (object->pd != RESOURCE_NONE && object->kind != RESOURCE_PD)
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_PDN, object->pd);
    switch (object->kind) {
    case RESOURCE_CQ:
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_CQE, object->entries);
        netlink_put_u64(message, RDMA_NLDEV_ATTR_RES_USECNT, object->users);
        break;
    case RESOURCE_PD:
        netlink_put_u64(message, RDMA_NLDEV_ATTR_RES_USECNT, object->users);
        break;
    case RESOURCE_QP:
        netlink_put_u32(message, RDMA_NLDEV_ATTR_PORT_INDEX, ONE_PORT);
        if (object->remote_qpn) {
            netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_RQPN, object->remote_qpn);
            netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_RQ_PSN, object->receive_psn);
            netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE, object->migration);
        }
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_SQ_PSN, object->send_psn);
        netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_STATE, object->state);
        break;
    case RESOURCE_CM_ID:
        netlink_put_u32(message, RDMA_NLDEV_ATTR_PORT_INDEX, ONE_PORT);
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_LQPN, object->qpn);
        netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_PS, object->port_space);
        netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_STATE, object->state);
        netlink_put(message, RDMA_NLDEV_ATTR_RES_SRC_ADDR, &object->source, sizeof(object->source));
        netlink_put(message, RDMA_NLDEV_ATTR_RES_DST_ADDR, &object->destination, sizeof(object->destination));
        break;
    case RESOURCE_MR:
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_RKEY, object->rkey);
        netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_LKEY, object->lkey);
        netlink_put_u64(message, RDMA_NLDEV_ATTR_RES_MRLEN, object->length);
        break;
    case RESOURCE_SRQ:
        netlink_put_u8(message, RDMA_NLDEV_ATTR_RES_TYPE, object->type);
        if (object->cq != RESOURCE_NONE)
            netlink_put_u32(message, RDMA_NLDEV_ATTR_RES_CQN, object->cq);
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
    struct nlmsghdr *message = netlink_begin(answer, answer->request->nlmsg_type, of_many ? NLM_F_MULTI : 0);

    netlink_put_u32(message, RDMA_NLDEV_ATTR_DEV_INDEX, adapter->index);
    netlink_put_text(message, RDMA_NLDEV_ATTR_DEV_NAME, adapter->name);
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
        table = netlink_open_nest(message, objects[object->kind].table);
        entry = netlink_open_nest(message, objects[object->kind].entry);
    }
    put_object(message, object);
    if (all) {
        netlink_close_nest(message, entry);
        netlink_close_nest(message, table);
    }
    netlink_end(telling->answer, message);
}

static void tell_summary(struct telling *telling, bool of_many, resources_function *visit_all)
{
    struct nlmsghdr *message;
    struct nlattr *table, *entry;

    visit_all(~0u, count_object, telling);
    message = begin_objects(telling->answer, telling->adapter, of_many);
    table = netlink_open_nest(message, RDMA_NLDEV_ATTR_RES_SUMMARY);
    for (int kind = 0; kind < RESOURCE_KINDS; kind++) {
        entry = netlink_open_nest(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY);
        netlink_put_text(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, objects[kind].name);
        netlink_put_u64(message, RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, telling->counts[kind]);
        netlink_close_nest(message, entry);
    }
    netlink_close_nest(message, table);
    netlink_end(telling->answer, message);
}

/* --- requests --- */

static int report_one(struct answer *answer, const char *root, const struct adapters *adapters, bool ports)
{
    uint32_t index = netlink_asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);

    for (size_t i = 0; i < adapters->count; i++) {
        if (adapters->list[i].index != index)
            continue;
        if (ports && netlink_asked_for(answer->request, RDMA_NLDEV_ATTR_PORT_INDEX) != ONE_PORT)
            return -EINVAL;
        tell(answer, root, &adapters->list[i], false);
        return 0;
    }
    return -EINVAL;
}

static int report_all(struct answer *answer, const char *root, const struct adapters *adapters, bool ports)
{
    uint32_t index = netlink_asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);
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
    uint32_t index = netlink_asked_for(answer->request, RDMA_NLDEV_ATTR_DEV_INDEX);
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
            telling.number = netlink_asked_for(answer->request, objects[kind].number);
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
        message = netlink_begin(answer, request->nlmsg_type, 0);
        netlink_put(message, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, &mode, sizeof(mode));
        netlink_end(answer, message);
        error = 0;
    }
    if (error == 0 && dump)
        netlink_done(answer);
    else if (error || (request->nlmsg_flags & NLM_F_ACK))
        netlink_error(answer, error);
    netlink_flush(answer);
}

void rdma_answer(const char *root, const void *data, size_t length, uint32_t port, struct datagrams *to)
{
    struct answer answer = {.port = port, .to = to};
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
