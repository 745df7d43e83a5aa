/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Hot, cold and blocked lanes; polling.
 *
 * local_poll() walks hot[] without a lock. A writer of hot[] stores a slot before the count that covers it, and
 * replaces a removed lane by the last one; so a walker at worst misses one lane once or visits one twice. Before a
 * lane leaves hot[], its reader asks the writer to ring (reader_sleeps) and checks that the ring is empty. A lane
 * whose writer reads our attention word (base/notify.h) stays in hot[] while this process sleeps; so any thread that
 * is woken finds the record. Beyond HOT_ASLEEP of them lanes leave hot[], and their writers mark them in our
 * notification page: who is woken takes the marks first, and does not look at hundreds of empty rings.
 *
 * A lane whose ring to the peer is full is on the list of blocked lanes until a polling thread finds
 * space. From a local_prepare_sleep() that succeeds until the next local_dispatch() (`asleep`), the peer
 * is asked to ring when it frees space (writer_waits).
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "local/link.h"
#include "local/notify.h"
#include "local/start.h"

#define HOT_MAX           (LINKS_MAX * LOCAL_LANES)
#define HOT_ASLEEP        8u
#define SWEEP_EVERY       1024 /* calls of local_poll() by one thread */
#define SWEEPS_UNTIL_COLD 16
#define WRITABLE_BATCH    16
#define FETCH_BUDGET                                                                                         \
    (1u << 18) /* bytes by reference per batch of a lane: bounds the time under receive_lock */

static _Atomic(struct lane *) *hot; /* HOT_MAX slots of reserved address space */
static _Atomic unsigned hot_count;  /* written under hot_lock */
static struct lock hot_lock = LOCK_INIT;

static struct list blocked_lanes = {&blocked_lanes, &blocked_lanes}; /* blocked_lock */
static _Atomic unsigned blocked_count;                               /* written under blocked_lock */
static struct lock blocked_lock = LOCK_INIT;
/* A thread is prepared to sleep, and the helper thread has not called local_dispatch() since. Fences:
 * local_prepare_sleep(), lane_block(). */
static _Atomic bool asleep;
_Atomic bool local_rings_due;
static _Atomic uint32_t checks = 1; /* number of calls of local_ring_overdue(); never 0 */

static __thread unsigned polls __attribute__((tls_model("initial-exec")));

/* lane.next of a broken ring points here. */
static const _Atomic uint64_t nothing_comes;

int progress_start(void)
{
    int error = 0;

    if (!hot)
        hot = sys_mmap(NULL, HOT_MAX * sizeof(*hot), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &error);
    return error;
}

void progress_after_fork_in_child(void)
{
    atomic_store_explicit(&hot_count, 0, memory_order_relaxed);
    atomic_store_explicit(&blocked_count, 0, memory_order_relaxed);
    atomic_store_explicit(&asleep, false, memory_order_relaxed);
    atomic_store_explicit(&local_rings_due, false, memory_order_relaxed);
    lock_init(&hot_lock);
    lock_init(&blocked_lock);
    list_init(&blocked_lanes);
}

/* --- reading -------------------------------------------------------------------------------------------- */

/* A hint. Without receive_lock `next` may be a lap behind and the word there part of a payload; ring_read() reads the
 * word again with acquire. The race is intended: a volatile access, because no_sanitize does not apply to atomic
 * ones. */
__attribute__((no_sanitize("thread"))) static inline bool looks_empty(struct lane *lane)
{
    return *(const volatile uint64_t *)atomic_load_explicit(&lane->next, memory_order_relaxed) == 0;
}

/* Publishes how far the reader is, and rings a writer that waits for space. Under receive_lock. */
static inline void publish_and_ring(struct lane *lane, bool all)
{
    if (ring_publish(&lane->reader, all) && ring_take_writer_waits(lane->reader.control))
        link_ring(lane->link, LINK_RINGS);
}

/* What was read is room for the writer again. Under receive_lock. */
static inline void release(struct lane *lane, uint32_t granules)
{
    if (unlikely(ring_release(&lane->reader, granules)) && ring_take_writer_waits(lane->reader.control))
        link_ring(lane->link, LINK_RINGS);
}

/* Lets the engine take small packets, as many as it likes. Under receive_lock. */
static unsigned take_small(struct lane *lane, unsigned budget, bool *ret_ends)
{
    unsigned taken = budget && local.ops->small ? local.ops->small(lane, budget, ret_ends) : 0;

    if (taken)
        release(lane, 0);
    return taken;
}

