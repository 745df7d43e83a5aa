/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Owner side: what the files of the room share. mapped_lock guards all of it. mapped_lock is taken with no other
 * lock held, because its holder may wait for the keeper to switch gigabytes. */
#ifndef MAPPED_INTERNAL_H
#define MAPPED_INTERNAL_H

#include "base/list.h"
#include "base/lock.h"
#include "base/maps.h"
#include "mapped/extents.h"
#include "mapped/keeper.h"
#include "mapped/mapped.h"
#include "mapped/switch.h"

#define FIRST_FOREIGN_FILE KEEPER_ARENAS
#define LAYER_OF(offset)   ((offset) >> MAPPED_ADDRESS_BITS)
#define ADDRESS_MASK       (((uint64_t)1 << MAPPED_ADDRESS_BITS) - 1)
/* A region with more pieces is not mapped beyond them. */
#define PIECES_MAX 256
/* A mapping of at least this length gets a guard page, which keeps mremap() from growing it (owner.c). */
#define MAY_GROW (128u << 10)

/* Peers may write arena 0; they get read-only descriptors of arena 1. */
enum { ARENA_WRITABLE, ARENA_READ_ONLY };

struct arena {
    struct extents live, orphans;
};

struct mapped_region {
    struct list node;
    uint64_t address, length;
    uint32_t process; /* owner.process at creation: a region of the parent is void in a forked child */
    unsigned access;
    unsigned piece_count, piece_room, refusal_count, refusal_room;
    unsigned guards; /* guard pages: they keep mremap() from growing a mapping */
    struct mapped_piece *pieces;
    struct mapped_refusal *refusals;
};

struct owner {
    struct arena arena[KEEPER_ARENAS];
    struct list regions;
    bool regions_ready;
    uint32_t generation;
    uint32_t process;        /* counts forks; handles from before a fork are void */
    uint64_t bytes_limit;    /* limit of switched bytes; 0: none */
    bool in_calls;           /* without the full userfaultfd, only in calls of the program's single thread */
    uint64_t locked_bytes;   /* switched bytes that count against RLIMIT_MEMLOCK only because of the switch */
    uint64_t lingering;      /* bytes without a region whose pages are pinned */
    uint64_t waiting;        /* bytes without a region in extents with `waits` */
    uint32_t guards_waiting; /* upper limit of guard pages in these */
    uint32_t guards;         /* guard pages of all regions */
    const struct mapped_ports *ports;
};
extern struct lock mapped_lock;
extern struct owner owner;
/* The forking thread holds mapped_lock from the prepare handler to the parent or child handler, and fork handlers of
 * the program may call this room in between: owner_enter() takes the lock only once per thread. false: this is
 * the child and its handler has not run yet; the caller returns without doing anything. */
bool owner_enter(void);
void owner_leave(void);
bool owner_is_forking(void); /* the calling thread is between the fork handlers */

/* --- allowed.c: may it be switched? --- */
/* Checks SOFTHCA_MAPPED, and tools that the program runs under. */
enum mapped_reason forbidden_from_outside(void);
/* Checks that do not depend on the range; starts the keeper. */
enum mapped_reason allowed_at_all(void);
/* Has the kernel pinned pages of the process? They must not be replaced. */
bool pages_are_pinned(void);
/* How pages can be switched at this moment. */
enum switch_means {
    SWITCH_NOT,
    SWITCH_BY_FAULTS, /* userfaultfd stops whoever accesses them */
    SWITCH_ALONE,     /* nobody accesses them: the calling thread is the only one, and ours are paused */
};
/* must: late stores of a peer make it necessary, and system calls of the program may fail. */
enum switch_means switch_means(bool must);
/* After mapped_hindrance() in the same call of the program. */
enum switch_means switch_means_unhindered(void);
/* Why the caller is not alone with the memory: there are other threads, or the kernel may write by itself (io_uring,
 * Linux AIO). MAPPED_YES: it is. */
enum mapped_reason not_alone(void);
/* Finds the first part of [start, end) of the mapping that is, or may be, a stack or thread control block. Returns
 * its start and sets *ret_end; both are `end` if there is none. Whole pages. */
uint64_t stack_in(const struct mapping *mapping, uint64_t start, uint64_t end, uint64_t *ret_end);
/* `mappings`: the range needs a mapping of its own. */
enum mapped_reason allowed_by_budget(uint64_t length, bool locked_by_program, bool mappings);
/* Does the limit allow one more run (extents that continue each other)? */
bool budget_has_a_run(uint32_t limit);
uint64_t lock_limit(void);
uint32_t map_limit(void);
/* Mappings in use for the extents of both arenas and their guard pages. */
uint32_t maps_used(void);

/* --- files.c: memory that is shared already --- */
/* Finds or opens the file behind the mapping and takes a reference. MAPPED_YES: *ret_file is its number. */
enum mapped_reason file_use(const struct mapping *mapping, bool write, uint32_t *ret_file);
void file_unuse(uint32_t file);
void files_after_fork_in_child(void);

/* --- region.c: lists of pieces --- */
struct mapped_region *region_new(uint64_t address, uint64_t length, unsigned access);
void region_free(struct mapped_region *region);
/* Extends the last piece if the new one continues it. 0 or -ENOMEM. */
int region_add_piece(struct mapped_region *region, const struct mapped_piece *piece);
int region_add_refusal(struct mapped_region *region, uint64_t address, uint64_t length,
                       enum mapped_reason reason);
/* Reserves space for one region_relocate(). 0 or -ENOMEM. */
int region_reserve(struct mapped_region *region);
/* [from, from + length) of the file has moved to `to`. */
void region_relocate(struct mapped_region *region, uint32_t file, uint64_t from, uint64_t length, uint64_t to,
                     uint32_t generation);

/* --- place.c: extents in and out --- */
/* Switches private pages [start, end) of one mapping into the arena; *ret_done is how many bytes from the start were
 * switched. */
enum mapped_reason place_in(uint64_t start, uint64_t end, unsigned arena, bool locked_by_program, bool alone,
                            const struct mapped_portions *portions, uint64_t *ret_done, uint64_t *ret_offset);
/* Would the kernel merge [start, end) in the arena with a neighbour into one mapping? */
bool place_continues(uint64_t start, uint64_t end, unsigned arena);
/* Adds a region to pages that are in an arena already. -ENOMEM; -ESTALE: the arena has no such extent. */
int place_use(unsigned arena, uint64_t offset, uint64_t length);
/* Removes a region from the pages; pages without any region are switched back, or wait until that takes no more
 * mappings. */
void place_unuse(unsigned arena, uint64_t offset, uint64_t length, bool stores_may_come);
int place_move(unsigned arena, uint64_t address, uint64_t offset, uint64_t length);
uint32_t place_generation(unsigned arena, uint64_t offset);
/* Tries again to switch back pinned extents, and waiting extents if mappings are available. */
void place_sweep(void);
void place_forget_orphans(unsigned arena);
uint64_t place_lingering_bytes(unsigned arena);

/* --- peer.c --- */
void views_after_fork_in_child(void);
/* Is this address a view (peer.c), and not memory of the program? A process may be its own peer. Takes views_lock,
 * which ranks below mapped_lock. */
bool is_view(uint64_t address);

#endif
