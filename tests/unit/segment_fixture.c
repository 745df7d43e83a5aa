/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "segment_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

#define SEGMENT_SIZE (64u << 10)

static struct fixture fixture;
static uint64_t end;

static void *place(struct segment_table *table, size_t stride, uint32_t count)
{
    *table = (struct segment_table){.offset = end, .stride = (uint32_t)stride, .count = count};
    end += (stride * count + CACHE_LINE - 1) & ~(uint64_t)(CACHE_LINE - 1);
    return fixture.base + table->offset;
}

static uint64_t queue(size_t stride)
{
    uint64_t offset = end;

    end += stride * FIXTURE_SLOTS;
    return offset;
}

static struct provenance_record provenance(void)
{
    return (struct provenance_record){
        .created_ns = FIXTURE_AGO(5000), .created_by = FIXTURE_THREAD, .created_stack = 1, .name = "fixture"};
}

static void make_qp(struct qp_record *qp, uint32_t qpn, uint32_t dest_qpn)
{
    *qp = (struct qp_record){
        .qpn = qpn,
        .state = IBV_QPS_RTS,
        .type = IBV_QPT_RC,
        .srq = NO_OBJECT,
        .send_depth = FIXTURE_SLOTS,
        .send_stride = FIXTURE_STRIDE,
        .max_send_sge = 1,
        .send_offset = queue(FIXTURE_STRIDE),
        .attributes =
            {.dest_qpn = dest_qpn, .timeout = 14, .retry_count = 7, .rnr_retry = 7, .max_rd_atomic = 4},
        .sender = {.retries_left = 7, .rnr_retries_left = 7},
        .receive = {.depth = FIXTURE_SLOTS,
                    .max_sge = 1,
                    .stride = FIXTURE_STRIDE,
                    .offset = queue(FIXTURE_STRIDE)},
        .path = {.kind = PATH_SELF, .peer_pid = getpid()},
        .provenance = provenance(),
    };
}

static void make_cq(struct cq_record *cq, uint32_t channel)
{
    *cq = (struct cq_record){
        .state = OBJECT_ALIVE,
        .channel = channel,
        .capacity = FIXTURE_SLOTS - 1,
        .entry_size = sizeof(struct cqe),
        .ring_offset = queue(sizeof(struct cqe)),
        .provenance = provenance(),
    };
}

static void make_items(struct item_record *items)
{
    items[0] = (struct item_record){.state = OBJECT_ALIVE,
                                    .kind = OBJECT_CONTEXT,
                                    .parent = NO_OBJECT,
                                    .device = "softhca0",
                                    .provenance = provenance()};
    items[1] = (struct item_record){.state = OBJECT_ALIVE,
                                    .kind = OBJECT_CHANNEL,
                                    .parent = NO_OBJECT,
                                    .users = 1,
                                    .provenance = provenance()};
    items[2] = (struct item_record){.state = OBJECT_ALIVE,
                                    .kind = OBJECT_AH,
                                    .gid = {[10] = 0xff, 0xff, 192, 0, 2, 1},
                                    .provenance = provenance()};
    items[3] = (struct item_record){.state = OBJECT_ALIVE,
                                    .kind = OBJECT_ATTACHMENT,
                                    .parent = FIXTURE_PEER,
                                    .gid = FIXTURE_GROUP,
                                    .provenance = provenance()};
}

static void make_others(void)
{
    uint64_t entries;

    fixture.pds[0] = (struct pd_record){.state = OBJECT_ALIVE,
                                        .users = 5,
                                        .protects = NO_OBJECT,
                                        .td = NO_OBJECT,
                                        .provenance = provenance()};
    fixture.srqs[0] = (struct srq_record){.state = OBJECT_ALIVE,
                                          .cq = NO_OBJECT,
                                          .max_wr = FIXTURE_SLOTS - 1,
                                          .max_sge = 1,
                                          .stride = FIXTURE_STRIDE,
                                          .ring_offset = queue(FIXTURE_STRIDE),
                                          .provenance = provenance()};
    fixture.wqs[0] = (struct wq_record){
        .state = OBJECT_ALIVE,
        .cq = 1,
        .users = 1,
        .wqn = FIXTURE_WQN,
        .wq_state = IBV_WQS_RDY,
        .receive = {.depth = FIXTURE_SLOTS, .stride = FIXTURE_STRIDE, .offset = queue(FIXTURE_STRIDE)},
        .provenance = provenance()};
    entries = queue(8);
    fixture.ind_tables[0] = (struct ind_table_record){
        .state = OBJECT_ALIVE, .entries = 2, .offset = entries, .provenance = provenance()};
    fixture.keys[0] = (struct key_entry){.generation = 2,
                                         .kind = KEY_REGION,
                                         .lkey = FIXTURE_LKEY,
                                         .rkey = FIXTURE_LKEY | KEY_REMOTE,
                                         .access = IBV_ACCESS_LOCAL_WRITE,
                                         .length = 4096,
                                         .address = 0x10000};
    fixture.key_provenance[0] = provenance();
    fixture.ids[0] = (struct id_record){.state = OBJECT_ALIVE,
                                        .phase = ID_CONNECTED,
                                        .given = 1,
                                        .qpn = FIXTURE_QPN,
                                        .source_port = 1234,
                                        .destination_port = 80,
                                        .destination = {[10] = 0xff, 0xff, 192, 0, 2, 7},
                                        .provenance = provenance()};
    fixture.stacks[1] = (struct stack_record){.depth = 2, .frame = {0x1001, 0x2001}};
    fixture.modules[0] =
        (struct module_record){.state = 1, .start = 0x1000, .end = 0x3000, .path = "/nonexistent/program"};
}

