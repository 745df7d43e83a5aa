/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What 8 bytes between two processes cost where no library does more than a verb must: the floor for ib_send_lat and
 * ib_send_bw -l 16, and for ib_read_lat and ib_atomic_lat in memory that both map. Each end has one QP, a CQ for each
 * queue, and a ring in shared memory to the other. What a verb must do and this does:
 *
 *   post       check the request, its key and the room in the queue; keep it until it is acknowledged; write a record
 *   poll       take records: check them as those of a stranger, the PSN, the receive and its key; place the bytes; write the
 *              completion; acknowledge each run of records; an acknowledgement completes what it covers
 *   all        one lock for each QP and CQ, as every object of a device is thread-safe
 *   one-sided  check the request, the local key and the room in the queue; name the access in an access slot; check that the
 *              peer's QP and key are what they were when its memory was mapped, and that the key allows it; load or add;
 *              check that the owner still waits for the slot, and free it; write the completion, which poll takes
 *
 * By the access slot the owner takes its memory back: it changes the generation of the key, and waits until the slot
 * is free or another access's (take_back(), which is tested at the end). One QP has the slot: so taking it is one
 * locked instruction, and freeing it a store.
 *
 * It has no other operation, QP type, state, mechanism, event, explanation or peer that sleeps. Pages are populated.
 * Prints the one-way time of an exchange as ib_send_lat makes it, messages/s of lists of 16, and the time of a READ
 * and of a fetch-and-add from post to polled completion, while the target is idle as in ib_read_lat; best of so many
 * turns.
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
    ACCESSES = 200000,
    TAKEN_BACK = 1000,
    MESSAGES = 1600000
};
enum {
    OP_SEND = 4,
    OP_READ = 12,
    OP_ACK = 17,
    OP_FETCH_ADD = 20,
    IS_SIGNALED = 2,
    IS_READABLE = 1, /* rights of a key */
    IS_WRITABLE = 2,
    IS_ATOMIC = 4,
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
    void *local;
    uint32_t length, key, opcode, flags;
    uint64_t address, add; /* one-sided: at the peer */
    uint32_t rkey;
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
    uint32_t key, rights;
    uintptr_t start;
    size_t length;
};

/* What the target of one-sided operations shows its peers. A generation is odd while what it belongs to is changed, and
 * another one afterwards. */
struct target {
    struct {
        _Atomic uint32_t generation;
        struct region region;
    } keys[KEYS] __attribute__((aligned(64)));
    /* Of the QP's state and rights. */
    _Atomic uint32_t qp_generation __attribute__((aligned(64)));
    /* The access slot: 0, or the key and the number of the access. An owner that waits no more changes it; this one
     * waits. */
    _Atomic uint64_t accessed __attribute__((aligned(64)));
    _Atomic uint64_t word __attribute__((aligned(64))); /* the memory */
};

/* The peer's key, copied and checked when its memory was mapped here. */
struct view {
    uint32_t generation, qp_generation;
    struct region region;
    char *base;
};

