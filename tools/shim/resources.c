/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "resources.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../softhca/attach.h"
#include "explain/objects.h"

/* enum rdma_cm_state of the kernel. */
enum {
    KERNEL_IDLE,
    KERNEL_ADDRESS_RESOLVED = 2,
    KERNEL_ROUTE_RESOLVED = 4,
    KERNEL_CONNECT,
    KERNEL_DISCONNECT,
    KERNEL_BOUND,
    KERNEL_LISTEN,
};

struct search {
    resource_visit *visit;
    void *argument;
    uint32_t pid;
};

static const unsigned wanted_kinds[RESOURCE_KINDS] = {
    [RESOURCE_PD] = 1u << OBJECT_PD,   [RESOURCE_CQ] = 1u << OBJECT_CQ,
    [RESOURCE_QP] = 1u << OBJECT_QP,   [RESOURCE_CM_ID] = 1u << OBJECT_CM_ID,
    [RESOURCE_MR] = 1u << OBJECT_MR,   [RESOURCE_CTX] = 1u << OBJECT_CONTEXT,
    [RESOURCE_SRQ] = 1u << OBJECT_SRQ,
};

static uint32_t number_of(uint32_t number)
{
    return number == NO_OBJECT ? RESOURCE_NONE : number;
}

/* False: its context is gone. */
static bool find_device(const struct view *view, uint32_t context, struct resource *ret)
{
    struct object owner;

    if (context == NO_OBJECT || !object_read(view, OBJECT_CONTEXT, context, &owner))
        return false;
    memcpy(ret->device, owner.item.device, sizeof(owner.item.device));
    ret->context = context;
    return true;
}

static bool find_device_of_pd(const struct view *view, uint32_t pd, struct resource *ret)
{
    struct object domain;

    ret->pd = number_of(pd);
    return pd != NO_OBJECT && object_read(view, OBJECT_PD, pd, &domain) &&
           find_device(view, domain.protection_domain.context, ret);
}

static void fill_qp(const struct object *object, struct resource *ret)
{
    const struct qp_record *qp = &object->qp;

    ret->kind = RESOURCE_QP;
    ret->number = object_qpn(object);
    ret->pd = number_of(qp->pd);
    ret->type = qp->type;
    ret->state = qp->state;
    ret->send_psn = qp->sender.next_psn.value;
    if (is_connected(qp)) {
        ret->remote_qpn = qp->attributes.dest_qpn;
        ret->receive_psn = qp->responder.expected_psn.value;
        ret->migration = (uint8_t)qp->attributes.path_mig_state;
    }
}

static uint32_t kernel_state(enum id_state state)
{
    switch (state) {
    case ID_IDLE:
        return KERNEL_IDLE;
    case ID_BOUND:
        return KERNEL_BOUND;
    case ID_ADDRESS_RESOLVED:
        return KERNEL_ADDRESS_RESOLVED;
    case ID_ROUTE_RESOLVED:
        return KERNEL_ROUTE_RESOLVED;
    case ID_CONNECTING:
    case ID_CONNECTED: /* as in the kernel, which does not tell them apart */
        return KERNEL_CONNECT;
    case ID_LISTENING:
        return KERNEL_LISTEN;
    case ID_DISCONNECTED:
        return KERNEL_DISCONNECT;
    }
    return KERNEL_IDLE;
}

static void fill_address(const uint8_t gid[16], uint16_t port, struct sockaddr_storage *ret)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (memcmp(gid, mapped, sizeof(mapped)) == 0) {
        struct sockaddr_in *address = (struct sockaddr_in *)ret;

        address->sin_family = AF_INET;
        address->sin_port = htons(port);
        memcpy(&address->sin_addr, gid + sizeof(mapped), sizeof(address->sin_addr));
    } else {
        struct sockaddr_in6 *address = (struct sockaddr_in6 *)ret;

        address->sin6_family = AF_INET6;
        address->sin6_port = htons(port);
        memcpy(&address->sin6_addr, gid, sizeof(address->sin6_addr));
    }
}

/* An id is a device's when it has a QP: the record names no other device. */
static bool fill_id(const struct view *view, const struct object *object, struct resource *ret)
{
    const struct id_record *id = &object->id;
    struct object qp;

    if (!id->qpn || !object_read_qpn(view, id->qpn, &qp))
        return false;
    ret->kind = RESOURCE_CM_ID;
    ret->qpn = id->qpn;
    ret->type = qp.qp.type;
    ret->state = kernel_state((enum id_state)id->phase);
    ret->port_space = id->port_space;
    fill_address(id->source, id->source_port, &ret->source);
    fill_address(id->destination, id->destination_port, &ret->destination);
    return find_device(view, qp.qp.context, ret);
}

static bool fill(const struct view *view, const struct object *object, struct resource *ret)
{
    switch (object->kind) {
    case OBJECT_CONTEXT:
        ret->kind = RESOURCE_CTX;
        return find_device(view, object->number, ret);
    case OBJECT_PD:
        ret->kind = RESOURCE_PD;
        ret->users = object->protection_domain.users;
        return find_device_of_pd(view, object->number, ret);
    case OBJECT_CQ:
        ret->kind = RESOURCE_CQ;
        ret->users = object->cq.users;
        ret->entries = object->cq.capacity;
        return find_device(view, object->cq.context, ret);
    case OBJECT_QP:
        fill_qp(object, ret);
        return find_device(view, object->qp.context, ret);
    case OBJECT_SRQ:
        ret->kind = RESOURCE_SRQ;
        ret->type = object->srq.cq == NO_OBJECT ? IBV_SRQT_BASIC
                    : object->srq.tm_number     ? IBV_SRQT_TM
                                                : IBV_SRQT_XRC;
        ret->pd = number_of(object->srq.pd);
        ret->cq = number_of(object->srq.cq);
        return find_device(view, object->srq.context, ret);
    case OBJECT_MR:
        ret->kind = RESOURCE_MR;
        ret->lkey = object->key.lkey;
        ret->rkey = object->key.rkey;
        ret->length = object->key.length;
        return find_device_of_pd(view, object->key.pd, ret);
    case OBJECT_CM_ID:
        return fill_id(view, object, ret);
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_WQ:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        return false; /* the kernel's tool does not know them */
    }
    return false;
}

static bool take(const struct view *view, const struct object *object, void *argument)
{
    struct search *search = argument;
    struct resource found = {.number = object->number,
                             .pid = search->pid,
                             .context = RESOURCE_NONE,
                             .pd = RESOURCE_NONE,
                             .cq = RESOURCE_NONE};

    if (fill(view, object, &found))
        search->visit(&found, search->argument);
    return true;
}

__attribute__((visibility("default"))) resources_function softhca_resources;

void softhca_resources(unsigned kinds, resource_visit *visit, void *argument)
{
    struct attached *processes = NULL;
    unsigned objects = 0, count = attach_all(&processes);

    for (unsigned kind = 0; kind < RESOURCE_KINDS; kind++)
        if (kinds & 1u << kind)
            objects |= wanted_kinds[kind];
    for (unsigned i = 0; i < count; i++) {
        struct search search = {visit, argument, (uint32_t)processes[i].pid};

        if (processes[i].files[SEGMENT_TABLES] >= 0 && attached_is_of_own_network(&processes[i]))
            objects_for_each(&processes[i].view, objects, take, &search);
    }
    attached_free(processes, count);
}
