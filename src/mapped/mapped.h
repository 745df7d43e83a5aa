/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that several processes map: the public header of the room.
 *
 * The owner turns whole private pages of a range into a shared mapping of a sealed memfd (an arena), at the same
 * address and while other threads write to them, and later turns them back; no write is lost in either direction.
 * Memory that is shared already stays as it is, and the room finds the file behind it. A peer maps the files
 * that the owner describes, and reads and writes them with loads and stores. Guarantees and limits: docs/mapped.md.
 *
 * Every function may be called from any thread, but not inside a rundown section and not with a lock held: a call may
 * take as long as copying the range takes. errno is preserved. */
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
    MAPPED_NOTHING_THERE, /* nothing is mapped at the address */
    MAPPED_NOT_WRITABLE,  /* not both readable and writable for the program itself */
    MAPPED_EXECUTABLE,    /* executable memory */
    MAPPED_PRIVATE_FILE,  /* private mapping of a file: data of a library, private huge pages */
    MAPPED_STACK,         /* stack or thread control block */
    MAPPED_NO_DESCRIPTOR, /* shared already, but the room cannot open its file */
    MAPPED_USERFAULTFD,   /* registered with a userfaultfd of the program */
    MAPPED_SPECIAL,       /* userfaultfd does not support it: device memory, sealed mappings, guard pages */
    MAPPED_PINNED,        /* pages of this process are pinned (io_uring fixed buffers, VFIO, an RDMA NIC) */
    MAPPED_LOCK_LIMIT,    /* RLIMIT_MEMLOCK */
    MAPPED_MAP_LIMIT,     /* a quarter of vm.max_map_count is used up, or the program needs the rest */
    MAPPED_FILE_LIMIT,    /* RLIMIT_FSIZE */
    MAPPED_NO_MEMORY,     /* out of memory, RLIMIT_AS, or the overcommit limit */
    MAPPED_THREADS,       /* pages are switched only in calls of a single thread, and the program has more */
    MAPPED_KERNEL,        /* the kernel lacks a system call, or a sandbox blocks one */
    MAPPED_TOOL,          /* under valgrind or rr */
    MAPPED_CHANGED,       /* the program changed the mapping during the switch */
    MAPPED_LAYERS,        /* all layers of the arena hold something at this address still */
    MAPPED_PIECES,        /* the range consists of too many mappings */
    MAPPED_CALLS_FAIL,    /* not requested, and there is no userfaultfd, not even in user mode */
    MAPPED_ASYNC,         /* not requested, as MAPPED_THREADS, and the program uses io_uring or Linux AIO */
    MAPPED_SANDBOX,       /* not requested, and a seccomp filter is active */
    MAPPED_OVERCOMMIT,    /* not requested, and vm.overcommit_memory is 2 */
    MAPPED_SHARE,         /* not requested, and above a quarter of the available memory */
    MAPPED_PUT_OFF,       /* not requested, and no peer has accessed it often */
    MAPPED_OLD_UFFD,      /* not requested, and the kernel's userfaultfd is that of before Linux 5.14 */
    MAPPED_REASONS,
};
/* A short text for users, without a full stop; never NULL. */
const char *mapped_reason_text(enum mapped_reason reason);

/* --- owner's side --------------------------------------------------------------------------------- */

/* The access that peers get. A peer with MAPPED_PEERS_READ alone gets a descriptor that only reads. */
enum mapped_access { MAPPED_PEERS_READ = 1, MAPPED_PEERS_WRITE = 2 };

/* A part of a range that a peer can map, without pointers: [address, address + length) of the owner is at `offset` of
 * file number `file` (mapped_file_describe()). The generation changes whenever the offset does. */
struct mapped_piece {
    uint64_t address, length, offset;
    uint32_t file, generation;
};

/* A part of a range that is not mapped, and the reason. */
struct mapped_refusal {
    uint64_t address, length;
    enum mapped_reason reason;
};

/* One registration of a range. Ranges may overlap and repeat: a page is switched back when its last region is
 * removed. */
struct mapped_region;

