/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "base/user.h"
#include "local/files.h"
#include "local/handshake_message.h"
#include "local/names.h"
#include "local/notify.h"
#include "local/start.h"

#define BLOCKS            65536
#define DOORBELLS_AT_ONCE 64

/* Links, and with them memory and descriptors, that all other users together may have: an honest user has one for each
 * process of a job. */
#define LINKS_OF_OTHERS 512
#define DESCRIPTORS     2 /* of a link: its socket, and the peer's pidfd */

#define SELF_INDEX  0
#define SELF_SERIAL LINKS_MAX

/* Written by the helper thread, slot SELF_INDEX by local_self_link(); read by any thread in a rundown section. */
static _Atomic(struct link *) links[LINKS_MAX];
static _Atomic unsigned links_end = SELF_INDEX + 1; /* slots from here on are NULL */
static _Atomic(struct link *) *block_table;         /* BLOCKS slots: link to the owner; NULL: unknown */
static _Atomic bool any_broken;
static struct budget links_of_others = BUDGET_INIT(
    links_of_others, "shared-memory links", "Let fewer processes of that user communicate with this one");
static uint64_t last_serial = SELF_SERIAL; /* multiple of LINKS_MAX; helper thread */

int link_start(void)
{
    int error = 0;

    if (!block_table)
        block_table = sys_mmap(NULL, BLOCKS * sizeof(*block_table), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &error);
    return error;
}

/* The child has no mapping of the shared memory (MADV_DONTFORK). Locks and lists of the links may be in the middle of
 * a change by another thread of the parent, so the links are freed without being taken down. */
void link_after_fork_in_child(void)
{
    for (unsigned i = 0; i < atomic_load_explicit(&links_end, memory_order_relaxed); i++) {
        free(atomic_load_explicit(&links[i], memory_order_relaxed));
        atomic_store_explicit(&links[i], NULL, memory_order_relaxed);
    }
    atomic_store_explicit(&links_end, SELF_INDEX + 1, memory_order_relaxed);
    atomic_store_explicit(&any_broken, false, memory_order_relaxed);
    budget_after_fork_in_child(&links_of_others);
    if (block_table)
        sys_munmap(block_table, BLOCKS * sizeof(*block_table));
    block_table = NULL;
}

/* --- shared memory -------------------------------------------------------------------------------------- */

static int map_memory(int fd, void **ret_memory)
{
    int error = 0;
    void *memory = sys_mmap(NULL, LAYOUT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &error);

    if (!memory)
        return error;
    /* A forked child is another process: its accesses to the parent's rings would corrupt them. */
    error = sys_madvise(memory, LAYOUT_SIZE, MADV_DONTFORK);
    if (error) {
        sys_munmap(memory, LAYOUT_SIZE);
        return error;
    }
    *ret_memory = memory;
    return 0;
}

/* Makes all lanes cold: the first record in each ring rings the doorbell. */
static void arm_all(void *memory)
{
    struct ring_control *control = memory;

    for (unsigned i = 0; i < LAYOUT_RINGS; i++)
        atomic_store_explicit(&control[i].reader_sleeps, READER_SLEEPS, memory_order_relaxed);
}

int link_memory_create(int *ret_fd, void **ret_memory)
{
    int error, fd = fd_own(memory_file_make("softhca-link", LAYOUT_SIZE));

    if (fd < 0)
        return fd;
    error = map_memory(fd, ret_memory);
    if (error) {
        fd_close(fd);
        return error;
    }
    arm_all(*ret_memory);
    *ret_fd = fd;
    return 0;
}

bool shared_memory_is_sound(int fd, size_t size)
{
    uint64_t found;

    return memory_file_check(fd, &found) == 0 && found == size;
}

int link_memory_accept(int fd, void **ret_memory)
{
    return shared_memory_is_sound(fd, LAYOUT_SIZE) ? map_memory(fd, ret_memory) : -EBADF;
}

/* --- links ---------------------------------------------------------------------------------------------- */

struct link *link_new(void *memory, bool connector)
{
    struct link *link = aligned_alloc(_Alignof(struct link), sizeof(*link));

