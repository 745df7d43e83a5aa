/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which thread a message wakes: the thread that waits for its completion, if the writer can tell by the peer's
 * notification page; else the helper thread. Formats: base/notify.h, local/notify.h. */
#include "local/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/sys.h"
#include "local/layout.h"
#include "local/start.h"
#include "wire/opcode.h"

/* So many channels of peers are kept, and more as long as a quarter of the descriptors that this process may have is
 * free, which the number of a new one says. For further channels the helper thread of the peer is rung. */
#define PEER_CHANNELS_MIN 64u

_Static_assert(LINKS_MAX <= NOTIFY_LINKS, "a bit for each link");

struct notify_peer {
    struct notify_page *page;
    struct {
        struct event_source source;
        _Atomic uint32_t serial; /* 0: none */
    } channels[NOTIFY_CHANNELS];
};

/* For changes of own, own_fd, last_serial and their contents. Senders on the link to ourselves read
 * own->channels[] without it, checked by `serial`. */
static struct lock start_lock = LOCK_INIT;
_Atomic(struct notify_page *) notify_own_page;
static struct notify_peer *own; /* own page and channels; link.peer of the link to ourselves */
static int own_fd = -1;
static uint32_t last_serial;
static _Atomic unsigned peer_channels;
static _Atomic bool helper_sleeps;

static struct notify_page *page_of_ours(void)
{
    return atomic_load_explicit(&notify_own_page, memory_order_acquire);
}

/* --- our page ------------------------------------------------------------------------------------------- */

/* start_lock held. */
static int make_page(void)
{
    int error = 0, fd;
    struct notify_page *page;

    if (!own)
        own = calloc(1, sizeof(*own));
    if (!own)
        return -ENOMEM;
    fd = fd_own(memory_file_make("softhca-notify", sizeof(*page)));
    if (fd < 0)
        return fd;
    page = sys_mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &error);
    if (page && sys_madvise(page, sizeof(*page), MADV_DONTFORK) != 0) {
        sys_munmap(page, sizeof(*page));
        page = NULL;
        error = -ENOMEM;
    }
    if (!page) {
        fd_close(fd);
        return error;
    }
    own_fd = fd;
    own->page = page;
    atomic_store_explicit(&notify_own_page, page, memory_order_release);
    return 0;
}

struct notify_channel *local_open_channel(int fd, unsigned *ret_number)
{
    struct notify_channel *line = NULL;

    lock_acquire(&start_lock);
    if (page_of_ours() || make_page() == 0) {
        for (unsigned i = 0; i < NOTIFY_CHANNELS && !line; i++) {
            if (atomic_load_explicit(&own->channels[i].serial, memory_order_relaxed))
                continue;
            line = &own->page->channels[i];
            *ret_number = i;
            own->channels[i].source.fd = fd;
            event_note(&own->channels[i].source);
            last_serial = last_serial == UINT32_MAX ? 1 : last_serial + 1;
            atomic_store_explicit(&line->armed, 0, memory_order_relaxed);
            atomic_store_explicit(&line->armed_solicited, 0, memory_order_relaxed);
            atomic_store_explicit(&line->rung, 0, memory_order_relaxed);
            atomic_store_explicit(&own->channels[i].serial, last_serial, memory_order_relaxed);
            atomic_store_explicit(&line->serial, last_serial, memory_order_release);
        }
    }
    lock_release(&start_lock);
    return line;
}

static void forget_offer(struct link *link, void *argument)
{
    atomic_fetch_and_explicit(&link->offered, ~(1ull << *(unsigned *)argument), memory_order_relaxed);
}

void local_close_channel(unsigned number)
{
    lock_acquire(&start_lock);
    /* Peers compare the serial before they write to the eventfd, so they do not ring a later channel in
     * this line. */
    atomic_store_explicit(&own->page->channels[number].serial, 0, memory_order_relaxed);
    atomic_store_explicit(&own->channels[number].serial, 0, memory_order_relaxed);
    own->channels[number].source.fd = -1;
    local_for_each_link(forget_offer, &number);
    lock_release(&start_lock);
}

