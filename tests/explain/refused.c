/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs whose calls are refused, with public verbs only.
 *
 * usage: refused NAME        (without one: lists them)
 *
 * Says "hangs" on stdout after the mistake, and ends when it reads a line: with status 0, and of trials with status 3.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "node.h"

static struct node node;
static struct ibv_cq *cq;
static int status;

#define SLOTS 8u

static void begin(void)
{
    node_open(&node);
    cq = ibv_create_cq(node.context, 64, NULL, NULL, 0);
    REQUIRE(cq);
}

static struct ibv_qp *qp_of_type(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 2, .max_recv_sge = 2},
        .qp_type = type,
    };
    struct ibv_qp *qp;

    begin();
    attributes.send_cq = attributes.recv_cq = cq;
    qp = ibv_create_qp(node.pd, &attributes);
    REQUIRE(qp);
    return qp;
}

static struct ibv_qp *new_qp(void)
{
    return qp_of_type(IBV_QPT_RC);
}

/* Two QPs that are connected to each other. */
static struct ibv_qp *connected_qp(void)
{
    struct ibv_qp *a = new_qp(), *b = make_qp(&node, cq, NULL, SLOTS);

    connect_qps(&node, a, b, 14, 7, 7);
    return a;
}

/* --- ibv_modify_qp ---------------------------------------------------------------------------------------- */

static struct ibv_qp_attr rtr_attributes(void)
{
    return (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = node.gid, .hop_limit = 1}},
    };
}

#define RTR_MASK                                                                                             \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |                          \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)

/* What the program wants goes with the wrong transition: the timeout is an attribute of RTR to RTS
 * (RDMA-Rust/sideway#17: EINVAL does not say which bits). */
static void mask_of_rtr(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = rtr_attributes();

    to_init(qp);
    REQUIRE(ibv_modify_qp(qp, &attributes,
                          (RTR_MASK & ~(IBV_QP_MIN_RNR_TIMER | IBV_QP_RQ_PSN)) | IBV_QP_TIMEOUT) == EINVAL);
}

static void skipped_init(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = rtr_attributes();

    REQUIRE(ibv_modify_qp(qp, &attributes, RTR_MASK) == EINVAL);
}

static void refused_rtr(void (*spoil)(struct ibv_qp_attr *attributes))
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = rtr_attributes();

    to_init(qp);
    spoil(&attributes);
    REQUIRE(ibv_modify_qp(qp, &attributes, RTR_MASK) == EINVAL);
}

static void take_grh(struct ibv_qp_attr *attributes)
{
    attributes->ah_attr.is_global = 0;
    attributes->ah_attr.dlid = 5;
}

/* Programs written for InfiniBand address by LID (madsys-dev/smart#2, linux-rdma/perftest#393,
 * datenlord/rdma-sys#24). */
static void lid_alone(void)
{
    refused_rtr(take_grh);
}

static void take_gid_index(struct ibv_qp_attr *attributes)
{
    attributes->ah_attr.grh.sgid_index = 77;
}

/* SymbioticLab/Justitia#3: the index was left out, or is another machine's. */
static void no_such_gid(void)
{
    refused_rtr(take_gid_index);
}

/* linux-rdma/perftest#44: both ends name a GID of another kind. */
static void take_other_family(struct ibv_qp_attr *attributes)
{
    static const uint8_t ipv4[12] = {[10] = 0xff, 0xff};
    union ibv_gid *dgid = &attributes->ah_attr.grh.dgid;

    if (memcmp(dgid->raw, ipv4, sizeof(ipv4)) == 0)
        *dgid = (union ibv_gid){.raw = {0x20, 0x01, 0x0d, 0xb8, [15] = 1}};
    else
        *dgid = (union ibv_gid){.raw = {[10] = 0xff, 0xff, 192, 0, 2, 7}};
}

static void gid_of_other_family(void)
{
    refused_rtr(take_other_family);
}

static void take_mtu(struct ibv_qp_attr *attributes)
{
    attributes->path_mtu = (enum ibv_mtu)1024;
}

static void mtu_in_bytes(void)
{
    refused_rtr(take_mtu);
}

static void take_reads(struct ibv_qp_attr *attributes)
{
    attributes->max_dest_rd_atomic = 200;
}

static void too_many_reads(void)
{
    refused_rtr(take_reads);
}

/* linux-rdma/perftest#114: what the peer's adapter can do is asked of one that can do less. */
static void reads_of_the_peer(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 200};

    to_init(qp);
    to_rtr(&node, qp, 1, &node.gid);
    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == EINVAL);
}

