/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The verbs objects of a stream: an RC QP with one CQ and its channel, and one registered piece of memory with the
 * rings and the table; dispatch of completions. */
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "front/rsockets/rsocket.h"

/* Inline size for a control message, independent of the program's setting for data. */
#define INLINE_MIN RSOCKET_WINDOW_BYTES
#define INLINE_MAX 1024u
/* Maximum of a data message: long enough to amortize its cost, short enough that the peer starts reading early. */
#define CHUNK (64u << 10)
/* Completions per poll, and receives per post. */
#define BATCH 16

uint32_t endpoint_inline_limit(void)
{
    return INLINE_MAX;
}

/* --- making --------------------------------------------------------------------------------------------- */

static size_t pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) & ~(page - 1);
}

static int open_memory(struct rsocket *rsocket)
{
    struct rsocket_endpoint *endpoint = &rsocket->endpoint;
    const struct rsocket_options *options = &rsocket->options;
    size_t table = pages(stream_table_bytes(options->mappings)), receive = pages(options->receive_bytes);
    size_t send = pages(options->send_bytes);
    int error;

    endpoint->memory = sys_mmap(NULL, table + receive + send, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (!endpoint->memory)
        return error;
    endpoint->memory_bytes = table + receive + send;
    endpoint->receive_ring = endpoint->memory + table;
    endpoint->send_ring = endpoint->receive_ring + receive;
    endpoint->receive_mr = ibv_reg_mr(rsocket->id->pd, endpoint->memory, table + receive,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (endpoint->receive_mr)
        endpoint->send_mr = ibv_reg_mr(rsocket->id->pd, endpoint->send_ring, send, 0);
    return endpoint->send_mr ? 0 : -errno;
}

static uint32_t clamp(uint32_t value, uint32_t least, uint32_t most)
{
    return value < least ? least : min_of(value, most);
}

static void clamp_requests(struct rsocket *rsocket, const struct ibv_device_attr *device)
{
    struct rsocket_options *options = &rsocket->options;
    uint32_t most = min_of((uint32_t)device->max_qp_wr, RSOCKET_REQUESTS_MAX);

    options->send_requests = clamp(options->send_requests, RSOCKET_REQUESTS_MIN, most);
    options->receive_requests = clamp(options->receive_requests, RSOCKET_REQUESTS_MIN, most);
}

static int open_queues(struct rsocket *rsocket)
{
    struct rsocket_endpoint *endpoint = &rsocket->endpoint;
    const struct rsocket_options *options = &rsocket->options;
    struct rdma_cm_id *id = rsocket->id;
    struct ibv_device_attr device;
    int error = ibv_query_device(id->verbs, &device);

    if (error)
        return -error;
    clamp_requests(rsocket, &device);
    endpoint->channel = ibv_create_comp_channel(id->verbs);
    if (!endpoint->channel)
        return -errno;
    endpoint->cq = ibv_create_cq(id->verbs, (int)(options->send_requests + options->receive_requests),
                                 rsocket, endpoint->channel, 0);
    if (!endpoint->cq)
        return -errno;
    return rdma_create_qp(id, NULL,
                          &(struct ibv_qp_init_attr){
                              .qp_context = rsocket,
                              .send_cq = endpoint->cq,
                              .recv_cq = endpoint->cq,
                              .qp_type = IBV_QPT_RC,
                              .cap = {.max_send_wr = options->send_requests,
                                      .max_recv_wr = options->receive_requests,
                                      .max_send_sge = 2,
                                      .max_recv_sge = 1,
                                      .max_inline_data = max_of(options->inline_bytes, INLINE_MIN)},
                          })
               ? -errno
               : 0;
}

static void describe(const struct rsocket *rsocket, struct stream_options *ret_options)
{
    const struct rsocket_endpoint *endpoint = &rsocket->endpoint;
    const struct rsocket_options *options = &rsocket->options;

    *ret_options = (struct stream_options){
        .send_bytes = options->send_bytes,
        .receive_bytes = options->receive_bytes,
        .send_requests = (uint16_t)options->send_requests,
        .receive_requests = (uint16_t)options->receive_requests,
        .inline_bytes = options->inline_bytes,
        .chunk = CHUNK,
        .mappings = options->mappings,
        .big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__,
        .table = endpoint->memory,
        .table_memory = {(uintptr_t)endpoint->memory, endpoint->receive_mr->rkey},
        .receive_memory = {(uintptr_t)endpoint->receive_ring, endpoint->receive_mr->rkey},
    };
}

/* Receives have no buffers: the completion's immediate data is the message. */
static int post_receives(struct rsocket *rsocket, unsigned count)
{
    struct ibv_recv_wr requests[BATCH], *bad;

    while (count > 0) {
        unsigned now = min_of(count, (unsigned)BATCH);
        int error;

        for (unsigned i = 0; i < now; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = STREAM_WR_RECEIVE, .next = &requests[i + 1]};
        requests[now - 1].next = NULL;
        error = ibv_post_recv(rsocket->id->qp, requests, &bad);
        if (error)
            return -error;
        count -= now;
    }
    return 0;
}

int endpoint_open(struct rsocket *rsocket)
{
    struct stream_options options;
    int error = open_queues(rsocket);

    if (!error)
        error = open_memory(rsocket);
    if (!error)
        error = post_receives(rsocket, rsocket->options.receive_requests);
    if (error) {
        endpoint_close(rsocket);
        return error;
    }
    describe(rsocket, &options);
    stream_init(&rsocket->stream, &options);
    return 0;
}

/* Polls the remaining completions: destroying a QP with unpolled completions would be reported as a loss to the
 * program, which does not know this QP. */
static void discard_completions(struct ibv_cq *cq)
{
    struct ibv_wc completions[BATCH];

    while (ibv_poll_cq(cq, BATCH, completions) > 0)
        ;
}

void endpoint_close(struct rsocket *rsocket)
{
    struct rsocket_endpoint *endpoint = &rsocket->endpoint;

    if (endpoint->cq)
        discard_completions(endpoint->cq);
    if (rsocket->id)
        rdma_destroy_qp(rsocket->id);
    if (endpoint->cq) {
        ibv_ack_cq_events(endpoint->cq, endpoint->unacknowledged);
        ibv_destroy_cq(endpoint->cq);
    }
    if (endpoint->channel)
        ibv_destroy_comp_channel(endpoint->channel);
    if (endpoint->send_mr)
        ibv_dereg_mr(endpoint->send_mr);
    if (endpoint->receive_mr)
        ibv_dereg_mr(endpoint->receive_mr);
    if (endpoint->memory)
        sys_munmap(endpoint->memory, endpoint->memory_bytes);
    *endpoint = (struct rsocket_endpoint){0};
    rsocket->armed = false;
}

/* --- posting -------------------------------------------------------------------------------------------- */

static int post_write(struct rsocket *rsocket, const struct stream_write *write, struct ibv_sge *pieces,
                      int count)
{
    struct ibv_send_wr *bad,
        request = {
            .wr_id = write->wr_id,
            .sg_list = pieces,
            .num_sge = count,
            .opcode = write->has_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
            .send_flags =
                (write->signaled ? IBV_SEND_SIGNALED : 0u) | (write->inlined ? IBV_SEND_INLINE : 0u),
            .imm_data = htobe32(write->immediate),
            .wr.rdma = {.remote_addr = write->address, .rkey = write->key},
        };

    return -ibv_post_send(rsocket->id->qp, &request, &bad);
}

int endpoint_write(struct rsocket *rsocket, const struct stream_write *write, const void *data)
{
    const struct rsocket_endpoint *endpoint = &rsocket->endpoint;
    struct ibv_sge pieces[2] = {{(uintptr_t)data, write->length, 0}};

    if (write->inlined)
        return post_write(rsocket, write, pieces, 1);
    for (unsigned i = 0; i < write->piece_count; i++)
        pieces[i] = (struct ibv_sge){(uintptr_t)endpoint->send_ring + write->pieces[i].at,
                                     write->pieces[i].length, endpoint->send_mr->lkey};
    return post_write(rsocket, write, pieces, (int)write->piece_count);
}

static void post_control(struct rsocket *rsocket, struct stream_control *control)
{
    struct ibv_sge piece = {(uintptr_t)control->bytes, control->write.length, 0};
    int error = post_write(rsocket, &control->write, &piece, control->write.length ? 1 : 0);

    if (error)
        endpoint_fail(rsocket, error);
}

void endpoint_send_control(struct rsocket *rsocket, enum rsocket_control control)
{
    struct stream_control message;

    stream_send_control(&rsocket->stream, control, &message);
    post_control(rsocket, &message);
}

void endpoint_send_credits(struct rsocket *rsocket)
{
    struct stream_control message;

    while (stream_credits_due(&rsocket->stream)) {
        stream_send_credits(&rsocket->stream, &message);
        post_control(rsocket, &message);
    }
}

/* --- completions ---------------------------------------------------------------------------------------- */

void endpoint_fail(struct rsocket *rsocket, int error)
{
    if (rsocket->stream.connected && !rsocket->error)
        rsocket->error = -error;
    stream_break(&rsocket->stream);
    rsocket_changed(rsocket);
}

static int error_of(enum ibv_wc_status status)
{
    if (status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR)
        return -ETIMEDOUT;
    return -ECONNRESET;
}

/* Flushed receives and control messages: the CM has reported that the peer is gone, which ends the stream. Flushed
 * data: the peer has not received it. */
static void take_failed(struct rsocket *rsocket, const struct ibv_wc *completion)
{
    if (completion->wr_id != STREAM_WR_RECEIVE)
        stream_complete(&rsocket->stream, completion->wr_id);
    if (completion->status == IBV_WC_WR_FLUSH_ERR &&
        (completion->wr_id == STREAM_WR_RECEIVE || completion->wr_id == STREAM_WR_CONTROL))
        stream_break(&rsocket->stream);
    else
        endpoint_fail(rsocket, error_of(completion->status));
}

static void disconnect_for(struct rsocket *rsocket, int error)
{
    endpoint_fail(rsocket, error);
    rdma_disconnect(rsocket->id);
}

static void take_completion(struct rsocket *rsocket, const struct ibv_wc *completion)
{
    int error;

    if (unlikely(completion->status != IBV_WC_SUCCESS)) {
        take_failed(rsocket, completion);
        return;
    }
    if (completion->wr_id != STREAM_WR_RECEIVE) {
        stream_complete(&rsocket->stream, completion->wr_id);
        return;
    }
    rsocket->endpoint.receives_owed++;
    if (completion->opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
        log_warn("rsocket: protocol error: a SEND from the peer, where rsockets have an RDMA WRITE with "
                 "immediate (is the peer an rsocket?), disconnecting");
        disconnect_for(rsocket, -EPROTO);
        return;
    }
    error = stream_arrive(&rsocket->stream, be32toh(completion->imm_data));
    if (error) {
        log_warn("rsocket: protocol error: invalid immediate data %#x from the peer, disconnecting",
                 be32toh(completion->imm_data));
        disconnect_for(rsocket, error);
    }
}

/* Posts receives in batches: one more message costs less than posting one request. */
static void repost_receives(struct rsocket *rsocket)
{
    struct rsocket_endpoint *endpoint = &rsocket->endpoint;
    int error;

    if (endpoint->receives_owed < min_of(rsocket->options.receive_requests / 4, (uint32_t)BATCH) ||
        !rsocket->stream.connected)
        return;
    error = post_receives(rsocket, endpoint->receives_owed);
    endpoint->receives_owed = 0;
    if (error)
        endpoint_fail(rsocket, error);
    else
        stream_receives_posted(&rsocket->stream);
}

unsigned endpoint_progress(struct rsocket *rsocket, bool wait)
{
    struct ibv_wc completions[BATCH];
    int count;

    if (wait)
        lock_acquire(&rsocket->cq_lock);
    else if (!lock_try(&rsocket->cq_lock))
        return 0;
    count = ibv_poll_cq(rsocket->endpoint.cq, BATCH, completions);
    if (count > 0) {
        lock_acquire(&rsocket->lock);
        for (int i = 0; i < count; i++)
            take_completion(rsocket, &completions[i]);
        repost_receives(rsocket);
        endpoint_send_credits(rsocket);
        rsocket_changed(rsocket);
        lock_release(&rsocket->lock);
    }
    lock_release(&rsocket->cq_lock);
    return count > 0 ? (unsigned)count : 0;
}