void local_show_qp(uint32_t qpn, struct notify_cq receives, struct notify_cq sends)
{
    struct notify_page *page = page_of_ours();

    if (page)
        atomic_store_explicit(notify_slot(page, qpn), notify_place(qpn, receives, sends),
                              memory_order_relaxed);
}

void local_hide_qp(uint32_t qpn)
{
    struct notify_page *page = page_of_ours();
    uint64_t place;

    if (!page)
        return;
    place = atomic_load_explicit(notify_slot(page, qpn), memory_order_relaxed);
    if ((place & 0xffffff) == qpn)
        atomic_compare_exchange_strong_explicit(notify_slot(page, qpn), &place, 0, memory_order_relaxed,
                                                memory_order_relaxed);
}

bool notify_send(const struct link *link, const struct link_offer *offer, int fd)
{
    struct iovec part = {(void *)(uintptr_t)offer, sizeof(*offer)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    return event_is_intact(&link->socket) && sys_sendmsg(link->socket.fd, &message) == sizeof(*offer);
}

static bool send_offer(const struct link *link, enum link_message type, unsigned channel, uint32_t serial,
                       int fd)
{
    return notify_send(
        link, &(struct link_offer){.type = (uint8_t)type, .channel = (uint8_t)channel, .serial = serial}, fd);
}

/* Only processes of the same user get the descriptors, because their holder can wake this process at will. */
void local_offer_channel(struct link *link, unsigned number)
{
    uint64_t bit = 1ull << number, page_bit = 1ull << NOTIFY_CHANNELS;
    uint64_t offered = atomic_load_explicit(&link->offered, memory_order_relaxed);
    bool done;

    if (likely(offered & bit))
        return;
    if (link->is_self) {
        atomic_store_explicit(&link->peer, own, memory_order_release);
        for (unsigned i = 0; i < LOCAL_LANES; i++)
            atomic_store_explicit(&link->lanes[i].writer.control->writer_reads_attention, 1,
                                  memory_order_release);
        atomic_fetch_or_explicit(&link->offered, ~0ull, memory_order_relaxed);
        return;
    }
    if (link->peer_uid != geteuid() || !link_is_up(link))
        return;
    lock_acquire(&start_lock);
    offered = atomic_load_explicit(&link->offered, memory_order_relaxed);
    done = offered & page_bit || send_offer(link, LINK_OFFERS_PAGE, 0, 0, own_fd);
    if (done)
        offered |= page_bit;
    /* If the program closed the eventfd, its number may be another file, which must not be sent. */
    if (done && !(offered & bit) && event_is_intact(&own->channels[number].source) &&
        send_offer(link, LINK_OFFERS_CHANNEL, number,
                   atomic_load_explicit(&own->channels[number].serial, memory_order_relaxed),
                   own->channels[number].source.fd))
        offered |= bit;
    atomic_fetch_or_explicit(&link->offered, offered, memory_order_relaxed);
    lock_release(&start_lock);
}

/* --- our attention -------------------------------------------------------------------------------------- */

void notify_take_marks(void (*visit)(unsigned index))
{
    struct notify_page *page = page_of_ours();

    atomic_store_explicit(&page->marked, 0, memory_order_relaxed);
    /* A writer that sets a bit behind this look sets `marked` again. Partner: mark(). */
    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned i = 0; i < array_size(page->marks); i++) {
        uint64_t bits = atomic_load_explicit(&page->marks[i], memory_order_relaxed);

        if (likely(!bits))
            continue;
        bits = atomic_exchange_explicit(&page->marks[i], 0, memory_order_acquire);
        for (; bits; bits &= bits - 1)
            visit(i * 64 + (unsigned)__builtin_ctzll(bits));
    }
}

bool notify_reads_attention(const struct lane *lane)
{
    return atomic_load_explicit(&lane->reader.control->writer_reads_attention, memory_order_acquire) != 0 &&
           page_of_ours();
}

uint64_t local_attention_word(void)
{
    struct notify_page *page = page_of_ours();

    /* Partner: notify_set_attention(), which releases what its thread has armed. */
    return page ? atomic_load_explicit(&page->attention, memory_order_acquire) : 0;
}

enum attention local_attention(void)
{
    _Static_assert(ATTENTION_AWAKE == 0, "without a page");
    return (enum attention)(local_attention_word() & ATTENTION_MASK);
}

