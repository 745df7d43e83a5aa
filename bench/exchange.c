/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What SENDs of 8 bytes between two processes cost where no library does more than a verb must: the floor for ib_send_lat and
 * ib_send_bw -l 16. Each end has one QP, a CQ for each queue, and a ring in shared memory to the other. What a verb must do
 * and this does:
 *
 *   post       check the request, its key and the room in the queue; keep it until it is acknowledged; write a record
 *   poll       take records: check them as those of a stranger, the PSN, the receive and its key; place the bytes; write the
 *              completion; acknowledge each run of records; an acknowledgement completes what it covers
 *   all        one lock for each QP and CQ, as every object of a device is thread-safe
 *
 * It has no other operation, QP type, state, mechanism, event, explanation or peer that sleeps. Pages are populated.
 * Prints the one-way time of an exchange as ib_send_lat makes it, and messages/s of lists of 16, best of so many turns.
 *
 * usage: bench_exchange CPU CPU */
#include "common.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
    SLOTS = 1024,
    DEPTH = 512,
    BATCH = 64,
    LIST = 16,
    WINDOW = 128,
    TURNS = 11,
    EXCHANGES = 50000,
    MESSAGES = 1600000
};
enum {
    OP_SEND = 4,
    OP_ACK = 17,
    IS_SIGNALED = 2,
    QPN = 0x123456,
    KEY = 0x700,
    KEYS = 8,
    LONGEST = 32,
    LINE = 64
};

struct record {
    _Atomic uint64_t word __attribute__((aligned(64))); /* lap, opcode, flags, length: written last */
    uint32_t dest_qpn, src_qpn, psn, immediate;
    char payload[LONGEST];
};

struct ring {
    struct record slot[SLOTS];
    _Atomic uint64_t taken __attribute__((aligned(64))); /* by the reader, told each quarter */
};

struct request {
    uint64_t wr_id;
    const void *from;
    uint32_t length, key, opcode, flags;
};

struct receive {
    uint64_t wr_id;
    char *to;
    uint32_t length, key;
};

struct completion {
    uint64_t wr_id;
    uint32_t status, opcode, vendor_err, length, immediate, qpn, src_qp, flags;
};

struct cq {
    atomic_flag lock __attribute__((aligned(64)));
    uint32_t pushed, polled;
    struct completion at[DEPTH];
};

struct region {
    uint32_t key;
    uintptr_t start;
    size_t length;
};

static struct end {
    atomic_flag lock __attribute__((aligned(64)));
    atomic_flag reading;
    uint32_t state, posted, completed, next_psn;
    uint32_t receives, received, expected_psn;
    uint64_t written, room_until, read, told;
    struct ring *out, *in;
    struct region regions[KEYS];
    struct request request[DEPTH];
    struct receive receive[DEPTH];
    struct cq send_cq, receive_cq;
} end;

static void acquire(atomic_flag *lock)
{
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire))
        ;
}

static void release(atomic_flag *lock)
{
    atomic_flag_clear_explicit(lock, memory_order_release);
}

static bool key_allows(uint32_t key, const void *at, uint32_t length)
{
    const struct region *region = &end.regions[(key >> 8) % KEYS];
    uintptr_t offset = (uintptr_t)at - region->start;

    return region->key == key && offset <= region->length && length <= region->length - offset;
}

static uint64_t word_of(uint64_t position, uint32_t opcode, uint32_t length)
{
    return (position / SLOTS + 1) | (uint64_t)opcode << 48 | (uint64_t)length << 32;
}

/* QP lock held. */
static bool write_record(uint32_t opcode, uint32_t psn, const void *from, uint32_t length)
{
    struct record *record = &end.out->slot[end.written % SLOTS];

    if (end.written == end.room_until) {
        end.room_until = atomic_load_explicit(&end.out->taken, memory_order_acquire) + SLOTS;
        if (end.written == end.room_until)
            return false;
    }
    record->dest_qpn = record->src_qpn = QPN;
    record->psn = psn;
    record->immediate = 0;
    memcpy(record->payload, from, length);
    atomic_store_explicit(&record->word, word_of(end.written, opcode, length), memory_order_release);
    end.written++;
    return true;
}