static bool has_next(const struct lane *lane)
{
    return atomic_load_explicit(ring_next_word(&lane->reader), memory_order_relaxed) != 0;
}

/* Delivers at most `budget` records from one that is not small on, and FETCH_BUDGET bytes by reference. Under
 * receive_lock. *ret_found: as ring_read(). */
static __attribute__((noinline)) unsigned take_others(struct lane *lane, unsigned budget, bool *ret_ends,
                                                      int *ret_found)
{
    struct packet_reference references[PACKET_REFERENCES];
    struct packet packet;
    uint32_t granules;
    size_t fetched = 0;
    unsigned taken = 0;

    memset(&packet.grh, 0, sizeof(packet.grh));
    do {
        *ret_found = ring_read(&lane->reader, &packet, references, &granules);
        if (*ret_found <= 0)
            break;
        local.ops->packet(lane, &packet);
        fetched += packet.reference_count ? packet.payload_length : 0;
        taken++;
        release(lane, granules);
        if (fetched >= FETCH_BUDGET)
            break;
        taken += take_small(lane, budget - taken, ret_ends);
    } while (taken < budget && !*ret_ends && has_next(lane));
    return taken;
}

/* Delivers at most `budget` records. Nearly all are small, and nothing is made ready for the others before one comes.
 * Under receive_lock. */
static unsigned take_records(struct lane *lane, unsigned budget)
{
    bool ends = false;
    unsigned taken = take_small(lane, budget, &ends);
    int found = 0;

    if (unlikely(taken != budget && !ends && has_next(lane)))
        taken += take_others(lane, budget - taken, &ends, &found);
    if (unlikely(found < 0)) {
        atomic_store_explicit(&lane->next, &nothing_comes, memory_order_relaxed);
        link_declare_broken(lane->link, "an invalid record");
        return taken;
    }
    atomic_store_explicit(&lane->next, ring_next_word(&lane->reader), memory_order_relaxed);
    if (ends || looks_empty(lane))
        publish_and_ring(lane, false);
    return taken;
}

static bool is_broken(const struct lane *lane)
{
    return atomic_load_explicit(&lane->next, memory_order_relaxed) == &nothing_comes;
}

/* take_records(), then ops->batch_end(). Under receive_lock. */
static unsigned take_batch(struct lane *lane, unsigned budget)
{
    unsigned taken = is_broken(lane) ? 0 : take_records(lane, budget);

    if (taken)
        local.ops->batch_end(lane);
    return taken;
}

void lane_drain(struct lane *lane)
{
    lock_acquire(&lane->receive_lock);
    for (unsigned left = RING_SIZE / GRANULE, taken = left; left && taken; left -= taken)
        taken = take_batch(lane, left);
    lock_release(&lane->receive_lock);
}

/* --- hot lanes ------------------------------------------------------------------------------------------ */

static int hot_index(const struct lane *lane)
{
    return atomic_load_explicit(&lane->hot_index, memory_order_relaxed);
}

static void set_hot_index(struct lane *lane, int index)
{
    atomic_store_explicit(&lane->hot_index, index, memory_order_relaxed);
}

static uint32_t reader_sleeps(const struct lane *lane)
{
    return atomic_load_explicit(&lane->reader.control->reader_sleeps, memory_order_relaxed);
}

static void set_reader_sleeps(struct lane *lane, enum reader_sleeps sleeps)
{
    atomic_store_explicit(&lane->reader.control->reader_sleeps, sleeps, memory_order_relaxed);
}

/* Makes a cold lane hot if its doorbell was rung. Checks reader_sleeps again under hot_lock: between the caller's
 * check and the lock, the lane may have become hot and cold again, and then the writer will ring anew. */
static bool heat(struct lane *lane)
{
    bool became_hot = false;

    lock_acquire(&hot_lock);
    if (hot_index(lane) < 0 && link_is_up(lane->link) && reader_sleeps(lane) == READER_POLLS) {
        unsigned count = atomic_load_explicit(&hot_count, memory_order_relaxed);

        set_hot_index(lane, (int)count);
        lane->idle_sweeps = 0;
        if (notify_reads_attention(lane))
            set_reader_sleeps(lane, READER_ATTENTION);
        atomic_store_explicit(&hot[count], lane, memory_order_release);
        atomic_store_explicit(&hot_count, count + 1, memory_order_release);
        became_hot = true;
    }
    lock_release(&hot_lock);
    return became_hot;
}