static struct end {
    atomic_flag lock __attribute__((aligned(64)));
    atomic_flag reading;
    uint32_t state, posted, completed, next_psn;
    uint32_t receives, received, expected_psn;
    uint64_t written, room_until, read, told;
    struct ring *out, *in;
    struct region regions[KEYS];
    struct target *target;
    struct view view;
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

static bool key_allows(uint32_t key, const void *at, uint32_t length, uint32_t rights)
{
    const struct region *region = &end.regions[(key >> 8) % KEYS];
    uintptr_t offset = (uintptr_t)at - region->start;

    return region->key == key && !(rights & ~region->rights) && offset <= region->length &&
           length <= region->length - offset;
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

static bool send_record(const struct request *request)
{
    if (request->length - 1 >= LONGEST || !key_allows(request->key, request->local, request->length, 0) ||
        !write_record(OP_SEND, end.next_psn, request->local, request->length))
        return false;
    end.request[end.posted++ % DEPTH] = *request;
    end.next_psn = (end.next_psn + 1) & 0xffffff;
    return true;
}

static bool execute(const struct request *request);

/* False: a request is not posted. */
static bool __attribute__((noinline)) post_send(const struct request *requests, unsigned count)
{
    bool posted = true;

    acquire(&end.lock);
    for (unsigned i = 0; i < count && posted; i++) {
        const struct request *request = &requests[i];

        posted = end.state == 3 && !(request->flags & ~(unsigned)IS_SIGNALED) &&
                 end.posted - end.completed < DEPTH &&
                 (request->opcode == OP_SEND ? send_record(request) : execute(request));
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
        !key_allows(receive->key, receive->to, length, IS_WRITABLE))
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

/* --- one-sided ------------------------------------------------------------------------------------------ */

/* Where this process has the peer's memory; NULL: it is taken back, or the key does not allow the access. Access slot
 * held. */
static char *find(const struct request *request, uint32_t rights)
{
    const struct view *view = &end.view;
    uint32_t slot = (request->rkey >> 8) % KEYS;
    uint64_t offset = request->address - view->region.start;

    if (atomic_load(&end.target->qp_generation) != view->qp_generation ||
        atomic_load(&end.target->keys[slot].generation) != view->generation ||
        view->region.key != request->rkey || (rights & ~view->region.rights) ||
        offset > view->region.length || request->length > view->region.length - offset)
        return NULL;
    return view->base + offset;
}

/* Sequentially consistent, as the loads of the generations are: either these see the owner's change, or take_back()
 * sees the slot. */
static uint64_t take_access_slot(uint32_t rkey)
{
    uint64_t accessed = (uint64_t)rkey << 32 | end.posted;

    atomic_store(&end.target->accessed, accessed);
    return accessed;
}

/* QP lock held. False: it is not executed. */
static bool execute(const struct request *request)
{
    const struct completion done = {
        .wr_id = request->wr_id,
        .opcode = request->opcode == OP_READ ? 2 : 4,
        .length = sizeof(uint64_t),
        .qpn = QPN,
    };
    uint64_t accessed, value = 0;
    bool is_current;
    char *there;

    if ((request->opcode != OP_READ && request->opcode != OP_FETCH_ADD) || request->length != sizeof(value) ||
        !key_allows(request->key, request->local, sizeof(value), IS_WRITABLE) ||
        (request->opcode == OP_FETCH_ADD && request->address % sizeof(value)) || end.posted != end.completed)
        return false;
    accessed = take_access_slot(request->rkey);
    there = find(request, request->opcode == OP_READ ? IS_READABLE : IS_ATOMIC);
    if (there && request->opcode == OP_READ)
        memcpy(&value, there, sizeof(value));
    else if (there)
        value = __atomic_fetch_add((uint64_t *)(void *)there, request->add, __ATOMIC_SEQ_CST);
    atomic_thread_fence(memory_order_acquire);
    is_current = atomic_load_explicit(&end.target->accessed, memory_order_relaxed) == accessed;
    atomic_store_explicit(&end.target->accessed, 0, memory_order_release);
    if (!there || !is_current)
        return false;
    memcpy(request->local, &value, sizeof(value));
    end.posted++;
    end.completed++;
    if (request->flags & IS_SIGNALED)
        push(&end.send_cq, &done, 1);
    return true;
}

/* The owner takes the memory back: afterwards nobody accesses it. */
static void take_back(void)
{
    uint64_t first, seen;

    atomic_fetch_add(&end.target->keys[(KEY >> 8) % KEYS].generation, 1);
    first = seen = atomic_load(&end.target->accessed);
    while (seen && seen == first)
        seen = atomic_load_explicit(&end.target->accessed, memory_order_acquire);
}

static void show_and_map(struct target *target)
{
    uint32_t slot = (KEY >> 8) % KEYS;

    target->keys[slot].region =
        (struct region){KEY, IS_READABLE | IS_ATOMIC, (uintptr_t)&target->word, sizeof(target->word)};
    end.target = target;
    end.view = (struct view){atomic_load(&target->keys[slot].generation), atomic_load(&target->qp_generation),
                             target->keys[slot].region, (char *)&target->word};
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
        .wr_id = 2, .local = buffers[0], .length = 8, .key = KEY, .opcode = OP_SEND, .flags = IS_SIGNALED};

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
    return (double)(now_ns() - began) / (double)EXCHANGES / 2;
}

static double send_lists(void)
{
    struct request list[LIST];
    struct completion done[LIST];
    uint64_t began = now_ns();
    unsigned sent = 0, completed = 0;

    for (unsigned i = 0; i < LIST; i++)
        list[i] = (struct request){.wr_id = i,
                                   .local = buffers[0],
                                   .length = 8,
                                   .key = KEY,
                                   .opcode = OP_SEND,
                                   .flags = IS_SIGNALED};
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

/* Sum of what was added, and the value that READs find. */
static uint64_t added;

static bool access_one(uint32_t opcode)
{
    const struct request request = {
        .wr_id = 3,
        .local = buffers[1],
        .length = sizeof(added),
        .key = KEY,
        .opcode = opcode,
        .flags = IS_SIGNALED,
        .address = end.view.region.start,
        .add = 1,
        .rkey = KEY,
    };

    if (!post_send(&request, 1))
        return false;
    await(&end.send_cq);
    added += opcode == OP_FETCH_ADD;
    return true;
}

/* The target is idle. */
static double access_peer(uint32_t opcode)
{
    uint64_t value, began = now_ns();
    double took;

    for (unsigned i = 0; i < ACCESSES; i++)
        if (!access_one(opcode))
            exit(1);
    took = (double)(now_ns() - began) / (double)ACCESSES;
    memcpy(&value, buffers[1], sizeof(value));
    if (value != added - (opcode == OP_FETCH_ADD))
        exit(1);
    return took;
}

static void meet(int fd)
{
    char byte = 0;

    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
        exit(1);
}

/* The target takes its memory back while the requester adds, and gives it again, so many times. False: more was added
 * after the memory was taken back. */
static bool test_taking_back(bool is_requester, int fd)
{
    _Atomic uint32_t *generation = &end.target->keys[(KEY >> 8) % KEYS].generation;
    uint64_t seen;
    bool good = true;

    meet(fd);
    for (unsigned i = 0; i < TAKEN_BACK; i++) {
        if (is_requester) {
            while (access_one(OP_FETCH_ADD))
                ;
            while ((end.view.generation = atomic_load(generation)) & 1)
                ;
            continue;
        }
        seen = atomic_load(&end.target->word);
        while (atomic_load(&end.target->word) - seen < 10)
            ;
        take_back();
        seen = atomic_load(&end.target->word);
        for (unsigned looks = 0; looks < 100; looks++)
            good &= atomic_load(&end.target->word) == seen;
        atomic_fetch_add(generation, 1);
    }
    meet(fd);
    return good && (!is_requester || added == atomic_load(&end.target->word));
}

static void note_least(double *least, double now)
{
    *least = *least == 0 || now < *least ? now : *least;
}

int main(int argc, char **argv)
{
    struct shared {
        struct ring rings[2];
        struct target target;
    } *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double one_way = 0, rate = 0, read = 0, add = 0;
    pid_t child;
    int fd, status;

    if (argc < 3 || shared == MAP_FAILED) {
        fprintf(stderr, "usage: %s CPU CPU\n", argv[0]);
        return 2;
    }
    memset(shared, 0, sizeof(*shared));
    child = fork_peer(&fd);
    pin(atoi(argv[child ? 1 : 2]));
    end.out = &shared->rings[child ? 0 : 1];
    end.in = &shared->rings[child ? 1 : 0];
    end.state = 3;
    end.room_until = SLOTS;
    end.regions[(KEY >> 8) % KEYS] = (struct region){KEY, IS_WRITABLE, (uintptr_t)buffers, sizeof(buffers)};
    show_and_map(&shared->target);
    for (unsigned i = 0; i < DEPTH; i++)
        give_receive();
    for (unsigned i = 0; i < TURNS; i++) {
        meet(fd);
        note_least(&one_way, exchange(child != 0));
        meet(fd);
        if (child) {
            double now = send_lists();

            rate = now > rate ? now : rate;
            meet(fd);
            note_least(&read, access_peer(OP_READ));
            note_least(&add, access_peer(OP_FETCH_ADD));
        } else {
            receive_lists();
            meet(fd);
        }
        meet(fd);
    }
    if (!test_taking_back(child != 0, fd)) {
        fprintf(stderr, "memory was accessed after it was taken back\n");
        return 1;
    }
    if (!child)
        return 0;
    printf("size 8 one_way_us %.4f lists_rate %.0f read_us %.4f faa_us %.4f\n", one_way / 1e3, rate * 1e6,
           read / 1e3, add / 1e3);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