static void access_of_qp(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 1 << 12};

    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
}

static void port_zero(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT};

    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
}

/* The same mistake in a loop: told once. */
static void same_mask_each_time(void)
{
    struct ibv_qp *qp = new_qp();
    struct ibv_qp_attr attributes = rtr_attributes();

    for (int i = 0; i < 5; i++)
        REQUIRE(ibv_modify_qp(qp, &attributes, RTR_MASK) == EINVAL);
}

/* --- posts -------------------------------------------------------------------------------------------------- */

static struct ibv_sge sges[4];

static int try_send(struct ibv_qp *qp, struct ibv_send_wr wr)
{
    struct ibv_send_wr *bad = NULL;

    for (int i = 0; i < 4; i++)
        sges[i] = (struct ibv_sge){(uintptr_t)node.buffer, 8, node.mr->lkey};
    wr.sg_list = sges;
    return ibv_post_send(qp, &wr, &bad);
}

static void post_before_rts(void)
{
    struct ibv_qp *qp = new_qp();

    to_init(qp);
    REQUIRE(try_send(qp, (struct ibv_send_wr){.opcode = IBV_WR_SEND, .num_sge = 1}) == EINVAL);
}

static void receive_in_reset(void)
{
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;

    REQUIRE(ibv_post_recv(new_qp(), &wr, &bad) == EINVAL);
}

/* spdk/spdk#3195: a request of more pieces than max_send_sge. */
static void too_many_sges(void)
{
    REQUIRE(try_send(connected_qp(), (struct ibv_send_wr){.opcode = IBV_WR_SEND, .num_sge = 4}) == EINVAL);
}

static void inline_too_long(void)
{
    struct ibv_qp *qp = connected_qp();
    struct ibv_sge sge = {(uintptr_t)node.buffer, 2000, 0};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
    struct ibv_send_wr *bad;

    REQUIRE(ibv_post_send(qp, &wr, &bad) == EINVAL);
}

static void atomic_unaligned(void)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .num_sge = 1};

    wr.wr.atomic.remote_addr = 0x1004;
    REQUIRE(try_send(connected_qp(), wr) == EINVAL);
}

static void read_on_ud(void)
{
    struct ibv_qp *qp = qp_of_type(IBV_QPT_UD);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};

    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
            0);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    REQUIRE(try_send(qp, (struct ibv_send_wr){.opcode = IBV_WR_RDMA_READ, .num_sge = 1}) == EINVAL);
}

static void no_address_handle(void)
{
    struct ibv_qp *qp = qp_of_type(IBV_QPT_UD);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};

    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
            0);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    REQUIRE(try_send(qp, (struct ibv_send_wr){.opcode = IBV_WR_SEND, .num_sge = 1}) == EINVAL);
}

/* Nothing is signaled: when all have ended, the queue is still full (ofiwg/libfabric#1802, apache/brpc#3132). */
static void full_of_unsignaled(void)
{
    struct ibv_qp *qp = connected_qp();
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .num_sge = 1};

    wr.wr.rdma.remote_addr = (uintptr_t)node.buffer;
    wr.wr.rdma.rkey = node.mr->rkey;
    for (unsigned i = 0; i < SLOTS; i++)
        REQUIRE(try_send(qp, wr) == 0);
    /* The last one has ended when its effect is seen, or a moment later; a program that tries again meets both. */
    for (int i = 0; i < 1000; i++) {
        struct ibv_wc wc;

        REQUIRE(try_send(qp, wr) == ENOMEM);
        REQUIRE(ibv_poll_cq(cq, 1, &wc) == 0);
    }
}

/* Waits for room by trying: nothing is wrong. */
static void full_for_a_while(void)
{
    struct ibv_qp *qp = connected_qp();
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_wc wc;

    wr.wr.rdma.remote_addr = (uintptr_t)node.buffer;
    wr.wr.rdma.rkey = node.mr->rkey;
    for (unsigned i = 0; i < SLOTS; i++)
        REQUIRE(try_send(qp, wr) == 0);
    REQUIRE(try_send(qp, wr) == ENOMEM);
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
    }
    REQUIRE(try_send(qp, wr) == 0);
    status = 3;
}