/* Rings a delayed doorbell of the lane, because ring_waiting() visits only hot lanes. Under hot_lock. */
static void remove_hot(struct lane *lane)
{
    unsigned last = atomic_load_explicit(&hot_count, memory_order_relaxed) - 1;
    struct lane *moved = atomic_load_explicit(&hot[last], memory_order_relaxed);

    set_hot_index(moved, hot_index(lane));
    atomic_store_explicit(&hot[hot_index(lane)], moved, memory_order_release);
    set_hot_index(lane, -1);
    atomic_store_explicit(&hot_count, last, memory_order_release);
    if (atomic_load_explicit(&lane->ring_due, memory_order_relaxed) && link_is_up(lane->link))
        lane_ring(lane);
}

/* Asks the writer to ring, or to mark the lane. False, without effect: the lane may have a record, or another thread is
 * reading it. Under hot_lock. */
static bool cool(struct lane *lane)
{
    enum reader_sleeps before;
    bool empty;

    if (!lock_try(&lane->receive_lock))
        return false;
    publish_and_ring(lane, true);
    before = reader_sleeps(lane) == READER_ATTENTION ? READER_ATTENTION : READER_POLLS;
    if (notify_reads_attention(lane)) {
        atomic_store_explicit(&lane->reader.control->listed_as, lane->link->index, memory_order_relaxed);
        /* Release: the writer that sees it knows the bit. Partner: notify_wake(). */
        atomic_store_explicit(&lane->reader.control->reader_sleeps, READER_LISTED, memory_order_release);
        atomic_thread_fence(memory_order_seq_cst); /* partner: lane_ring() */
    } else {
        ring_arm_reader(lane->reader.control);
    }
    empty = looks_empty(lane);
    if (!empty)
        set_reader_sleeps(lane, before);
    lock_release(&lane->receive_lock);
    return empty;
}

/* As cool(), for a lane that stays in hot[], because its writer reads our attention word, which was set before. */
static bool is_quiet(struct lane *lane)
{
    bool empty;

    if (!looks_empty(lane) || !lock_try(&lane->receive_lock))
        return false;
    publish_and_ring(lane, true);
    if (reader_sleeps(lane) != READER_ATTENTION) {
        set_reader_sleeps(lane, READER_ATTENTION);
        atomic_thread_fence(memory_order_seq_cst); /* partner: lane_ring() */
    }
    empty = looks_empty(lane);
    lock_release(&lane->receive_lock);
    return empty;
}

/* Makes lanes cold that had no record for SWEEPS_UNTIL_COLD sweeps, while others are hot: polling them costs more
 * than their doorbell. */
static void cold_path sweep(void)
{
    if (atomic_load_explicit(&hot_count, memory_order_relaxed) < 2 || !lock_try(&hot_lock))
        return;
    for (unsigned i = atomic_load_explicit(&hot_count, memory_order_relaxed); i-- > 0;) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_relaxed);
        const _Atomic uint64_t *next = atomic_load_explicit(&lane->next, memory_order_relaxed);

        if (lane->swept_next != next) {
            lane->swept_next = next;
            lane->idle_sweeps = 0;
        } else if (++lane->idle_sweeps >= SWEEPS_UNTIL_COLD &&
                   atomic_load_explicit(&hot_count, memory_order_relaxed) > 1 && cool(lane)) {
            remove_hot(lane);
        }
    }
    lock_release(&hot_lock);
}

/* The writer that rings has reset reader_sleeps. Only the control line is read: a read of an unused ring's data would
 * allocate its page. */
bool progress_rung(struct link *link, bool speculative)
{
    bool became_hot = false;

    for (unsigned i = 0; i < LOCAL_LANES; i++) {
        struct lane *lane = &link->lanes[i];

        if (atomic_load_explicit(&lane->reader.control->reader_sleeps, memory_order_acquire) != READER_POLLS)
            continue;
        /* The doorbell comes once, and sweep() may be making the lane cold at the same time; heat() waits for
         * hot_lock. */
        if (!speculative || hot_index(lane) < 0)
            became_hot |= heat(lane);
    }
    return became_hot;
}

void progress_forget(struct link *link)
{
    for (unsigned i = 0; i < LOCAL_LANES; i++) {
        struct lane *lane = &link->lanes[i];

        lock_acquire(&hot_lock);
        if (hot_index(lane) >= 0)
            remove_hot(lane);
        lock_release(&hot_lock);
        lock_acquire(&blocked_lock);
        if (atomic_load_explicit(&lane->blocked, memory_order_relaxed)) {
            atomic_store_explicit(&lane->blocked, false, memory_order_relaxed);
            list_remove(&lane->blocked_node);
            atomic_fetch_sub_explicit(&blocked_count, 1, memory_order_relaxed);
        }
        lock_release(&blocked_lock);
    }
}

