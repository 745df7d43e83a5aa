/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Several processes write to the pages in front of the device memory, and each may die at any instruction:
 * there is no lock in them. An object is one word, which says whether it is alive, which of all that had its
 * handle it is, and which processes use it: so each of them uses it, ends it, or finds it ended, with one
 * compare-and-swap. The users of a process that died are nobody's: whoever finds them in his way asks the
 * kernel for the process, by an abstract unix socket that each has bound, SOFTHCA/TAG, and takes them out.
 *
 * What is read is checked: a process that has the descriptor may be anybody's. It can end or keep busy what
 * is of the file, as with a device file, and no more. */
#include "object/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/event.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "object/context.h"
#include "rules/limits.h"

#define SHARE_MAGIC   0x3143484353414853ull
#define SHARE_VERSION 2u
#define SHARE_SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#define UNITS ((uint32_t)(LIMIT_DM_SIZE / SHARE_UNIT))

/* The word of an object: */
#define WORD_ALIVE            (1ull << 63)
#define WORD_TAKEN            (1ull << 62) /* not yet or no more alive, and somebody's */
#define WORD_GENERATION_SHIFT SHARE_PROCESSES
#define WORD_GENERATION_MASK  0x3fffull
#define WORD_USERS            ((1ull << SHARE_PROCESSES) - 1)
_Static_assert(SHARE_PROCESSES + 14 + 2 == 64, "users, generation, alive, taken");

struct share_process {
    /* 0: nobody. The lowest bit: whose place it was is gone, and traces of his are being removed. */
    _Atomic uint64_t tag;
    _Atomic uint64_t namespace; /* of the network, where the tag is bound; 0: nowhere */
    _Atomic uint32_t pid;       /* for people */
    uint32_t reserved;
};
#define TAG_ARRIVES 1ull

struct share_dm {
    _Atomic uint64_t word;
    uint32_t first, reserved;
    uint64_t length;
};

struct share_page {
    uint64_t magic;
    uint32_t version, size;
    uint8_t id[16], node_guid[8];
    _Atomic uint64_t taken[UNITS / 64];
    struct share_process process[SHARE_PROCESSES];
    struct share_dm dms[SHARE_DMS];
    _Atomic uint64_t pds[LIMIT_PD];
};
#define HEAD_SIZE ((sizeof(struct share_page) + SHARE_UNIT - 1) / SHARE_UNIT * SHARE_UNIT)
#define FILE_SIZE (HEAD_SIZE + LIMIT_DM_SIZE)
_Static_assert(UNITS % 64 == 0, "no bits beyond them");

static struct lock shares_lock = LOCK_INIT; /* the list, references, our name */
static struct list shares = {&shares, &shares};

/* --- processes
 * -------------------------------------------------------------------------------------------------- */

/* The name by which others see that this process lives. It stays as long as the process. */
static struct {
    uint64_t tag;       /* even; 0: not chosen yet */
    uint64_t namespace; /* 0: the name could not be had, and nobody can tell */
} myself;

static socklen_t tag_address(uint64_t tag, struct sockaddr_un *ret_address)
{
    char name[48];

    snprintf(name, sizeof(name), "softhca/1/shares/%016llx", (unsigned long long)tag);
    return unix_name_address(name, ret_address);
}

static uint64_t network_namespace(void)
{
    struct stat status;

    return stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
}

/* shares_lock held. */
static void introduce_myself(void)
{
    int saved = errno, fd;
    struct sockaddr_un address;
    socklen_t length;

    if (myself.tag)
        return;
    while (!myself.tag) {
        sys_random(&myself.tag, sizeof(myself.tag));
        myself.tag &= ~TAG_ARRIVES;
    }
    length = tag_address(myself.tag, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0)
        myself.namespace = network_namespace();
    else if (fd >= 0)
        fd_close(fd);
    errno = saved;
}

/* Has nobody the name? libc's connect(2) would be a cancellation point. */
static bool is_unknown(uint64_t tag)
{
    int saved = errno, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    bool unknown;

    if (fd < 0) {
        errno = saved;
        return false;
    }
    unknown = syscall(SYS_connect, fd, &address, tag_address(tag, &address)) != 0 && errno == ECONNREFUSED;
    sys_close(fd);
    errno = saved;
    return unknown;
}