/* gpudirect/libgdsync#92, ydb-platform/nbs#2690: receives are posted again faster than their completions are polled. */
static void receive_queue_full(void)
{
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_qp *qp = new_qp();

    to_init(qp);
    for (unsigned i = 0; i < SLOTS; i++)
        REQUIRE(ibv_post_recv(qp, &wr, &bad) == 0);
    REQUIRE(ibv_post_recv(qp, &wr, &bad) == ENOMEM);
    status = 3;
}

static void receive_by_srq(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_srq *srq;
    struct ibv_qp *qp;

    begin();
    srq = ibv_create_srq(node.pd, &attributes);
    REQUIRE(srq);
    qp = make_qp(&node, cq, srq, SLOTS);
    to_init(qp);
    REQUIRE(ibv_post_recv(qp, &wr, &bad) == EINVAL);
}

static void srq_with_many_sges(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_recv_wr wr = {.wr_id = 1, .num_sge = 3, .sg_list = sges}, *bad;
    struct ibv_srq *srq;

    begin();
    srq = ibv_create_srq(node.pd, &attributes);
    REQUIRE(srq);
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == EINVAL);
}

/* --- memory --------------------------------------------------------------------------------------------------- */

static void remote_without_local(void)
{
    begin();
    REQUIRE(!ibv_reg_mr(node.pd, node.buffer, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
}

/* A constant, or a file that was mapped for reading (ofiwg/libfabric#7243, dmf-mxl/mxl#516). */
static void read_only_page(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    begin();
    REQUIRE(at != MAP_FAILED);
    REQUIRE(mprotect(at + 2 * page, page, PROT_READ) == 0);
    REQUIRE(!ibv_reg_mr(node.pd, at, 4 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
}

/* ut-osa/assise#26: more than there is; Mellanox/nv_peer_memory#121: the address of something else. */
static void hole(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    begin();
    REQUIRE(at != MAP_FAILED);
    REQUIRE(munmap(at + page, page) == 0);
    REQUIRE(!ibv_reg_mr(node.pd, at, 4 * page, 0) && errno == EFAULT);
}

static void no_bytes(void)
{
    begin();
    REQUIRE(!ibv_reg_mr(node.pd, node.buffer, 0, 0) && errno == EINVAL);
}

/* --- creations -------------------------------------------------------------------------------------------------- */

static void create_refused(struct ibv_qp_init_attr attributes)
{
    struct ibv_qp_init_attr given;

    begin();
    given = attributes;
    given.recv_cq = cq;
    if (!given.send_cq)
        given.send_cq = cq;
    REQUIRE(!ibv_create_qp(node.pd, &given) && errno == EINVAL);
}

/* "Unable to create QP", with six attributes to choose from. */
static void send_queue_too_long(void)
{
    create_refused((struct ibv_qp_init_attr){.cap = {.max_send_wr = 10000000, .max_send_sge = 1},
                                             .qp_type = IBV_QPT_RC});
}

/* linux-rdma/perftest#139: no attribute says how much is possible, so that programs try. */
static void inline_trial(void)
{
    create_refused((struct ibv_qp_init_attr){
        .cap = {.max_send_wr = 1, .max_send_sge = 1, .max_inline_data = 100000}, .qp_type = IBV_QPT_RC});
    status = 3;
}

static void too_many_sges_asked(void)
{
    create_refused((struct ibv_qp_init_attr){
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1000},
        .qp_type = IBV_QPT_RC});
}

static void no_type(void)
{
    create_refused((struct ibv_qp_init_attr){.cap = {.max_send_wr = 1, .max_send_sge = 1}});
}

static void cq_of_other_context(void)
{
    struct node other;
    struct ibv_cq *foreign;

    node_open(&other);
    foreign = ibv_create_cq(other.context, 16, NULL, NULL, 0);
    REQUIRE(foreign);
    create_refused((struct ibv_qp_init_attr){
        .send_cq = foreign, .cap = {.max_send_wr = 1, .max_send_sge = 1}, .qp_type = IBV_QPT_RC});
}

/* ofiwg/libfabric#8256: "ibv_create_cq: Invalid argument". */
static void empty_cq(void)
{
    begin();
    REQUIRE(!ibv_create_cq(node.context, 0, NULL, NULL, 0) && errno == EINVAL);
}

static void wrong_vector(void)
{
    begin();
    REQUIRE(!ibv_create_cq(node.context, 8, NULL, NULL, 5000) && errno == EINVAL);
}

static void negative_vector(void)
{
    begin();
    REQUIRE(!ibv_create_cq(node.context, 8, NULL, NULL, -1) && errno == EINVAL);
}

static struct ibv_wq *new_wq(enum ibv_wq_type type)
{
    struct ibv_wq_init_attr attributes = {.wq_type = type, .max_wr = 4, .max_sge = 1};

    begin();
    attributes.pd = node.pd;
    attributes.cq = cq;
    return ibv_create_wq(node.context, &attributes);
}

static void wq_in_reset(void)
{
    struct ibv_wq *wq = new_wq(IBV_WQT_RQ);
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;

    REQUIRE(wq);
    REQUIRE(ibv_post_wq_recv(wq, &wr, &bad) == EINVAL);
}

static void type_of_wq(void)
{
    REQUIRE(!new_wq((enum ibv_wq_type)7) && errno == EINVAL);
}

static void mask_of_domain(void)
{
    struct ibv_td_init_attr attributes = {.comp_mask = 1};

    begin();
    REQUIRE(!ibv_alloc_td(node.context, &attributes) && errno == EINVAL);
}

static void ah_without_grh(void)
{
    struct ibv_ah_attr attributes = {.port_num = 1, .dlid = 7};

    begin();
    REQUIRE(!ibv_create_ah(node.pd, &attributes) && errno == EINVAL);
}

static void srq_too_long(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 100000000, .max_sge = 1}};

    begin();
    REQUIRE(!ibv_create_srq(node.pd, &attributes) && errno == EINVAL);
}

static void group_is_none(void)
{
    struct ibv_qp *qp = qp_of_type(IBV_QPT_UD);

    REQUIRE(ibv_attach_mcast(qp, &node.gid, 0) == EINVAL);
}

static void group_of_rc(void)
{
    union ibv_gid gid = {.raw = {0xff, 0x0e, [15] = 1}};

    REQUIRE(ibv_attach_mcast(new_qp(), &gid, 0) == EINVAL);
}

static void flow_on_rc(void)
{
    struct ibv_flow_attr attributes = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(attributes), .port = 1};

    REQUIRE(!ibv_create_flow(new_qp(), &attributes) && errno == EINVAL);
}