    if (!link)
        return NULL;
    memset(link, 0, sizeof(*link));
    link->memory = memory;
    link->is_connector = connector;
    link->peer_segment = -1;
    link->socket.fd = link->pidfd.fd = -1;
    for (unsigned i = 0; i < LOCAL_LANES; i++) {
        struct lane *lane = &link->lanes[i];

        lane->link = link;
        atomic_store_explicit(&lane->hot_index, -1, memory_order_relaxed);
        list_init(&lane->blocked_node);
        ring_writer_init(&lane->writer, memory, 2 * i + (connector ? 0 : 1));
        ring_reader_init(&lane->reader, memory, 2 * i + (connector ? 1 : 0));
        atomic_store_explicit(&lane->next, ring_next_word(&lane->reader), memory_order_relaxed);
    }
    if (local.ops->link_made)
        local.ops->link_made(link);
    return link;
}

void link_free(struct link *link)
{
    if (!link)
        return;
    if (link->is_charged) {
        budget_return(&links_of_others, link->peer_uid, 1);
        budget_return_descriptors(link->peer_uid, DESCRIPTORS);
    }
    event_close(&link->socket);
    event_close(&link->pidfd);
    notify_peer_free(atomic_load_explicit(&link->peer, memory_order_relaxed));
    free(atomic_load_explicit(&link->owned, memory_order_relaxed));
    sys_munmap(link->memory, LAYOUT_SIZE);
    free(link);
}

bool link_charge(struct link *link)
{
    if (!budget_take(&links_of_others, link->peer_uid, 1, LINKS_OF_OTHERS))
        return false;
    link->is_charged = budget_take_descriptors(link->peer_uid, DESCRIPTORS);
    if (!link->is_charged)
        budget_return(&links_of_others, link->peer_uid, 1);
    return link->is_charged;
}

static uint64_t own_identity(void)
{
    int pidfd = fd_own(sys_pidfd_open(getpid()));
    uint64_t identity = process_identity(pidfd, getpid());

    fd_close(pidfd);
    return identity;
}

struct link *local_self_link(void)
{
    struct link *link = atomic_load_explicit(&links[SELF_INDEX], memory_order_acquire);
    void *memory;

    if (link)
        return link;
    memory = sys_mmap(NULL, LAYOUT_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0, NULL);
    if (!memory)
        return NULL;
    /* A forked child must not deliver packets that the parent had in flight. */
    sys_madvise(memory, LAYOUT_SIZE, MADV_DONTFORK);
    arm_all(memory);
    link = link_new(memory, true);
    if (!link) {
        sys_munmap(memory, LAYOUT_SIZE);
        return NULL;
    }
    /* One ring per lane: this process reads the ring that it writes. */
    for (unsigned i = 0; i < LOCAL_LANES; i++) {
        struct lane *lane = &link->lanes[i];

        ring_reader_init(&lane->reader, memory, 2 * i);
        lane->reader.references = local.mechanism != MECHANISM_RING;
        atomic_store_explicit(&lane->next, ring_next_word(&lane->reader), memory_order_relaxed);
    }
    link->is_self = true;
    link->may_pull = link->may_refer = local.mechanism != MECHANISM_RING;
    link->peer_pid = getpid();
    link->peer_uid = geteuid();
    link->identity = own_identity();
    link->index = SELF_INDEX;
    link->serial = link->process = SELF_SERIAL;
    memcpy(link->instance, local.instance, sizeof(link->instance));
    atomic_store_explicit(&link->primary, true, memory_order_relaxed);
    atomic_store_explicit(&link->state, LINK_UP, memory_order_release);
    atomic_store_explicit(&links[SELF_INDEX], link, memory_order_release);
    return link;
}

static void pidfd_ready(struct event_source *source, uint32_t events)
{
    link_remove(container_of(source, struct link, pidfd), true, "the peer process has ended");
}

static void accept_wish(const struct link *link, const struct link_offer *offer)
{
    struct link_wish wish;

    memcpy(&wish, offer, sizeof(wish));
    if (files_wants_direct(link) && local.ops->wanted)
        local.ops->wanted(wish.slot, (uint32_t)wish.step_high << 16 | wish.step_low);
}