struct fixture *fixture_make(void)
{
    struct segment_header *header;

    if (!fixture.base)
        fixture.base = aligned_alloc(4096, SEGMENT_SIZE);
    memset(fixture.base, 0, SEGMENT_SIZE);
    fixture.size = SEGMENT_SIZE;
    fixture.header = header = (struct segment_header *)fixture.base;
    end = 4096;
    fixture.keys = place(&header->keys, sizeof(struct key_entry), 8);
    fixture.qps = place(&header->qps, sizeof(struct qp_record), 4);
    fixture.qp_rares = place(&header->qp_rares, sizeof(struct qp_rare), 4);
    fixture.cqs = place(&header->cqs, sizeof(struct cq_record), 4);
    fixture.srqs = place(&header->srqs, sizeof(struct srq_record), 4);
    fixture.pds = place(&header->pds, sizeof(struct pd_record), 4);
    fixture.wqs = place(&header->wqs, sizeof(struct wq_record), 4);
    fixture.ind_tables = place(&header->ind_tables, sizeof(struct ind_table_record), 4);
    fixture.items = place(&header->items, sizeof(struct item_record), 8);
    fixture.ids = place(&header->ids, sizeof(struct id_record), 4);
    fixture.key_provenance = place(&header->key_provenance, sizeof(struct provenance_record), 8);
    fixture.stacks = place(&header->stacks, sizeof(struct stack_record), 4);
    fixture.mapped = place(&header->mapped, sizeof(struct mapped_record), 8);
    place(&header->directs, sizeof(struct direct_record), 8);
    fixture.modules = place(&header->modules, sizeof(struct module_record), 4);
    fixture.misuses = place(&header->misuses, sizeof(struct misuse_record), 4);
    fixture.refusals = place(&header->refusals, sizeof(struct refused_record), 4);
    fixture.ports = place(&header->ports, sizeof(struct port_record), 2);
    header->magic = SEGMENT_MAGIC;
    header->version = SEGMENT_VERSION;
    header->header_size = sizeof(*header);
    header->total_size = SEGMENT_SIZE;
    header->qps_open = header->qps.count;
    header->pid = getpid();
    header->start_ns = FIXTURE_AGO(10000);
    strcpy(header->program, "fixture");
    make_qp(&fixture.qps[0], FIXTURE_QPN, FIXTURE_PEER);
    make_qp(&fixture.qps[1], FIXTURE_PEER, FIXTURE_QPN);
    fixture.qps[1].multicast_groups = 1;
    make_cq(&fixture.cqs[0], 0);
    make_cq(&fixture.cqs[1], NO_OBJECT);
    make_items(fixture.items);
    make_others();
    return &fixture;
}

struct view fixture_view(void)
{
    struct view view = {0};

    if (view_open(&view, fixture.base, fixture.size, -1, 0) != 0)
        view.base = NULL;
    return view;
}

struct send_wqe *fixture_send(struct qp_record *qp, uint32_t counter)
{
    return (struct send_wqe *)(fixture.base + qp->send_offset + counter % FIXTURE_SLOTS * FIXTURE_STRIDE);
}

struct recv_wqe *fixture_receive(struct qp_record *qp, uint32_t counter)
{
    return (struct recv_wqe *)(fixture.base + qp->receive.offset + counter % FIXTURE_SLOTS * FIXTURE_STRIDE);
}

struct recv_wqe *fixture_srq_receive(uint32_t counter)
{
    return (struct recv_wqe *)(fixture.base + fixture.srqs[0].ring_offset +
                               counter % FIXTURE_SLOTS * FIXTURE_STRIDE);
}

struct cqe *fixture_cqe(struct cq_record *cq, uint32_t counter)
{
    return (struct cqe *)(fixture.base + cq->ring_offset + counter % FIXTURE_SLOTS * sizeof(struct cqe));
}