/* --- delayed doorbells ---------------------------------------------------------------------------------- */

/* Of a lane that was overdue n times in a row, the next 2^n doorbells are not delayed. One overdue doorbell may mean
 * that the program had no processor; after some more, the program evidently does not answer. */
#define OVERDUE_MAX 6u

void lane_ring_later(struct lane *lane)
{
    if (lane->ring_at_once) {
        lane->ring_at_once--;
        lane_ring(lane);
        return;
    }
    atomic_store_explicit(&lane->ring_due, atomic_load_explicit(&checks, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&local_rings_due, true, memory_order_release);
}

/* Rings the doorbells that were delayed at least `least_checks` checks ago. They are on hot lanes, because a delay
 * follows a received packet. True: others remain. */
static bool ring_waiting(uint32_t least_checks)
{
    uint32_t now = atomic_load_explicit(&checks, memory_order_relaxed);
    bool left = false;
    unsigned count;

    rundown_enter();
    count = atomic_load_explicit(&hot_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_acquire);
        unsigned late;
        uint32_t since = atomic_load_explicit(&lane->ring_due, memory_order_relaxed);

        if (!since)
            continue;
        if (now - since < least_checks) {
            left = true;
            continue;
        }
        late = atomic_load_explicit(&lane->rung_late, memory_order_relaxed) + 1;
        lane_ring(lane);
        if (!least_checks || !lock_try(&lane->receive_lock))
            continue;
        lane->ring_at_once = (uint8_t)(1u << late);
        atomic_store_explicit(&lane->rung_late, (uint8_t)min_of(late, OVERDUE_MAX), memory_order_relaxed);
        lock_release(&lane->receive_lock);
    }
    rundown_exit();
    return left;
}

void local_ring_all_due(void)
{
    if (atomic_exchange_explicit(&local_rings_due, false, memory_order_acquire))
        ring_waiting(0);
}

void local_ring_overdue(void)
{
    uint32_t now = atomic_load_explicit(&checks, memory_order_relaxed) + 1;

    atomic_store_explicit(&checks, now ? now : 1, memory_order_relaxed);
    if (atomic_exchange_explicit(&local_rings_due, false, memory_order_acquire) && ring_waiting(2))
        atomic_store_explicit(&local_rings_due, true, memory_order_relaxed);
}

/* --- blocked lanes -------------------------------------------------------------------------------------- */

bool lane_block(struct lane *lane)
{
    bool up;

    lock_acquire(&blocked_lock);
    up = link_is_up(lane->link); /* progress_forget() follows DOWN and takes this lock */
    if (up && !atomic_load_explicit(&lane->blocked, memory_order_relaxed)) {
        list_push_back(&blocked_lanes, &lane->blocked_node);
        atomic_store_explicit(&lane->blocked, true, memory_order_relaxed);
        atomic_fetch_add_explicit(&blocked_count, 1, memory_order_relaxed);
    }
    lock_release(&blocked_lock);
    /* Partner: the fence in local_prepare_sleep(). Either that sees blocked_count, or we see `asleep`. */
    atomic_thread_fence(memory_order_seq_cst);
    if (up && atomic_load_explicit(&asleep, memory_order_relaxed) && !lane->link->is_self)
        ring_arm_writer(lane->writer.control);
    return up;
}

/* Takes lanes with space off the list of blocked lanes and returns their number. *ret_uncertain: a lock was taken, so
 * another lane may have space, too. */
static unsigned find_writable(struct lane *lanes[WRITABLE_BATCH], bool *ret_uncertain)
{
    unsigned found = 0;

    *ret_uncertain = false;
    if (!lock_try(&blocked_lock)) {
        *ret_uncertain = true;
        return 0;
    }
    list_for_each_safe (node, following, &blocked_lanes) {
        struct lane *lane = list_entry(node, struct lane, blocked_node);
        int space;

        if (found == WRITABLE_BATCH)
            break;
        if (!lock_try(&lane->transmit_lock)) { /* against the lock order, see local/link.h */
            *ret_uncertain = true;
            continue;
        }
        space = ring_has_space(&lane->writer);
        lock_release(&lane->transmit_lock);
        if (space < 0)
            link_declare_broken(lane->link, "an invalid read position");
        if (space <= 0)
            continue;
        list_remove(&lane->blocked_node);
        atomic_fetch_sub_explicit(&blocked_count, 1, memory_order_relaxed);
        atomic_store_explicit(&lane->blocked, false, memory_order_release);
        lanes[found++] = lane;
    }
    lock_release(&blocked_lock);
    return found;
}