void notify_set_attention(enum attention wanted)
{
    struct notify_page *page = page_of_ours();
    uint64_t now;

    if (!page)
        return;
    now = atomic_load_explicit(&page->attention, memory_order_relaxed);
    for (;;) {
        enum attention to = wanted;

        if (to == ATTENTION_DOZES && atomic_load_explicit(&helper_sleeps, memory_order_relaxed))
            to = ATTENTION_ASLEEP;
        if (!atomic_compare_exchange_weak_explicit(&page->attention, &now,
                                                   ((now & ~ATTENTION_MASK) + ATTENTION_STEP) | (uint64_t)to,
                                                   memory_order_seq_cst, memory_order_relaxed))
            continue;
        /* Partner: the fence in local_helper_sleeps(). Either that sees DOZES, or we see helper_sleeps. */
        atomic_thread_fence(memory_order_seq_cst);
        if (to != ATTENTION_DOZES || !atomic_load_explicit(&helper_sleeps, memory_order_relaxed))
            return;
        now = atomic_load_explicit(&page->attention, memory_order_relaxed);
    }
}

void local_set_awake(uint64_t seen)
{
    struct notify_page *page = page_of_ours();

    if (page)
        atomic_compare_exchange_strong_explicit(&page->attention, &seen, seen & ~ATTENTION_MASK,
                                                memory_order_relaxed, memory_order_relaxed);
}

void local_renew_sleep(void)
{
    struct notify_page *page = page_of_ours();
    uint64_t now = local_attention_word();

    if (page && (now & ATTENTION_MASK) >= ATTENTION_DOZES)
        atomic_compare_exchange_strong_explicit(&page->attention, &now, now + ATTENTION_STEP,
                                                memory_order_relaxed, memory_order_relaxed);
}

