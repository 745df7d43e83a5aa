/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that several processes map: the door of the room.
 *
 * The owner's side turns whole private pages of a range into a shared mapping of a sealed memfd (an arena),
 * at the same address and while other threads write to them, and back again; no write is lost either way.
 * Memory that is shared already stays as it is, and its file is found. The peer's side maps what it is told
 * of and reads and writes it with loads and stores. What is promised and what is not: docs/mapped.md.
 *
 * Everything here may be called from any thread, but not inside a rundown section and not with a lock held: a
 * call may take as long as copying the range takes. errno is left alone.
 */
#ifndef MAPPED_MAPPED_H
#define MAPPED_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* --- why memory is not mapped --------------------------------------------------------------------- */

enum mapped_reason {
    MAPPED_YES,
    MAPPED_OFF,           /* SOFTHCA_MAPPED=0 */
    MAPPED_PARTIAL_PAGE,  /* shares its page with memory outside of the range */
    MAPPED_NOTHING_THERE, /* no mapping */
    MAPPED_NOT_WRITABLE,  /* the program itself may not read and write it */
    MAPPED_EXECUTABLE,    /* the program may execute it */
    MAPPED_PRIVATE_FILE,  /* private mapping of a file: data of a library, private huge pages */
    MAPPED_STACK,         /* stack or thread control block */
    MAPPED_NO_DESCRIPTOR, /* shared already, but its file is not to be found */
    MAPPED_USERFAULTFD,   /* under a userfaultfd of the program's */
    MAPPED_SPECIAL,       /* the kernel keeps it from userfaultfd: devices, sealed mappings, guard pages */
    MAPPED_PINNED, /* the kernel holds pages of this process (io_uring's fixed buffers, VFIO, an RDMA NIC) */
    MAPPED_LOCK_LIMIT, /* RLIMIT_MEMLOCK */
    MAPPED_MAP_LIMIT,  /* a quarter of vm.max_map_count is used up, or the program needs the rest */
    MAPPED_FILE_LIMIT, /* RLIMIT_FSIZE */
    MAPPED_NO_MEMORY,  /* out of memory, RLIMIT_AS, or the overcommit limit */
    MAPPED_THREADS,    /* no userfaultfd, and the program has more than one thread */
    MAPPED_KERNEL,     /* the kernel, or a sandbox, lacks what it takes */
    MAPPED_TOOL,       /* under valgrind or rr */
    MAPPED_CHANGED,    /* the program changed the mapping meanwhile */
    MAPPED_LAYERS,     /* all places for this address are still in use */
    MAPPED_PIECES,     /* the range is in too many pieces */
    MAPPED_CALLS_FAIL, /* nobody asked, and system calls of the program could fail meanwhile */
    MAPPED_SANDBOX,    /* nobody asked, and a seccomp filter is about */
    MAPPED_OVERCOMMIT, /* nobody asked, and vm.overcommit_memory is 2 */
    MAPPED_SHARE,      /* nobody asked, and it would be more than a quarter of the memory there is */
    MAPPED_PUT_OFF,    /* nobody asked, and no QP has had a peer on this host so far */
    MAPPED_REASONS,
};
/* A few words for people, without a full stop; never NULL. */
const char *mapped_reason_text(enum mapped_reason reason);

/* --- owner's side --------------------------------------------------------------------------------- */

/* What peers are to be able to do. Peers that may only read get a descriptor that does only that. */
enum mapped_access { MAPPED_PEERS_READ = 1, MAPPED_PEERS_WRITE = 2 };

/* A part of a range that a peer can map, without pointers: [address, address + length) of the owner is at
 * `offset` of file number `file` (mapped_file_describe()). The generation changes whenever the place does. */
struct mapped_piece {
    uint64_t address, length, offset;
    uint32_t file, generation;
};

/* A part of a range that is not mapped, and why. */
struct mapped_refusal {
    uint64_t address, length;
    enum mapped_reason reason;
};

/* One registration of a range. Ranges may overlap and repeat: pages are switched back with their last region.
 */
struct mapped_region;

/* Switches what can be switched. NULL when there is no memory for the handle (errno is not set); a region
 * without a single piece otherwise, if it must be. */
struct mapped_region *mapped_add(uint64_t address, uint64_t length, unsigned access);
/* The pages become private again, as they were, as far as they are still ours: memory that the program has
 * freed or put something else in place of is not touched. `stores_may_come`: an initiator may still write to
 * the old place; it stays out of use until mapped_forget_orphans(). NULL is fine. */
void mapped_remove(struct mapped_region *region, bool stores_may_come);
/* Both fill at most `max` and return how many there are. Pieces ascend. They stay as they are until
 * mapped_remove(), mapped_move() of one of their pages, or a fork (in the child). */
unsigned mapped_pieces(const struct mapped_region *region, struct mapped_piece *ret_pieces, unsigned max);
unsigned mapped_refusals(const struct mapped_region *region, struct mapped_refusal *ret_refusals,
                         unsigned max);

/* Revocation: what is mapped of the range moves to another place in its arena, with its contents, so that
 * whoever still writes to the old place does so in vain. Pieces of every region that overlaps it change; the
 * caller has made sure that nobody else uses the old ones. 0, or -errno when part of it could not be moved.
 */