static bool __attribute__((noinline)) post_send(const struct request *requests, unsigned count)
{
    bool posted = true;

    acquire(&end.lock);
    for (unsigned i = 0; i < count; i++) {
        const struct request *request = &requests[i];

        posted = end.state == 3 && request->opcode == OP_SEND && !(request->flags & ~(unsigned)IS_SIGNALED) &&
                 request->length - 1 < LONGEST && end.posted - end.completed < DEPTH &&
                 key_allows(request->key, request->from, request->length) &&
                 write_record(OP_SEND, end.next_psn, request->from, request->length);
        if (!posted)
            break;
        end.request[end.posted++ % DEPTH] = *request;
        end.next_psn = (end.next_psn + 1) & 0xffffff;
    }
    release(&end.lock);
    return posted;
}

static void __attribute__((noinline)) post_receive(const struct receive *receive)
{
    acquire(&end.lock);
    if (end.receives - end.received < DEPTH)
        end.receive[end.receives++ % DEPTH] = *receive;
    release(&end.lock);
}

static void push(struct cq *cq, const struct completion *completions, unsigned count)
{
    acquire(&cq->lock);
    for (unsigned i = 0; i < count && cq->pushed - cq->polled < DEPTH; i++)
        cq->at[cq->pushed++ % DEPTH] = completions[i];
    release(&cq->lock);
}

static void complete_sends(uint32_t psn)
{
    struct completion done[LIST];
    uint32_t count = (psn - (end.next_psn - (end.posted - end.completed)) + 1) & 0xffffff;
    unsigned signaled = 0;

    if (count > end.posted - end.completed)
        return; /* it acknowledges what was not sent */
    while (count--) {
        const struct request *request = &end.request[end.completed++ % DEPTH];

        if (request->flags & IS_SIGNALED)
            done[signaled++] = (struct completion){.wr_id = request->wr_id, .qpn = QPN};
        if (signaled == LIST || (!count && signaled)) {
            push(&end.send_cq, done, signaled);
            signaled = 0;
        }
    }
}

/* False: nothing is there, or what is there is not taken. */
static bool take_send(const struct record *record, uint32_t length, struct completion *ret_done)
{
    const struct receive *receive = &end.receive[end.received % DEPTH];

    if (end.state < 2 || record->psn != end.expected_psn || record->src_qpn != QPN ||
        end.received == end.receives || receive->length < length ||
        !key_allows(receive->key, receive->to, length))
        return false;
    memcpy(receive->to, record->payload, length);
    *ret_done = (struct completion){
        .wr_id = receive->wr_id, .opcode = 128, .length = length, .qpn = QPN, .src_qp = QPN};
    end.received++;
    end.expected_psn = (end.expected_psn + 1) & 0xffffff;
    return true;
}

static void end_run(struct completion *done, unsigned *count)
{
    if (!*count)
        return;
    push(&end.receive_cq, done, *count);
    *count = 0;
    (void)write_record(OP_ACK, (end.expected_psn - 1) & 0xffffff, NULL, 0);
}

static void progress(void)
{
    struct completion done[LIST];
    unsigned count = 0, taken = 0;

    if (atomic_flag_test_and_set_explicit(&end.reading, memory_order_acquire))
        return;
    acquire(&end.lock);
    while (taken < BATCH) {
        struct record *record = &end.in->slot[end.read % SLOTS];
        uint64_t word = atomic_load_explicit(&record->word, memory_order_acquire);
        uint32_t opcode = (uint32_t)(word >> 48) & 0xff, length = (uint32_t)(word >> 32) & 0xffff;

        if ((uint32_t)word != (uint32_t)(end.read / SLOTS + 1) || length > LONGEST || record->dest_qpn != QPN)
            break;
        if (opcode == OP_ACK) {
            complete_sends(record->psn);
        } else if (opcode != OP_SEND || !take_send(record, length, &done[count])) {
            break;
        } else if (++count == LIST) {
            end_run(done, &count);
        }
        end.read++;
        taken++;
        if (end.read - end.told == SLOTS / 4) {
            end.told = end.read;
            atomic_store_explicit(&end.in->taken, end.read, memory_order_release);
        }
    }
    end_run(done, &count);
    release(&end.lock);
    release(&end.reading);
}