/* Switches every page that can be switched. Returns NULL when the handle cannot be allocated (errno is not set). A
 * region may have no piece at all. */
struct mapped_region *mapped_add(uint64_t address, uint64_t length, unsigned access);
/* The same in portions, for memory that is accessed meanwhile. before(start, end): the pages [start, end) are
 * switched next; false: not now, and the region ends there. after(start, end) follows when they are switched, or
 * could not be. Both are called while the calling thread waits, by another one, and must not call this room. `size`
 * is a power of two. */
struct mapped_portions {
    uint64_t size;
    bool
        unhindered; /* mapped_hindrance() has said MAPPED_YES in this call of the program: it is not asked again */
    bool (*before)(uint64_t start, uint64_t end);
    void (*after)(uint64_t start, uint64_t end);
};
struct mapped_region *mapped_add_in_portions(uint64_t address, uint64_t length, unsigned access,
                                             const struct mapped_portions *portions);
/* The pages become private again, as they were, where the mapping is still the arena's: memory that the program has
 * freed or mapped over is not touched. `stores_may_come`: an initiator may still write to the old offsets, which stay
 * out of use until mapped_forget_orphans(). NULL is allowed. */
void mapped_remove(struct mapped_region *region, bool stores_may_come);
/* Both fill at most `max` entries and return how many exist. Pieces ascend. A piece stays valid until
 * mapped_remove(), until mapped_move() of one of its pages, or, in the child, until fork(). */
unsigned mapped_pieces(const struct mapped_region *region, struct mapped_piece *ret_pieces, unsigned max);
unsigned mapped_refusals(const struct mapped_region *region, struct mapped_refusal *ret_refusals,
                         unsigned max);

/* Revocation: the mapped pages of the range move to another offset of their arena, with their contents, so that late
 * writes of a peer hit only the old offset. Pieces of every overlapping region change; the caller has made sure that
 * no thread of this process uses the old pieces. Returns 0, or -errno when a part could not be moved. */
int mapped_move(uint64_t address, uint64_t length);
/* No initiator is left that may write to abandoned offsets; they can be used again. */
void mapped_forget_orphans(void);

enum mapped_kind {
    MAPPED_KIND_ARENA,  /* made by this room: sealed, MAPPED_ARENA_SIZE bytes */
    MAPPED_KIND_SEALED, /* a memfd of the program that cannot shrink or grow */
    MAPPED_KIND_FILE,   /* tmpfs, hugetlbfs or a memfd of the program; may be truncated */
    MAPPED_KIND_SYSV,   /* System V shared memory: attached by number */
};
struct mapped_file_description {
    enum mapped_kind kind;
    bool writable;   /* peers may get a descriptor that also writes */
    int shmid;       /* MAPPED_KIND_SYSV */
    uint64_t inode;  /* with `device`, identifies the file */
    uint64_t device; /* dev_t */
    uint64_t size;
};
/* -ENOENT: no such file, or not any more. */
int mapped_file_describe(uint32_t file, struct mapped_file_description *ret_description);
/* The place of an arena's descriptor, for peers that open /proc/PID/task/THREAD/fd/FD; the kernel checks their
 * permission (ptrace access). Both values stay the same until a fork. -ENOENT. */
int mapped_file_place(uint32_t file, pid_t *ret_thread, int *ret_fd);
/* Opens a descriptor for the caller, to be passed on and closed afterwards; -errno. Not for MAPPED_KIND_SYSV. */
int mapped_file_open(uint32_t file, bool writable);

/* While pages are being switched, system calls that write into them fail with EFAULT where the process has only a
 * user-mode userfaultfd. System calls of SoftHCA (process_vm_readv() into registered memory) must not report that
 * error: load the epoch before the call; if the call failed with EFAULT and mapped_disturbed() returns true, repeat
 * the call. mapped_disturbed() waits for the end of the switch. */
uint32_t mapped_epoch(void);
bool mapped_disturbed(uint32_t epoch_before);