/* Programs ask in this way whether an adapter has it. */
static void trial(void)
{
    struct ibv_cq_init_attr_ex attributes = {.cqe = 4, .wc_flags = 1ull << 40};

    begin();
    REQUIRE(!ibv_create_cq_ex(node.context, &attributes));
    status = 3;
}

/* --- librdmacm ---------------------------------------------------------------------------------------------------- */

static struct rdma_cm_id *new_id(enum rdma_port_space ps)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;

    REQUIRE(channel && rdma_create_id(channel, &id, NULL, ps) == 0);
    return id;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    REQUIRE(rdma_get_cm_event(channel, &event) == 0 && event->event == type);
    REQUIRE(rdma_ack_cm_event(event) == 0);
}

static struct rdma_cm_id *resolved_id(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

    REQUIRE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
    expect(id->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    return id;
}

static void connect_before_route(void)
{
    struct rdma_conn_param param = {.responder_resources = 1};

    REQUIRE(rdma_connect(new_id(RDMA_PS_TCP), &param) == -1 && errno == EINVAL);
}

static void qp_before_address(void)
{
    struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};

    REQUIRE(rdma_create_qp(new_id(RDMA_PS_TCP), NULL, &attributes) == -1 && errno == EINVAL);
}

static void srq_without_type(void)
{
    struct ibv_srq_init_attr_ex attributes = {.attr = {.max_wr = 4, .max_sge = 1}};

    REQUIRE(rdma_create_srq_ex(resolved_id(), &attributes) == -1 && errno == EINVAL);
}

static void accept_on_listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
    struct rdma_conn_param param = {.responder_resources = 1};

    REQUIRE(rdma_bind_addr(id, (struct sockaddr *)&address) == 0 && rdma_listen(id, 1) == 0);
    REQUIRE(rdma_accept(id, &param) == -1 && errno == EINVAL);
}

static void route_before_address(void)
{
    REQUIRE(rdma_resolve_route(new_id(RDMA_PS_TCP), 1000) == -1 && errno == EINVAL);
}