int mapped_move(uint64_t address, uint64_t length);
/* No initiator is left that may write to places which were given up. */
void mapped_forget_orphans(void);

enum mapped_kind {
    MAPPED_KIND_ARENA,  /* ours: sealed, of the size MAPPED_ARENA_SIZE */
    MAPPED_KIND_SEALED, /* a memfd of the program's that cannot shrink */
    MAPPED_KIND_FILE, /* tmpfs, hugetlbfs or a memfd of the program's that could be truncated under its users
                       */
    MAPPED_KIND_SYSV, /* System V shared memory: attach by number */
};
struct mapped_file_description {
    enum mapped_kind kind;
    bool writable;   /* peers may get a descriptor for writing */
    int shmid;       /* MAPPED_KIND_SYSV */
    uint64_t inode;  /* with the device: to prove that it is the right one */
    uint64_t device; /* dev_t */
    uint64_t size;
};
/* -ENOENT: there is no such file (any more). */
int mapped_file_describe(uint32_t file, struct mapped_file_description *ret_description);
/* Where the descriptor is, for peers who may look into this process (/proc/PID/task/THREAD/fd/FD): the kernel
 * asks whether they may. For arenas; neither changes until a fork. -ENOENT. */
int mapped_file_place(uint32_t file, pid_t *ret_thread, int *ret_fd);
/* A descriptor of the caller's to pass on, to be closed afterwards; -errno. Not for MAPPED_KIND_SYSV. */
int mapped_file_open(uint32_t file, bool writable);

/* While pages are being switched, system calls that write into them fail with EFAULT where only the user-mode
 * userfaultfd is allowed. Our own (process_vm_readv into registered memory) must not report that: load the
 * epoch before the call; if it failed with EFAULT and mapped_disturbed() says true, which waits for the end
 * of the switch, repeat it. */
uint32_t mapped_epoch(void);
bool mapped_disturbed(uint32_t epoch_before);

/* What the room needs of the engine where there is no userfaultfd: our other threads, which it may disregard,
 * since pause() keeps them from registered memory until resume(). */
struct mapped_ports {
    bool (*is_our_thread)(pid_t thread);
    void (*pause)(void);
    void (*resume)(void);
};
void mapped_set_ports(const struct mapped_ports *ports);

/* Around fork(), by pthread_atfork: the child gets private copies at the same addresses; in it, everything
 * else of the room is as if it had never been used. A child of a raw clone() does not have the memory at all.
 */
void mapped_fork_prepare(void);
void mapped_fork_parent(void);
void mapped_fork_child(void);

/* May memory be switched of a program that did not ask for it, because it cannot notice? MAPPED_YES: from now
 * on, so much of it. Starts nothing, and tries nothing that could do harm. */
enum mapped_reason mapped_unasked(void);

/* For diagnosis: what this process could do, and what it does. */
struct mapped_means {
    enum mapped_reason reason; /* why nothing can be switched; MAPPED_YES: it can */
    bool system_calls_wait;    /* full userfaultfd: they are held up during a switch and do not fail */
    bool single_thread;        /* no userfaultfd: only while the program has one thread */
    uint64_t lock_limit;       /* bytes that may be switched; UINT64_MAX: any */
    uint32_t map_limit;        /* mappings that may be used */
};
void mapped_probe(struct mapped_means *ret_means);
struct mapped_counts {
    uint64_t bytes;     /* switched now */
    uint64_t lingering; /* of these, without a region: the kernel holds pages (MAPPED_PINNED), or giving them
                           back now would take more mappings than there may be */
    uint64_t orphaned;  /* out of use */
    uint32_t maps;      /* mappings this takes */
};
void mapped_count(struct mapped_counts *ret_counts);

/* --- peer's side ---------------------------------------------------------------------------------- */

/* A file of a peer's that we may map. */
struct mapped_file;
/* Part of it, mapped. */
struct mapped_view;

/* Takes a copy of the descriptor, if it is what the description says and belongs to our user. NULL:
 * *ret_error is -errno (-EBADF: it is not what was announced; -EPERM: its owner could truncate it, so that an
 * access here would be a SIGBUS, unless `may_shrink` accepts that). For MAPPED_KIND_SYSV there is no
 * descriptor. */
struct mapped_file *mapped_file_accept(int fd, const struct mapped_file_description *description,
                                       bool writable, bool may_shrink, int *ret_error);
/* No view of it is in use any more. NULL is fine. */
void mapped_file_drop(struct mapped_file *file);
/* Views of whole pages, kept for later after mapped_detach() as long as there are not too many: a range that
 * was attached lately costs a look-up. NULL: *ret_error (-ERANGE: not in the file; -ENOMEM; -EMFILE: too many
 * in use). */
struct mapped_view *mapped_attach(struct mapped_file *file, uint64_t offset, uint64_t length, int *ret_error);
void mapped_detach(struct mapped_view *view);
/* Where that offset of the file is. Writing is for files that were accepted writable. */
void *mapped_view_address(const struct mapped_view *view, uint64_t offset);

/* Size of every arena: 2^48 bytes, the address space, in 16 layers. */
#define MAPPED_ADDRESS_BITS 48
#define MAPPED_LAYERS_COUNT 16u
#define MAPPED_ARENA_SIZE   ((uint64_t)MAPPED_LAYERS_COUNT << MAPPED_ADDRESS_BITS)

#endif
