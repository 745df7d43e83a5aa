/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device file: creating and opening it, its list of processes, and device memory. shared.c says how processes
 * change it without locks, and what is checked. */
#include "base/fd.h"
#include "object/memory/share_internal.h"

#include <errno.h>
#include <fcntl.h>
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
#include "base/memory_file.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "object/device/context.h"

#define SHARE_MAGIC   0x3143484353414853ull
#define SHARE_VERSION 2u

static struct lock shares_lock = LOCK_INIT; /* guards the list, references, and `myself` */
static struct list shares = {&shares, &shares};

/* --- processes ------------------------------------------------------------------------------------------ */

/* The abstract socket by which other processes see that this process is running. Bound until the process ends. */
static struct {
    uint64_t tag;       /* even; 0: not chosen yet */
    uint64_t namespace; /* 0: the socket could not be bound, and this process always counts as running */
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

/* Is no socket bound to the tag's name? By a raw system call, because libc's connect() is a cancellation point. */
static bool is_unknown(uint64_t tag)
{
    int saved = errno, fd = fd_lift(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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

bool share_process_lives(const struct share_process *process)
{
    uint64_t tag = atomic_load_explicit(&process->tag, memory_order_acquire);
    uint64_t namespace = atomic_load_explicit(&process->namespace, memory_order_relaxed);

    if (!tag || (tag & TAG_ARRIVES))
        return false;
    if (tag == myself.tag || !namespace || namespace != network_namespace() || !is_unknown(tag))
        return true;
    /* Another process may have taken the place meanwhile. */
    return atomic_load_explicit(&process->tag, memory_order_acquire) != tag;
}

static void remove_traces(struct share_page *page, uint32_t index)
{
    const uint64_t others = ~(1ull << index);

    for (uint32_t i = 0; i < SHARE_DMS; i++)
        atomic_fetch_and_explicit(&page->dms[i].word, others, memory_order_relaxed);
    /* Regions have no users. */
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
    if (!vacant &&
        (tag & TAG_ARRIVES ? !is_unknown(tag & ~TAG_ARRIVES) : !tag || share_process_lives(process)))
        return false;
    if (!atomic_compare_exchange_strong_explicit(&process->tag, &tag, myself.tag | TAG_ARRIVES,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    if (tag)
        remove_traces(share->page, index);
    atomic_store_explicit(&process->namespace, myself.namespace, memory_order_relaxed);
    atomic_store_explicit(&process->pid, (uint32_t)getpid(), memory_order_relaxed);
    tag = myself.tag | TAG_ARRIVES;
    /* Release: partner of the acquire in share_process_lives(). */
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
    log_warn(
        "%u processes share the device of one context->cmd_fd (ibv_import_device) already, and no more can",
        SHARE_PROCESSES);
    return -ENOMEM;
}

/* Frees this process's place; the process uses no object of the file. */
static void leave(struct share *share)
{
    atomic_store_explicit(&share->page->process[share->index].namespace, 0, memory_order_relaxed);
    atomic_store_explicit(&share->page->process[share->index].tag, 0, memory_order_release);
}

/* --- the file ------------------------------------------------------------------------------------------- */

/* shares_lock held. */
static int map(int fd, const uint8_t id[16], struct share **ret_share)
{
    struct share *share = calloc(1, sizeof(*share));
    struct stat status;
    int error = -ENOMEM;

    if (!share)
        return error;
    if (fstat(fd, &status) == 0) {
        share->device = status.st_dev;
        share->inode = status.st_ino;
        share->owner = status.st_uid;
    }
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
    int error, fd = memory_file_make("softhca-device", FILE_SIZE);
    struct share_page *page;
    uint8_t id[16];

    if (fd < 0) {
        log_error("cannot create the shared memory behind context->cmd_fd (%u MiB): %s (limits: ulimit -n, "
                  "ulimit -f)",
                  (unsigned)(FILE_SIZE >> 20), strerror(-fd));
        return fd;
    }
    sys_random(id, sizeof(id));
    lock_acquire(&shares_lock);
    error = map(fd, id, ret_share);
    lock_release(&shares_lock);
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

/* Compares the inode, too, because any process with the file can write the id. */
static struct share *find(const uint8_t id[16], const struct stat *status)
{
    list_for_each (node, &shares) {
        struct share *share = list_entry(node, struct share, all);

        if (!memcmp(share->id, id, sizeof(share->id)) && share->inode == status->st_ino &&
            share->device == status->st_dev)
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
    uint64_t length;
    int error = 0;

    _Static_assert(offsetof(struct share_page, taken) == sizeof(head), "what is before");
    if (memory_file_check(fd, &length) != 0 || length != FILE_SIZE || fstat(fd, &status) != 0 ||
        sys_pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != SHARE_MAGIC ||
        head.version != SHARE_VERSION || head.size != FILE_SIZE)
        return -EINVAL;
    lock_acquire(&shares_lock);
    *ret_share = find(head.id, &status);
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

/* Inherited device files still map the device memory; the place in the list of processes is the parent's. The
 * socket is closed with all other descriptors of the parent (base/event.h). */
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
    return index < SHARE_PROCESSES && index != share->index && share_process_lives(process);
}

/* --- device memory -------------------------------------------------------------------------------------- */

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

    /* Acquire: the memory was cleared before. Partner: the release in give_units(). */
    return !(atomic_fetch_or_explicit(&page->taken[unit / 64], bit, memory_order_acquire) & bit);
}

static void give_units(struct share_page *page, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i != first + count; i++)
        atomic_fetch_and_explicit(&page->taken[i / 64], ~(1ull << (i % 64)), memory_order_release);
}

/* Takes the lowest run of free units. A process that dies in this function leaves units allocated. */
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
    /* Copied before they are checked: other processes may write the file. */
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