/* ovis-hpc/ldms#2259: a message that grew, where 56 bytes are all that a request for a connection can carry. */
static void private_data_too_long(void)
{
    static const char data[100];
    struct rdma_conn_param param = {
        .private_data = data, .private_data_len = sizeof(data), .responder_resources = 1};
    struct rdma_cm_id *id = resolved_id();

    REQUIRE(rdma_resolve_route(id, 2000) == 0);
    expect(id->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    REQUIRE(rdma_connect(id, &param) == -1 && errno == EINVAL);
}

/* apache/brpc#1402: the PD is that of the device that was opened by name, the id chose another one. */
static void pd_of_other_device(void)
{
    struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct rdma_cm_id *id = resolved_id();

    begin();
    REQUIRE(rdma_create_qp(id, node.pd, &attributes) == -1 && errno == EINVAL);
}

static struct sockaddr_in listening_address(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

    REQUIRE(rdma_bind_addr(id, (struct sockaddr *)&address) == 0 && rdma_listen(id, 1) == 0);
    address.sin_port = rdma_get_src_port(id);
    return address;
}

/* animeshtrivedi/blog#2: the port space is that of TCP, and the server of before still runs. */
static void port_taken(void)
{
    struct sockaddr_in address = listening_address();

    REQUIRE(rdma_bind_addr(new_id(RDMA_PS_TCP), (struct sockaddr *)&address) == -1 && errno == EADDRINUSE);
}

/* A service of the system's ports, started by an ordinary user. */
static void port_of_the_system(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if (geteuid() == 0)
        REQUIRE(setgid(61001) == 0 && setuid(61001) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    REQUIRE(rdma_bind_addr(new_id(RDMA_PS_TCP), (struct sockaddr *)&address) == -1 && errno == EACCES);
}

/* openucx/ucx#3139: the address of another machine, or of an interface that no adapter has. */
static void address_of_nobody(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000207)};

    REQUIRE(rdma_bind_addr(new_id(RDMA_PS_TCP), (struct sockaddr *)&address) == -1 && errno == ENODEV);
    status = 3;
}

static const struct situation situations[] = {
    {"mask-of-rtr", mask_of_rtr},
    {"skipped-init", skipped_init},
    {"lid-alone", lid_alone},
    {"no-such-gid", no_such_gid},
    {"gid-of-other-family", gid_of_other_family},
    {"mtu-in-bytes", mtu_in_bytes},
    {"too-many-reads", too_many_reads},
    {"reads-of-the-peer", reads_of_the_peer},
    {"access-of-qp", access_of_qp},
    {"port-zero", port_zero},
    {"same-mask-each-time", same_mask_each_time},
    {"post-before-rts", post_before_rts},
    {"receive-in-reset", receive_in_reset},
    {"too-many-sges", too_many_sges},
    {"inline-too-long", inline_too_long},
    {"atomic-unaligned", atomic_unaligned},
    {"read-on-ud", read_on_ud},
    {"no-address-handle", no_address_handle},
    {"full-of-unsignaled", full_of_unsignaled},
    {"full-for-a-while", full_for_a_while},
    {"receive-queue-full", receive_queue_full},
    {"receive-by-srq", receive_by_srq},
    {"srq-with-many-sges", srq_with_many_sges},
    {"remote-without-local", remote_without_local},
    {"read-only-page", read_only_page},
    {"hole", hole},
    {"no-bytes", no_bytes},
    {"send-queue-too-long", send_queue_too_long},
    {"inline-trial", inline_trial},
    {"too-many-sges-asked", too_many_sges_asked},
    {"no-type", no_type},
    {"cq-of-other-context", cq_of_other_context},
    {"empty-cq", empty_cq},
    {"wrong-vector", wrong_vector},
    {"negative-vector", negative_vector},
    {"wq-in-reset", wq_in_reset},
    {"type-of-wq", type_of_wq},
    {"mask-of-domain", mask_of_domain},
    {"ah-without-grh", ah_without_grh},
    {"srq-too-long", srq_too_long},
    {"group-is-none", group_is_none},
    {"group-of-rc", group_of_rc},
    {"flow-on-rc", flow_on_rc},
    {"trial", trial},
    {"connect-before-route", connect_before_route},
    {"qp-before-address", qp_before_address},
    {"srq-without-type", srq_without_type},
    {"accept-on-listener", accept_on_listener},
    {"route-before-address", route_before_address},
    {"private-data-too-long", private_data_too_long},
    {"pd-of-other-device", pd_of_other_device},
    {"port-taken", port_taken},
    {"port-of-the-system", port_of_the_system},
    {"address-of-nobody", address_of_nobody},
};

int main(int argc, char **argv)
{
    const struct situation *wanted =
        situation_wanted(argc, argv, situations, sizeof(situations) / sizeof(situations[0]));

    if (!wanted)
        return argc < 2 ? 0 : 1;
    wanted->happen();
    say("hangs");
    wait_for_word();
    return status;
}