static unsigned take(struct cq *cq, unsigned most, struct completion *ret_done)
{
    unsigned taken = 0;

    acquire(&cq->lock);
    while (taken < most && cq->polled != cq->pushed)
        ret_done[taken++] = cq->at[cq->polled++ % DEPTH];
    release(&cq->lock);
    return taken;
}

static unsigned __attribute__((noinline)) poll_cq(struct cq *cq, unsigned most, struct completion *ret_done)
{
    unsigned taken = cq->polled != cq->pushed ? take(cq, most, ret_done) : 0;

    if (taken)
        return taken;
    progress();
    return cq->polled != cq->pushed ? take(cq, most, ret_done) : 0;
}

/* --- the two ends --------------------------------------------------------------------------------------- */

static char buffers[2][LINE] __attribute__((aligned(64)));

static void await(struct cq *cq)
{
    struct completion done;

    while (!poll_cq(cq, 1, &done))
        ;
    if (done.status)
        exit(1);
}

static void give_receive(void)
{
    post_receive(&(struct receive){.wr_id = 1, .to = buffers[1], .length = 8, .key = KEY});
}

static void send_one(void)
{
    const struct request request = {
        .wr_id = 2, .from = buffers[0], .length = 8, .key = KEY, .opcode = OP_SEND, .flags = IS_SIGNALED};

    if (!post_send(&request, 1))
        exit(1);
}

/* As ib_send_lat: the answer, the next receive, the reply, its completion. */
static double exchange(bool first)
{
    uint64_t began = now_ns();

    for (unsigned i = 0; i < EXCHANGES; i++) {
        if (first) {
            send_one();
            await(&end.send_cq);
        }
        await(&end.receive_cq);
        give_receive();
        if (!first) {
            send_one();
            await(&end.send_cq);
        }
    }
    return (double)(now_ns() - began) / EXCHANGES / 2;
}

static double send_lists(void)
{
    struct request list[LIST];
    struct completion done[LIST];
    uint64_t began = now_ns();
    unsigned sent = 0, completed = 0;

    for (unsigned i = 0; i < LIST; i++)
        list[i] = (struct request){
            .wr_id = i, .from = buffers[0], .length = 8, .key = KEY, .opcode = OP_SEND, .flags = IS_SIGNALED};
    while (completed < MESSAGES) {
        while (sent < MESSAGES && sent - completed <= WINDOW - LIST && post_send(list, LIST))
            sent += LIST;
        completed += poll_cq(&end.send_cq, LIST, done);
    }
    return (double)MESSAGES / (double)(now_ns() - began) * 1e3;
}

static void receive_lists(void)
{
    struct completion done[LIST];

    for (unsigned received = 0; received < MESSAGES;) {
        unsigned count = poll_cq(&end.receive_cq, LIST, done);

        received += count;
        while (count--)
            give_receive();
    }
}

static void meet(int fd)
{
    char byte = 0;

    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
        exit(1);
}

int main(int argc, char **argv)
{
    struct ring *rings =
        mmap(NULL, 2 * sizeof(*rings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double one_way = 0, rate = 0;
    pid_t child;
    int fd, status;

    if (argc < 3 || rings == MAP_FAILED) {
        fprintf(stderr, "usage: %s CPU CPU\n", argv[0]);
        return 2;
    }
    memset(rings, 0, 2 * sizeof(*rings));
    child = fork_peer(&fd);
    pin(atoi(argv[child ? 1 : 2]));
    end.out = &rings[child ? 0 : 1];
    end.in = &rings[child ? 1 : 0];
    end.state = 3;
    end.room_until = SLOTS;
    end.regions[(KEY >> 8) % KEYS] = (struct region){KEY, (uintptr_t)buffers, sizeof(buffers)};
    for (unsigned i = 0; i < DEPTH; i++)
        give_receive();
    for (unsigned i = 0; i < TURNS; i++) {
        double now;

        meet(fd);
        now = exchange(child != 0);
        one_way = i == 0 || now < one_way ? now : one_way;
        meet(fd);
        if (child) {
            now = send_lists();
            rate = now > rate ? now : rate;
        } else {
            receive_lists();
        }
        meet(fd);
    }
    if (!child)
        return 0;
    printf("size 8 one_way_us %.4f lists_rate %.0f\n", one_way / 1e3, rate * 1e6);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