void local_helper_sleeps(bool sleeps)
{
    struct notify_page *page = page_of_ours();
    uint64_t now;

    atomic_store_explicit(&helper_sleeps, sleeps, memory_order_relaxed);
    if (!page || !sleeps)
        return;
    atomic_thread_fence(memory_order_seq_cst); /* partner: notify_set_attention() */
    now = atomic_load_explicit(&page->attention, memory_order_relaxed);
    while ((now & ATTENTION_MASK) == ATTENTION_DOZES &&
           !atomic_compare_exchange_weak_explicit(&page->attention, &now, now | ATTENTION_ASLEEP,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

bool local_helper_is_asleep(void)
{
    return atomic_load_explicit(&helper_sleeps, memory_order_relaxed);
}

/* --- offers of peers ------------------------------------------------------------------------------------ */

static void accept_page(struct link *link, int fd)
{
    struct notify_peer *peer = atomic_load_explicit(&link->peer, memory_order_relaxed);

    if (peer || !shared_memory_is_sound(fd, sizeof(struct notify_page)))
        return;
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return;
    peer->page = sys_mmap(NULL, sizeof(*peer->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, NULL);
    if (peer->page && sys_madvise(peer->page, sizeof(*peer->page), MADV_DONTFORK) != 0) {
        sys_munmap(peer->page, sizeof(*peer->page));
        peer->page = NULL;
    }
    if (!peer->page) {
        free(peer);
        return;
    }
    for (unsigned i = 0; i < NOTIFY_CHANNELS; i++)
        peer->channels[i].source.fd = -1;
    atomic_store_explicit(&link->peer, peer, memory_order_release);
    for (unsigned i = 0; i < LOCAL_LANES; i++)
        atomic_store_explicit(&link->lanes[i].writer.control->writer_reads_attention, 1,
                              memory_order_release);
}

static bool accept_channel(struct link *link, const struct link_offer *offer, int fd)
{
    struct notify_peer *peer = atomic_load_explicit(&link->peer, memory_order_relaxed);
    struct event_source *source;

    if (!peer || offer->channel >= NOTIFY_CHANNELS || !offer->serial)
        return false;
    source = &peer->channels[offer->channel].source;
    if (source->fd < 0) {
        if (atomic_load_explicit(&peer_channels, memory_order_relaxed) >= PEER_CHANNELS_MIN &&
            (uint32_t)fd >= fd_limit() / 4 * 3)
            return false;
        atomic_fetch_add_explicit(&peer_channels, 1, memory_order_relaxed);
        source->fd = fd;
        event_note(source);
    } else {
        /* A new channel in the same line: dup3() replaces the file under the same number, which another thread may be
         * writing to. */
        int error = fd_lift(dup3(fd, source->fd, O_CLOEXEC));

        fd_close(fd);
        if (error < 0)
            return true;
        event_note(source);
    }
    atomic_store_explicit(&peer->channels[offer->channel].serial, offer->serial, memory_order_release);
    return true;
}

void notify_accept(struct link *link, const struct link_offer *offer, int fd)
{
    bool kept = false;

    if (fd < 0)
        return;
    if (link->peer_uid == geteuid() && offer->type == LINK_OFFERS_PAGE)
        accept_page(link, fd);
    else if (link->peer_uid == geteuid() && offer->type == LINK_OFFERS_CHANNEL)
        kept = accept_channel(link, offer, fd);
    if (!kept)
        fd_close(fd);
}

void notify_peer_free(struct notify_peer *peer)
{
    if (!peer || peer == own)
        return;
    for (unsigned i = 0; i < NOTIFY_CHANNELS; i++) {
        if (peer->channels[i].source.fd < 0)
            continue;
        event_close(&peer->channels[i].source);
        atomic_fetch_sub_explicit(&peer_channels, 1, memory_order_relaxed);
    }
    sys_munmap(peer->page, sizeof(*peer->page));
    free(peer);
}

/* --- ringing -------------------------------------------------------------------------------------------- */

/* What the record that was written last completes at its reader. */
struct completed {
    uint32_t qpn;
    bool send;      /* a request of the reader; else a receive */
    bool solicited; /* a receive */
};

/* False: nothing, or it cannot be told. */
static bool completes(struct lane *lane, struct completed *ret)
{
    enum { PLAIN = PACKET_SOLICITED | PACKET_ACK_REQUEST | PACKET_HAS_ACK | PACKET_BY_REFERENCE };
    const struct record_header *record;
    uint32_t properties;
    uint8_t flags;
    uint64_t word;

    lock_acquire(&lane->transmit_lock);
    record = ring_at(lane->writer.data, lane->writer.last);
    word = atomic_load_explicit(&record->word, memory_order_relaxed);
    ret->qpn = record->dest_qpn & 0xffffff;
    lock_release(&lane->transmit_lock);
    properties = opcode_table[(word >> 48) & 0xff].properties;
    flags = (uint8_t)(word >> 56);
    ret->send = !(properties & OPCODE_REQUEST);
    ret->solicited = !ret->send && flags & PACKET_SOLICITED;
    if (flags & ~PLAIN)
        return false;
    if (ret->send)
        return flags & PACKET_COMPLETES;
    return properties & (OPCODE_LAST | OPCODE_ONLY) && properties & (OPCODE_SEND | OPCODE_HAS_IMM);
}

/* Has the reader taken all that was written? A doorbell that was delayed may find that; an event would be of nothing.
 * The reader says so before it goes to sleep (is_quiet(), cool()). */
static bool is_taken(struct lane *lane)
{
    bool taken;

    lock_acquire(&lane->transmit_lock);
    taken =
        atomic_load_explicit(&lane->writer.control->consumed, memory_order_relaxed) == lane->writer.position;
    lock_release(&lane->transmit_lock);
    return taken;
}

/* Takes the arming of the CQ at which the last record completes something, and writes to its channel's eventfd.
 * False: no such CQ is known, or it is not armed. */
static bool ring_channel(struct notify_peer *peer, struct lane *lane)
{
    static const uint64_t one = 1;
    struct completed completed;
    struct notify_channel *line;
    struct notify_cq cq;
    uint64_t place;

    if (!completes(lane, &completed))
        return false;
    place = atomic_load_explicit(notify_slot(peer->page, completed.qpn), memory_order_relaxed);
    cq = notify_place_cq(place, completed.send);
    if ((place & 0xffffff) != completed.qpn || cq.channel >= NOTIFY_CHANNELS)
        return false;
    line = &peer->page->channels[cq.channel];
    if (!notify_is_armed(line, cq.bit) ||
        atomic_load_explicit(&peer->channels[cq.channel].serial, memory_order_acquire) !=
            atomic_load_explicit(&line->serial, memory_order_relaxed) ||
        !event_is_intact(&peer->channels[cq.channel].source) ||
        !notify_disarm(line, cq.bit, completed.solicited))
        return false;
    atomic_fetch_or_explicit(&line->rung, 1ull << cq.bit, memory_order_release);
    (void)sys_write(peer->channels[cq.channel].source.fd, &one, sizeof(one)); /* EAGAIN: readable already */
    return true;
}

/* Tells the owner of the page to look at the lane. The fence orders it before the look at the attention word; partner:
 * notify_set_attention(). */
static void mark(struct notify_page *page, const struct lane *lane)
{
    uint32_t bit =
        atomic_load_explicit(&lane->writer.control->listed_as, memory_order_relaxed) % NOTIFY_LINKS;

    atomic_fetch_or_explicit(&page->marks[bit / 64], 1ull << (bit % 64), memory_order_release);
    atomic_store_explicit(&page->marked, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Rings before it changes the attention word: a writer that is stopped in between must not keep others from
 * ringing. */
void notify_wake(struct lane *lane, uint32_t sleeps)
{
    struct notify_peer *peer = atomic_load_explicit(&lane->link->peer, memory_order_acquire);
    uint64_t attention, next = ATTENTION_AWAKE;

    if (sleeps == READER_LISTED && peer) {
        if (atomic_exchange_explicit(&lane->writer.control->reader_sleeps, 0, memory_order_acquire) ==
            READER_LISTED)
            mark(peer->page, lane);
        sleeps = READER_ATTENTION;
    }
    if (sleeps != READER_ATTENTION || !peer) {
        if (atomic_exchange_explicit(&lane->writer.control->reader_sleeps, 0, memory_order_relaxed) != 0)
            link_ring(lane->link, LINK_RINGS);
        return;
    }
    attention = atomic_load_explicit(&peer->page->attention, memory_order_relaxed);
    if ((attention & ATTENTION_MASK) != ATTENTION_AWAKE && is_taken(lane))
        return;
    switch ((enum attention)(attention & ATTENTION_MASK)) {
    case ATTENTION_AWAKE:
        return;
    case ATTENTION_RUNG:
        (void)ring_channel(peer, lane);
        return;
    case ATTENTION_DOZES:
    case ATTENTION_ASLEEP:
        if (ring_channel(peer, lane)) {
            next = ATTENTION_RUNG;
            if ((attention & ATTENTION_MASK) == ATTENTION_ASLEEP)
                link_ring(lane->link, LINK_CHECK_LATER);
        } else {
            link_ring(lane->link, LINK_RINGS);
        }
        break;
    }
    atomic_compare_exchange_strong_explicit(&peer->page->attention, &attention,
                                            (attention & ~ATTENTION_MASK) | next, memory_order_relaxed,
                                            memory_order_relaxed);
}

bool notify_sleeps(const struct link *link)
{
    const struct notify_peer *peer = atomic_load_explicit(&link->peer, memory_order_acquire);

    return !peer || (atomic_load_explicit(&peer->page->attention, memory_order_relaxed) & ATTENTION_MASK) !=
                        ATTENTION_AWAKE;
}

void notify_full(struct lane *lane)
{
    const struct notify_peer *peer = atomic_load_explicit(&lane->link->peer, memory_order_acquire);

    if (peer && (atomic_load_explicit(&peer->page->attention, memory_order_relaxed) & ATTENTION_MASK) ==
                    ATTENTION_RUNG)
        link_ring(lane->link, LINK_RINGS);
}

void notify_after_fork_in_child(void)
{
    lock_init(&start_lock);
    atomic_store_explicit(&notify_own_page, NULL,
                          memory_order_relaxed); /* is not in the child (MADV_DONTFORK) */
    free(own);
    own = NULL;
    own_fd = -1;
    atomic_store_explicit(&peer_channels, 0, memory_order_relaxed);
    atomic_store_explicit(&helper_sleeps, false, memory_order_relaxed);
}