static void socket_ready(struct event_source *source, uint32_t events)
{
    struct link *link = container_of(source, struct link, socket);
    bool rung = false;

    for (int i = 0; i < DOORBELLS_AT_ONCE; i++) {
        struct link_question question = {0};
        const struct link_offer *offer = &question.offer;
        int fd;
        ssize_t length = receive_with_descriptor(source->fd, &question, sizeof(question), MSG_DONTWAIT, &fd);

        if (length > 0) {
            if (offer->type == LINK_CHECK_LATER)
                local_check_later();
            else if (offer->type == LINK_RINGS)
                rung = true;
            else if (offer->type == LINK_WANTS_MAPPED)
                accept_wish(link, offer);
            else if (offer->type == LINK_WANTS_FILE)
                files_answer(link, &question);
            if (offer->type == LINK_ANSWERS_FILE)
                files_accept(link, offer, fd);
            else
                notify_accept(link, offer, fd);
            continue;
        }
        if (length < 0 && error_may_pass(-errno)) /* the message is still there */
            break;
        link_remove(link, true, "the peer process closed it");
        return;
    }
    if (rung)
        local_was_rung();
    if (rung && progress_rung(link, false))
        local_became_hot();
}

/* Behind the admission flag of the slots that the requester takes: what its owner does when it takes memory back. ours:
 * the word that this process writes. */
enum { WAITS_FOR_COPIES = 1, WATCHES_SLOTS = 2 };

static _Atomic uint64_t *waits_word(struct link *link, bool ours)
{
    return (_Atomic uint64_t *)link_access_slot(link, !ours, LOCAL_ACCESS_SLOTS) + 1;
}

void link_watch(struct link *link)
{
    atomic_store_explicit(&link->is_watched, true, memory_order_relaxed);
    /* A thread that takes memory back looks at the slots of this link, or has changed its records before the peer
     * gets to know of it. Partner: direct_settle() in engine/direct/owner.c. */
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_or_explicit(waits_word(link, true), WATCHES_SLOTS, memory_order_release);
}

int link_install(struct link *link)
{
    unsigned index, end = atomic_load_explicit(&links_end, memory_order_relaxed);
    struct link *first;
    int error;

    for (index = SELF_INDEX + 1; index < end; index++) {
        if (!atomic_load_explicit(&links[index], memory_order_relaxed))
            break;
    }
    if (index == LINKS_MAX)
        return -ENFILE;
    for (unsigned i = 0; i < LOCAL_LANES; i++)
        link->lanes[i].reader.references = link->may_pull;
    link->index = index;
    last_serial += LINKS_MAX;
    link->serial = last_serial + index;
    first = link_find(link->instance, link->identity, link->peer_uid);
    link->process = first ? first->process : link->serial;
    /* Those whom we do not see may be of a container, whose users are not ours by number alone. */
    link->is_of_other_user = !user_is_own(link->peer_uid) || link->peer_pid <= 0;
    atomic_store_explicit(&link->primary, !first, memory_order_relaxed);
    link->socket.ready = socket_ready;
    link->pidfd.ready = pidfd_ready;
    error = event_change(&link->socket, EPOLLIN);
    if (error)
        return error;
    if (link->pidfd.fd >= 0 && event_add(&link->pidfd, EPOLLIN) != 0)
        log_info("no pidfd of process %d: its exit is detected by the end of its socket",
                 (int)link->peer_pid);
    atomic_store_explicit(&link->state, LINK_UP, memory_order_release);
    atomic_store_explicit(&links[index], link, memory_order_release);
    if (index == end)
        atomic_store_explicit(&links_end, end + 1, memory_order_release);
    names_tell(link, NULL);
    /* From here on whoever takes memory back finds this link. Release: partner is link_waits_for_copies(). */
    atomic_store_explicit(waits_word(link, true), link->may_refer ? WAITS_FOR_COPIES : 0,
                          memory_order_release);
    if (files_may_be_opened(link))
        link_watch(link);
    log_info("shared-memory link to process %d (uid %u) established%s", (int)link->peer_pid,
             (unsigned)link->peer_uid,
             link->may_refer ? ", large payloads by kernel copy (process_vm_readv)" : "");
    return 0;
}