static unsigned cold_path notify_writable(bool *ret_uncertain)
{
    struct lane *lanes[WRITABLE_BATCH];
    unsigned found = find_writable(lanes, ret_uncertain);

    for (unsigned i = 0; i < found; i++)
        local.ops->lane_writable(lanes[i]);
    return found;
}

/* --- local_poll ----------------------------------------------------------------------------------------- */

static void heat_marked(unsigned index)
{
    struct link *link = link_at(index);

    if (link)
        (void)progress_rung(link, false);
}

bool local_has_packets(void)
{
    const unsigned count = atomic_load_explicit(&hot_count, memory_order_acquire);

    if (notify_has_marks())
        return true;
    for (unsigned i = 0; i < count; i++) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_acquire);

        if (!looks_empty(lane))
            return true;
    }
    return false;
}

bool local_poll_is_idle(void)
{
    if (local_has_packets() || unlikely(atomic_load_explicit(&blocked_count, memory_order_relaxed) != 0) ||
        unlikely((polls + 1) % SWEEP_EVERY == 0))
        return false;
    polls++;
    return true;
}

unsigned local_poll(unsigned budget)
{
    unsigned taken = 0, count;

    if (notify_has_marks())
        notify_take_marks(heat_marked);
    count = atomic_load_explicit(&hot_count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_acquire);

        if (looks_empty(lane) || !lock_try(&lane->receive_lock))
            continue;
        taken += take_batch(lane, budget);
        lock_release(&lane->receive_lock);
    }
    if (unlikely(atomic_load_explicit(&blocked_count, memory_order_relaxed) != 0)) {
        bool uncertain;

        notify_writable(&uncertain);
    }
    if (unlikely(++polls % SWEEP_EVERY == 0))
        sweep();
    return taken;
}

bool progress_awake(void)
{
    atomic_store_explicit(&asleep, false, memory_order_relaxed);
    return atomic_load_explicit(&blocked_count, memory_order_relaxed) != 0;
}

/* Asks the peers of blocked lanes to ring when they free space. */
static void arm_blocked(void)
{
    lock_acquire(&blocked_lock);
    list_for_each (node, &blocked_lanes) {
        struct lane *lane = list_entry(node, struct lane, blocked_node);

        if (!lane->link->is_self)
            ring_arm_writer(lane->writer.control);
    }
    lock_release(&blocked_lock);
}

/* Makes the lanes cold whose writers do not read our attention word. True: every hot lane is empty, and its writer
 * will ring; false: a lane has a record, and all stay hot. */
static bool cool_all(enum attention attention)
{
    bool all;

    lock_acquire(&hot_lock);
    notify_set_attention(attention);
    all = !notify_has_marks();
    for (unsigned i = atomic_load_explicit(&hot_count, memory_order_relaxed); i-- > 0 && all;) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_relaxed);

        if (i >= HOT_ASLEEP && notify_reads_attention(lane) &&
            !atomic_load_explicit(&lane->ring_due, memory_order_relaxed)) {
            all = cool(lane);
            if (all)
                remove_hot(lane);
        } else {
            all = notify_reads_attention(lane) ? is_quiet(lane) : cool(lane);
        }
    }
    for (unsigned i = atomic_load_explicit(&hot_count, memory_order_relaxed); i-- > 0;) {
        struct lane *lane = atomic_load_explicit(&hot[i], memory_order_relaxed);

        if (reader_sleeps(lane) == READER_ATTENTION)
            continue;
        if (all)
            remove_hot(lane);
        else /* the lane stays hot; a doorbell that is on its way does no harm */
            set_reader_sleeps(lane, READER_POLLS);
    }
    /* The helper thread goes on polling, so writers need not ring. With ATTENTION_DOZES another thread may sleep
     * already, which relies on doorbells. */
    if (!all && attention == ATTENTION_ASLEEP)
        notify_set_attention(ATTENTION_AWAKE);
    lock_release(&hot_lock);
    return all;
}

bool local_prepare_sleep(enum attention attention)
{
    bool ready = true;

    rundown_enter();
    atomic_store_explicit(&asleep, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* partner: lane_block() */
    if (atomic_load_explicit(&blocked_count, memory_order_relaxed) != 0) {
        bool uncertain;

        arm_blocked();
        ready = notify_writable(&uncertain) == 0 && !uncertain;
    }
    ready = ready && cool_all(attention);
    if (!ready)
        atomic_store_explicit(&asleep, false, memory_order_relaxed);
    rundown_exit();
    return ready;
}