/* Callbacks into the engine for processes without the full userfaultfd. Threads of SoftHCA do not count as threads of
 * the program, because pause() keeps them from registered memory until resume(). One pause at a time. */
struct mapped_ports {
    bool (*is_our_thread)(pid_t thread);
    void (*pause)(void);
    void (*resume)(void);
};
void mapped_set_ports(const struct mapped_ports *ports);

/* Handlers for pthread_atfork(): the child gets private copies at the same addresses, and the room starts afresh
 * in it. A child of a raw clone() does not have the memory at all. */
void mapped_fork_prepare(void);
void mapped_fork_parent(void);
void mapped_fork_child(void);

/* May memory of a program that did not set SOFTHCA_MAPPED be switched, because the program cannot notice? MAPPED_YES
 * also sets the limit of bytes. *ret_in_calls: only in calls of the program's single thread into SoftHCA, since system
 * calls of other threads could fail; mapped_add() refuses otherwise. Starts no thread and makes no system call that a
 * sandbox could punish. */
enum mapped_reason mapped_unasked(bool *ret_in_calls);
/* The part of it that is the kernel's userfaultfd: MAPPED_YES, MAPPED_CALLS_FAIL or MAPPED_OLD_UFFD. */
enum mapped_reason mapped_stops_writers(bool *ret_in_calls);

/* Why nothing can be switched in this call, though it can in others (*ret_in_calls above); MAPPED_YES: it can. */
enum mapped_reason mapped_hindrance(void);

/* For diagnosis: the abilities of this process, and its use of them. */
struct mapped_means {
    enum mapped_reason reason; /* why nothing can be switched; MAPPED_YES: switching works */
    bool system_calls_wait;    /* full userfaultfd: system calls wait during a switch and do not fail */
    bool single_thread;        /* switching works only while the program has one thread */
    uint64_t lock_limit;       /* bytes that may be switched; UINT64_MAX: any */
    uint32_t map_limit;        /* mappings that may be used */
};
void mapped_probe(struct mapped_means *ret_means);
struct mapped_counts {
    uint64_t bytes; /* switched now */
    /* Of these, without a region: pages are pinned (MAPPED_PINNED), or switching them back now would exceed the
     * limit of mappings. */
    uint64_t lingering;
    uint64_t orphaned; /* offsets that peers may still write to */
    uint32_t maps;     /* mappings in use for this */
};
void mapped_count(struct mapped_counts *ret_counts);

/* --- peer's side ---------------------------------------------------------------------------------- */

/* A file of a peer that this process may map. */
struct mapped_file;
/* A mapped part of such a file. */
struct mapped_view;

/* Duplicates the descriptor, if the file matches the description and belongs to the same user. NULL: *ret_error is
 * -errno (-EBADF: the file does not match; -EPERM: its owner could truncate the file, so that an access would raise
 * SIGBUS, and `may_shrink` does not accept that). For MAPPED_KIND_SYSV there is no descriptor. */
struct mapped_file *mapped_file_accept(int fd, const struct mapped_file_description *description,
                                       bool writable, bool may_shrink, int *ret_error);
/* The caller has detached every view of the file. NULL is allowed. */
void mapped_file_drop(struct mapped_file *file);
/* Views of whole pages. A detached view stays mapped as long as there are few, so that attaching a recent range again
 * is only a look-up. NULL: *ret_error (-ERANGE: not in the file; -ENOMEM; -EMFILE: too many in use). */
struct mapped_view *mapped_attach(struct mapped_file *file, uint64_t offset, uint64_t length, int *ret_error);
void mapped_detach(struct mapped_view *view);
/* The address of an offset of the file. Only views of files accepted as writable may be written. */
void *mapped_view_address(const struct mapped_view *view, uint64_t offset);

/* Size of every arena: 2^48 bytes, the address space, in 16 layers. */
#define MAPPED_ADDRESS_BITS 48
#define MAPPED_LAYERS_COUNT 16u
#define MAPPED_ARENA_SIZE   ((uint64_t)MAPPED_LAYERS_COUNT << MAPPED_ADDRESS_BITS)

#endif