void link_remove(struct link *link, bool drain, const char *why)
{
    unsigned end = atomic_load_explicit(&links_end, memory_order_relaxed);

    if (drain && !atomic_load_explicit(&link->broken, memory_order_relaxed)) {
        rundown_enter();
        for (unsigned i = 0; i < LOCAL_LANES; i++)
            lane_drain(&link->lanes[i]);
        rundown_exit();
    }
    log_info("shared-memory link to process %d closed: %s", (int)link->peer_pid, why);
    if (local.ops->link_leaving)
        local.ops->link_leaving(link);
    atomic_store_explicit(&link->state, LINK_DOWN, memory_order_release);
    for (unsigned block = 0; block < BLOCKS; block++) {
        if (atomic_load_explicit(&block_table[block], memory_order_relaxed) == link)
            atomic_store_explicit(&block_table[block], NULL, memory_order_release);
    }
    atomic_store_explicit(&links[link->index], NULL, memory_order_release);
    while (end > SELF_INDEX + 1 && !atomic_load_explicit(&links[end - 1], memory_order_relaxed))
        end--;
    atomic_store_explicit(&links_end, end, memory_order_release);
    if (atomic_load_explicit(&link->primary, memory_order_relaxed)) {
        struct link *other = link_find(link->instance, link->identity, link->peer_uid);

        if (other)
            atomic_store_explicit(&other->primary, true, memory_order_relaxed);
    }
    progress_forget(link);
    local.ops->link_down(link);
    rundown_wait();
    /* All threads that used the link have left their rundown sections. None has put a lane back on a list since,
     * because heat() and lane_block() check link.state under the list's lock. */
    link_free(link);
}

void link_declare_broken(struct link *link, const char *what)
{
    if (atomic_exchange_explicit(&link->broken, true, memory_order_relaxed))
        return;
    log_error("peer process %d (uid %u) wrote %s to the shared-memory ring (a bug there, or an attack): link "
              "closed, so requests to it end as if that process had ended (IBV_WC_RETRY_EXC_ERR)",
              (int)link->peer_pid, (unsigned)link->peer_uid, what);
    atomic_store_explicit(&any_broken, true, memory_order_release);
    local_kick();
}

void link_remove_broken(void)
{
    if (!atomic_exchange_explicit(&any_broken, false, memory_order_acquire))
        return;
    for (unsigned i = SELF_INDEX + 1; i < atomic_load_explicit(&links_end, memory_order_relaxed); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_relaxed);

        if (link && atomic_load_explicit(&link->broken, memory_order_relaxed))
            link_remove(link, false, "its ring is corrupted");
    }
}

/* The instance tells apart what a process was before and after exec. It may change its user meanwhile, so the uid
 * counts only where the kernel says nothing else. */
static bool same_process(const struct link *link, const uint8_t *instance, uint64_t identity, uid_t uid)
{
    return link->identity == identity && (identity || link->peer_uid == uid) &&
           memcmp(link->instance, instance, sizeof(link->instance)) == 0;
}

struct link *link_find(const uint8_t *instance, uint64_t identity, uid_t uid)
{
    for (unsigned i = SELF_INDEX; i < atomic_load_explicit(&links_end, memory_order_relaxed); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_relaxed);

        if (link && !atomic_load_explicit(&link->broken, memory_order_relaxed) &&
            same_process(link, instance, identity, uid))
            return link;
    }
    return NULL;
}

struct link *link_find_process(uint64_t identity)
{
    for (unsigned i = SELF_INDEX; i < atomic_load_explicit(&links_end, memory_order_acquire); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_acquire);

        if (link && identity && link->identity == identity && link_is_up(link) &&
            !atomic_load_explicit(&link->broken, memory_order_relaxed) &&
            atomic_load_explicit(&link->primary, memory_order_relaxed))
            return link;
    }
    return NULL;
}

unsigned link_count(pid_t pid)
{
    unsigned count = 0;

    for (unsigned i = SELF_INDEX + 1; i < atomic_load_explicit(&links_end, memory_order_relaxed); i++) {
        const struct link *link = atomic_load_explicit(&links[i], memory_order_relaxed);

        count += link && pid > 0 && link->peer_pid == pid; /* 0: outside our pid namespace */
    }
    return count;
}

void link_table_set(uint32_t block, struct link *link)
{
    atomic_store_explicit(&block_table[block % BLOCKS], link, memory_order_release);
}