/* In doubt it does: what it uses stays in use. */
static bool lives(const struct share_process *process)
{
    uint64_t tag = atomic_load_explicit(&process->tag, memory_order_acquire);
    uint64_t namespace = atomic_load_explicit(&process->namespace, memory_order_relaxed);

    if (!tag || (tag & TAG_ARRIVES))
        return false;
    if (tag == myself.tag || !namespace || namespace != network_namespace() || !is_unknown(tag))
        return true;
    /* The place may have got another tenant meanwhile. */
    return atomic_load_explicit(&process->tag, memory_order_acquire) != tag;
}

static void remove_traces(struct share_page *page, uint32_t index)
{
    const uint64_t others = ~(1ull << index);

    for (uint32_t i = 0; i < SHARE_DMS; i++)
        atomic_fetch_and_explicit(&page->dms[i].word, others, memory_order_relaxed);
    for (uint32_t i = 0; i < LIMIT_PD; i++) {
        if (atomic_load_explicit(&page->pds[i], memory_order_relaxed) & ~others)
            atomic_fetch_and_explicit(&page->pds[i], others, memory_order_relaxed);
    }
}

static bool take_place(struct share *share, uint32_t index, bool vacant)
{
    struct share_process *process = &share->page->process[index];
    uint64_t tag = atomic_load_explicit(&process->tag, memory_order_relaxed);

    if (vacant && tag)
        return false;
    if (!vacant && (tag & TAG_ARRIVES ? !is_unknown(tag & ~TAG_ARRIVES) : !tag || lives(process)))
        return false;
    if (!atomic_compare_exchange_strong_explicit(&process->tag, &tag, myself.tag | TAG_ARRIVES,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    if (tag)
        remove_traces(share->page, index);
    atomic_store_explicit(&process->namespace, myself.namespace, memory_order_relaxed);
    atomic_store_explicit(&process->pid, (uint32_t)getpid(), memory_order_relaxed);
    tag = myself.tag | TAG_ARRIVES;
    /* Release: partner of the acquire in lives(). */
    if (!atomic_compare_exchange_strong_explicit(&process->tag, &tag, myself.tag, memory_order_release,
                                                 memory_order_relaxed))
        return false;
    share->index = index;
    return true;
}

/* shares_lock held. */
static int join(struct share *share)
{
    introduce_myself();
    for (unsigned vacant = 2; vacant-- > 0;) {
        for (uint32_t i = 0; i < SHARE_PROCESSES; i++) {
            if (take_place(share, i, vacant))
                return 0;
        }
    }
    log_warn("more than %u processes have the same device open", SHARE_PROCESSES);
    return -ENOMEM;
}

/* No object of the file is used by this process any more. */
static void leave(struct share *share)
{
    atomic_store_explicit(&share->page->process[share->index].namespace, 0, memory_order_relaxed);
    atomic_store_explicit(&share->page->process[share->index].tag, 0, memory_order_release);
}

/* --- the file
 * --------------------------------------------------------------------------------------------------- */

/* shares_lock held. */
static int map(int fd, const uint8_t id[16], struct share **ret_share)
{
    struct share *share = calloc(1, sizeof(*share));
    int error = -ENOMEM;

    if (!share)
        return error;
    share->page = sys_mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &error);
    if (!share->page) {
        free(share);
        return error;
    }
    memcpy(share->id, id, sizeof(share->id));
    share->generation = process_generation();
    share->references = 1;
    list_init(&share->objects);
    error = join(share);
    if (error) {
        sys_munmap(share->page, FILE_SIZE);
        free(share);
        return error;
    }
    list_push_back(&shares, &share->all);
    *ret_share = share;
    return 0;
}

int share_open(const uint8_t node_guid[8], struct share **ret_share, int *ret_fd)
{
    int error, fd = sys_memfd_create("softhca-device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct share_page *page;
    uint8_t id[16];

    if (fd < 0)
        return fd;
    sys_random(id, sizeof(id));
    if (ftruncate(fd, FILE_SIZE) != 0 || fcntl(fd, F_ADD_SEALS, SHARE_SEALS) != 0) {
        error = -errno;
    } else {
        lock_acquire(&shares_lock);
        error = map(fd, id, ret_share);
        lock_release(&shares_lock);
    }
    if (error) {
        sys_close(fd);
        return error;
    }
    page = (*ret_share)->page;
    memcpy(page->id, id, sizeof(page->id));
    memcpy(page->node_guid, node_guid, sizeof(page->node_guid));
    page->version = SHARE_VERSION;
    page->size = FILE_SIZE;
    page->magic = SHARE_MAGIC;
    *ret_fd = fd;
    return 0;
}

static struct share *find(const uint8_t id[16])
{
    list_for_each (node, &shares) {
        struct share *share = list_entry(node, struct share, all);

        if (!memcmp(share->id, id, sizeof(share->id)))
            return share;
    }
    return NULL;
}

int share_adopt(int fd, uint8_t ret_node_guid[8], struct share **ret_share)
{
    struct {
        uint64_t magic;
        uint32_t version, size;
        uint8_t id[16], node_guid[8];
    } head;
    struct stat status;
    int error = 0;

    _Static_assert(offsetof(struct share_page, taken) == sizeof(head), "what is before");
    /* The seals come first: only then does the size stay as it is, and the mapping be safe to touch. */
    if (fcntl(fd, F_GET_SEALS) != SHARE_SEALS || fstat(fd, &status) != 0 || status.st_size != FILE_SIZE ||
        sys_pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != SHARE_MAGIC ||
        head.version != SHARE_VERSION || head.size != FILE_SIZE)
        return -EINVAL;
    lock_acquire(&shares_lock);
    *ret_share = find(head.id);
    if (*ret_share)
        (*ret_share)->references++;
    else
        error = map(fd, head.id, ret_share);
    lock_release(&shares_lock);
    memcpy(ret_node_guid, head.node_guid, sizeof(head.node_guid));
    return error;
}

void share_close(struct share *share)
{
    bool inherited = share->generation != process_generation(), last;

    lock_acquire(&shares_lock);
    last = --share->references == 0;
    if (last && !inherited) {
        list_remove(&share->all);
        leave(share);
    }
    lock_release(&shares_lock);
    if (!last)
        return;
    sys_munmap(share->page, FILE_SIZE);
    free(share);
}

/* Inherited ones still reach the device memory; the place among the processes is the parent's. The socket is
 * closed by whoever closes all of ours (base/event.h). */
void share_after_fork_in_child(void)
{
    lock_init(&shares_lock);
    list_for_each_safe (node, following, &shares) {
        struct share *share = list_entry(node, struct share, all);

        lock_init(&share->lock);
        list_init(&share->objects);
        list_init(node);
    }
    list_init(&shares);
    myself.tag = myself.namespace = 0;
}

bool share_knows_process(const struct share *share, uint32_t index, uint32_t *ret_pid)
{
    const struct share_process *process = &share->page->process[index % SHARE_PROCESSES];

    *ret_pid = atomic_load_explicit(&process->pid, memory_order_relaxed);
    return index < SHARE_PROCESSES && index != share->index && lives(process);
}

/* --- objects
 * ---------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *word_of(const struct share *share, enum share_kind kind, uint32_t handle)
{
    return kind == SHARE_PD ? &share->page->pds[handle] : &share->page->dms[handle].word;
}

static uint32_t handles_of(enum share_kind kind)
{
    return kind == SHARE_PD ? LIMIT_PD : SHARE_DMS;
}

static uint32_t generation_of(uint64_t word)
{
    return (uint32_t)(word >> WORD_GENERATION_SHIFT & WORD_GENERATION_MASK);
}

static bool is_alive(uint64_t word, uint32_t generation)
{
    return (word & WORD_ALIVE) && generation_of(word) == generation;
}

static uint64_t make_word(uint64_t flags, uint32_t generation)
{
    return flags | (uint64_t)generation << WORD_GENERATION_SHIFT;
}

static uint64_t my_bit(const struct share *share)
{
    return 1ull << share->index;
}

static bool take_handle(struct share *share, enum share_kind kind, uint32_t handle, uint32_t *ret_generation)
{
    _Atomic uint64_t *word = word_of(share, kind, handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    *ret_generation = (generation_of(old) + 1) & WORD_GENERATION_MASK;
    return !(old & (WORD_ALIVE | WORD_TAKEN)) &&
           atomic_compare_exchange_strong_explicit(word, &old, make_word(WORD_TAKEN, *ret_generation),
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Lock held. The lowest that is free, but for PDs that other processes gave back since. */
static bool find_handle(struct share *share, enum share_kind kind, uint32_t *ret_handle,
                        uint32_t *ret_generation)
{
    uint32_t count = handles_of(kind), first = kind == SHARE_PD ? share->first_free : 0;

    for (uint32_t i = 0; i < count; i++) {
        *ret_handle = (first + i) % count;
        if (take_handle(share, kind, *ret_handle, ret_generation)) {
            if (kind == SHARE_PD)
                share->first_free = (*ret_handle + 1) % count;
            return true;
        }
    }
    return false;
}

static struct shared *note(struct share *share, enum share_kind kind, uint32_t handle, uint32_t generation,
                           uint32_t number)
{
    struct shared *shared = calloc(1, sizeof(*shared));

    if (!shared)
        return NULL;
    shared->share = share;
    shared->kind = kind;
    shared->handle = handle;
    shared->generation = generation;
    shared->structures = 1;
    shared->number = number;
    list_push_back(&share->objects, &shared->node);
    return shared;
}

int shared_create(struct share *share, enum share_kind kind, uint32_t number, struct shared **ret_shared)
{
    uint32_t handle, generation;
    int error = -ENOMEM;

    lock_acquire(&share->lock);
    if (find_handle(share, kind, &handle, &generation)) {
        *ret_shared = note(share, kind, handle, generation, number);
        if (*ret_shared)
            error = 0;
        else
            atomic_store_explicit(word_of(share, kind, handle), make_word(0, generation),
                                  memory_order_release);
    }
    lock_release(&share->lock);
    return error;
}

void shared_publish(struct shared *shared)
{
    /* Release: what belongs to it is filled in. */
    atomic_store_explicit(word_of(shared->share, shared->kind, shared->handle),
                          make_word(WORD_ALIVE, shared->generation), memory_order_release);
}

/* Lock held. */
static struct shared *known(const struct share *share, enum share_kind kind, uint32_t handle,
                            uint32_t generation)
{
    list_for_each (node, &share->objects) {
        struct shared *shared = list_entry(node, struct shared, node);

        if (shared->kind == kind && shared->handle == handle && shared->generation == generation)
            return shared;
    }
    return NULL;
}

int shared_find(struct share *share, enum share_kind kind, uint32_t handle, uint32_t number,
                struct shared **ret_shared)
{
    uint32_t generation;
    int error = 0;
    uint64_t word;

    if (handle >= handles_of(kind))
        return -EINVAL;
    lock_acquire(&share->lock);
    word = atomic_load_explicit(word_of(share, kind, handle), memory_order_acquire);
    generation = generation_of(word);
    if (!(word & WORD_ALIVE)) {
        error = -EINVAL;
    } else if ((*ret_shared = known(share, kind, handle, generation))) {
        (*ret_shared)->structures++;
    } else {
        *ret_shared = note(share, kind, handle, generation, number);
        error = *ret_shared ? 0 : -ENOMEM;
    }
    lock_release(&share->lock);
    return error;
}

bool shared_is_alive(const struct shared *shared)
{
    return is_alive(
        atomic_load_explicit(word_of(shared->share, shared->kind, shared->handle), memory_order_relaxed),
        shared->generation);
}

int shared_use(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    int error = 0;

    lock_acquire(&share->lock);
    if (!shared->users) {
        do {
            if (!is_alive(old, shared->generation)) {
                error = -EINVAL;
                break;
            }
        } while (!atomic_compare_exchange_weak_explicit(word, &old, old | my_bit(share), memory_order_acquire,
                                                        memory_order_relaxed));
    }
    if (!error)
        shared->users++;
    lock_release(&share->lock);
    return error;
}

void shared_unuse(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    lock_acquire(&share->lock);
    if (--shared->users == 0) {
        /* Release: what the user did is done. It may have been ended by others who took us for dead. */
        while (is_alive(old, shared->generation) &&
               !atomic_compare_exchange_weak_explicit(word, &old, old & ~my_bit(share), memory_order_release,
                                                      memory_order_relaxed))
            continue;
    }
    lock_release(&share->lock);
}

/* --- their end
 * -------------------------------------------------------------------------------------------------- */

static const char *kind_name(enum share_kind kind)
{
    return kind == SHARE_PD ? "PD" : "device memory";
}

/* Who of those in the word is a process that lives? SHARE_PROCESSES: none. */
static uint32_t find_user(const struct share *share, uint64_t word)
{
    for (uint64_t users = word & WORD_USERS; users; users &= users - 1) {
        uint32_t index = (uint32_t)__builtin_ctzll(users);

        if (index != share->index && lives(&share->page->process[index]))
            return index;
    }
    return SHARE_PROCESSES;
}

/* Lock held. */
static int end(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t user;

    do {
        if (!is_alive(old, shared->generation))
            return -ENOENT;
        user = find_user(share, old);
        if (user != SHARE_PROCESSES) {
            log_warn("%s with handle %u is in use in process %u, which has the device by its file, too",
                     kind_name(shared->kind), shared->handle,
                     (unsigned)atomic_load_explicit(&share->page->process[user].pid, memory_order_relaxed));
            return -EBUSY;
        }
        /* Acquire: partner of the release in shared_unuse(). */
    } while (!atomic_compare_exchange_strong_explicit(word, &old, make_word(WORD_TAKEN, shared->generation),
                                                      memory_order_acquire, memory_order_relaxed));
    return 0;
}

int shared_end(struct shared *shared)
{
    struct share *share = shared->share;
    int error;

    lock_acquire(&share->lock);
    if (shared->users) {
        log_warn("%s with handle %u is in use by another one that was imported", kind_name(shared->kind),
                 shared->handle);
        error = -EBUSY;
    } else {
        error = end(shared);
    }
    lock_release(&share->lock);
    return error;
}

void shared_give_handle(struct shared *shared)
{
    struct share *share = shared->share;

    lock_acquire(&share->lock);
    atomic_store_explicit(word_of(share, shared->kind, shared->handle), make_word(0, shared->generation),
                          memory_order_release);
    if (shared->kind == SHARE_PD && shared->handle < share->first_free)
        share->first_free = shared->handle;
    lock_release(&share->lock);
}

bool shared_drop(struct shared *shared)
{
    struct share *share = shared->share;
    bool last;

    lock_acquire(&share->lock);
    last = --shared->structures == 0;
    if (last)
        list_remove(&shared->node);
    lock_release(&share->lock);
    if (last)
        free(shared);
    return last;
}

/* --- device memory
 * ---------------------------------------------------------------------------------------------- */

static char *unit_at(const struct share *share, uint32_t unit)
{
    return (char *)share->page + HEAD_SIZE + (size_t)unit * SHARE_UNIT;
}

static uint32_t units_of(uint64_t length)
{
    return (uint32_t)((length + SHARE_UNIT - 1) / SHARE_UNIT);
}

static bool take_unit(struct share_page *page, uint32_t unit)
{
    uint64_t bit = 1ull << (unit % 64);

    /* Acquire: partner of the release in give_units(); the memory was cleared before. */
    return !(atomic_fetch_or_explicit(&page->taken[unit / 64], bit, memory_order_acquire) & bit);
}

static void give_units(struct share_page *page, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i != first + count; i++)
        atomic_fetch_and_explicit(&page->taken[i / 64], ~(1ull << (i % 64)), memory_order_release);
}

/* The lowest run of free units. A process that dies in here leaves units taken, no more. */
int share_memory_take(struct share *share, uint32_t handle, uint64_t length)
{
    struct share_page *page = share->page;
    uint32_t count = units_of(length);

    for (uint32_t first = 0; first + count <= UNITS;) {
        uint32_t got = 0;

        while (got < count && take_unit(page, first + got))
            got++;
        if (got == count) {
            page->dms[handle].first = first;
            page->dms[handle].length = length;
            return 0;
        }
        give_units(page, first, got);
        first += got + 1;
    }
    return -ENOMEM;
}

int share_memory_find(const struct share *share, uint32_t handle, char **ret_at, uint64_t *ret_length)
{
    /* Copied, then checked. */
    uint32_t first = __atomic_load_n(&share->page->dms[handle].first, __ATOMIC_RELAXED);

    *ret_length = __atomic_load_n(&share->page->dms[handle].length, __ATOMIC_RELAXED);
    if (first >= UNITS || *ret_length > (uint64_t)(UNITS - first) * SHARE_UNIT)
        return -EINVAL;
    *ret_at = unit_at(share, first);
    return 0;
}

void share_memory_give(struct share *share, int fd, const char *at, uint64_t length)
{
    uint32_t first = (uint32_t)((size_t)(at - unit_at(share, 0)) / SHARE_UNIT), count = units_of(length);

    if (sys_punch_hole(fd, (off_t)(at - (const char *)share->page), (off_t)count * SHARE_UNIT) != 0)
        memset(unit_at(share, first), 0, (size_t)count * SHARE_UNIT);
    give_units(share->page, first, count);
}