void link_table_clear(uint32_t block, struct link *link)
{
    atomic_compare_exchange_strong_explicit(&block_table[block % BLOCKS], &link, NULL, memory_order_release,
                                            memory_order_relaxed);
}

struct link *link_table_get(uint32_t block)
{
    return atomic_load_explicit(&block_table[block % BLOCKS], memory_order_acquire);
}

bool link_waits_for_copies(struct link *link, bool ours)
{
    return ours ? link->may_refer
                : atomic_load_explicit(waits_word(link, false), memory_order_acquire) & WAITS_FOR_COPIES;
}

bool link_is_watched(struct link *link, bool ours)
{
    return ours ? atomic_load_explicit(&link->is_watched, memory_order_relaxed)
                : atomic_load_explicit(waits_word(link, false), memory_order_acquire) & WATCHES_SLOTS;
}

void link_want_mapped(struct link *link, uint32_t slot, uint32_t step)
{
    struct link_wish wish = {.type = LINK_WANTS_MAPPED,
                             .step_high = (uint8_t)(step >> 16),
                             .step_low = (uint16_t)step,
                             .slot = slot};

    if (event_is_intact(&link->socket))
        (void)sys_send(link->socket.fd, &wish, sizeof(wish), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* --- queries by the engine ------------------------------------------------------------------------------ */

bool link_is_self(const struct link *link)
{
    return link->is_self;
}

bool link_can_reference(const struct link *link)
{
    return link->may_refer;
}

bool link_can_pull(const struct link *link)
{
    return link->may_pull;
}

uint64_t link_serial(const struct link *link)
{
    return link->serial;
}

uint64_t local_self_serial(void)
{
    return SELF_SERIAL;
}

uint64_t link_process(const struct link *link)
{
    return link->process;
}

struct link *local_link_of_process(uint64_t process)
{
    struct link *link = local_link_of_serial(process);

    for (unsigned i = SELF_INDEX; !link && i < atomic_load_explicit(&links_end, memory_order_acquire); i++) {
        link = atomic_load_explicit(&links[i], memory_order_acquire);
        if (link && (link->process != process || !link_is_up(link)))
            link = NULL;
    }
    return link;
}

struct link *local_link_of_serial(uint64_t serial)
{
    struct link *link = atomic_load_explicit(&links[serial % LINKS_MAX], memory_order_acquire);

    return link && link->serial == serial && link_is_up(link) ? link : NULL;
}

struct link *link_at(unsigned index)
{
    struct link *link = atomic_load_explicit(&links[index], memory_order_acquire);

    return link && link_is_up(link) ? link : NULL;
}

int link_peer_segment(const struct link *link)
{
    return link->peer_segment;
}

void **link_owner_data(struct link *link)
{
    return &link->owner_data;
}

void *link_access_slot(struct link *link, bool ours, uint32_t number)
{
    size_t line = (ours == link->is_connector ? 0 : LOCAL_ACCESS_SLOTS + 1) + number;

    return (char *)link->memory + LAYOUT_ACCESS_SLOTS + line * CACHE_LINE;
}

pid_t link_peer_pid(const struct link *link)
{
    return link->peer_pid;
}

uid_t link_peer_uid(const struct link *link)
{
    return link->peer_uid;
}

void local_for_each_peer(void (*visit)(struct link *link, void *argument), void *argument)
{
    rundown_enter();
    for (unsigned i = SELF_INDEX; i < atomic_load_explicit(&links_end, memory_order_acquire); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_acquire);

        if (link && link_is_up(link) && atomic_load_explicit(&link->primary, memory_order_relaxed))
            visit(link, argument);
    }
    rundown_exit();
}

void local_for_each_link(void (*visit)(struct link *link, void *argument), void *argument)
{
    rundown_enter();
    for (unsigned i = SELF_INDEX + 1; i < atomic_load_explicit(&links_end, memory_order_acquire); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_acquire);

        if (link)
            visit(link, argument);
    }
    rundown_exit();
}

void local_poll_rung(void)
{
    rundown_enter();
    for (unsigned i = 0; i < atomic_load_explicit(&links_end, memory_order_acquire); i++) {
        struct link *link = atomic_load_explicit(&links[i], memory_order_acquire);

        if (link && link_is_up(link))
            progress_rung(link, true);
    }
    rundown_exit();
}
