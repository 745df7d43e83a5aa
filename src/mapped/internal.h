/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of the room share of the owner's side. All of it is guarded by mapped_lock, which is taken
 * with no other lock held: whoever holds it may wait for the keeper to switch gigabytes. */
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
/* Regions of more pieces than this are not worth it. */
#define PIECES_MAX 256
/* Of so much that is mapped in one piece, one page keeps it from growing (owner.c). */
#define MAY_GROW (128u << 10)

/* Peers may write arena 0; of arena 1 they get descriptors that only read. */
enum { ARENA_WRITABLE, ARENA_READ_ONLY };

struct arena {
    struct extents live, orphans;
};

struct mapped_region {
    struct list node;
    uint64_t address, length;
    uint32_t process; /* owner.process when it was made: not of a parent */
    unsigned access;
    unsigned piece_count, piece_room, refusal_count, refusal_room;
    unsigned guards; /* pages that keep mappings from growing */
    struct mapped_piece *pieces;
    struct mapped_refusal *refusals;
};

struct owner {
    struct arena arena[KEEPER_ARENAS];
    struct list regions;
    bool regions_ready;
    uint32_t generation;
    uint32_t process;        /* counts forks: handles of before are void */
    uint64_t bytes_limit;    /* of what may be switched; 0: none */
    uint64_t locked_bytes;   /* that count against RLIMIT_MEMLOCK for our sake */
    uint64_t lingering;      /* bytes without a region, which the kernel keeps from being given back */
    uint64_t waiting;        /* bytes without a region in extents that wait */
    uint32_t guards_waiting; /* in these, at most */
    uint32_t guards;         /* of all regions */
    const struct mapped_ports *ports;
};
extern struct lock mapped_lock;
extern struct owner owner;
/* The thread that forks holds the lock from handler to handler, and handlers of the program may call us
 * meanwhile: these take it once. false: we are in the child and our handler has not run yet; there is nothing
 * to be done. */
bool owner_enter(void);
void owner_leave(void);
bool owner_is_forking(void); /* the calling thread, in one of its handlers */

/* --- allowed.c: may it be switched? --- */
/* SOFTHCA_MAPPED, and tools that the program runs under. */
enum mapped_reason forbidden_from_outside(void);
/* A small file of /proc or /sys; its length, 0 when there is none. */
size_t read_text(const char *path, char *text, size_t size);
/* Independent of the range; starts the keeper. */
enum mapped_reason allowed_at_all(void);
/* A kernel pin somewhere in the process: its pages must stay what they are. */
bool pages_are_pinned(void);
/* No userfaultfd: is the calling thread the only one of the program's? */
bool caller_is_alone(void);
/* The first part of [start, end) of the mapping that is a stack or thread control block, or near enough to be
 * one: where it begins, and *ret_end. Both are `end` if there is none. Whole pages. */
uint64_t stack_in(const struct mapping *mapping, uint64_t start, uint64_t end, uint64_t *ret_end);
/* `mappings`: it would be a mapping of its own. */
enum mapped_reason allowed_by_budget(uint64_t length, bool locked_by_program, bool mappings);
/* Whether there may be one more that continues no other. */
bool budget_has_a_run(uint32_t limit);
uint64_t lock_limit(void);
uint32_t map_limit(void);
/* Mappings that the extents of both arenas take, and the guards in them. */
uint32_t maps_used(void);

/* --- files.c: memory that is shared already --- */
/* Finds or opens the file behind the mapping and counts a use. MAPPED_YES: *ret_file is its number. */
enum mapped_reason file_use(const struct mapping *mapping, bool write, uint32_t *ret_file);
void file_unuse(uint32_t file);
void files_after_fork_in_child(void);

/* --- region.c: lists of pieces --- */
struct mapped_region *region_new(uint64_t address, uint64_t length, unsigned access);
void region_free(struct mapped_region *region);
/* -ENOMEM. Continues the last one where it can. */
int region_add_piece(struct mapped_region *region, const struct mapped_piece *piece);
int region_add_refusal(struct mapped_region *region, uint64_t address, uint64_t length,
                       enum mapped_reason reason);
/* Room for one region_relocate(). -ENOMEM. */
int region_reserve(struct mapped_region *region);
/* [from, from + length) of the file is at `to` now. */
void region_relocate(struct mapped_region *region, uint32_t file, uint64_t from, uint64_t length, uint64_t to,
                     uint32_t generation);

/* --- place.c: extents in and out --- */
/* Private pages [start, end) of one mapping into the arena; how much of it, from the start, was done. */
enum mapped_reason place_in(uint64_t start, uint64_t end, unsigned arena, bool locked_by_program, bool alone,
                            uint64_t *ret_done, uint64_t *ret_offset);
/* Would it be one mapping with what is next to it? */
bool place_continues(uint64_t start, uint64_t end, unsigned arena);
/* Pages that are in an arena already get one more region. -ENOMEM; -ESTALE: the arena does not know them. */
int place_use(unsigned arena, uint64_t offset, uint64_t length);
/* And one less; those without any go back, or wait until it takes no more mappings. */
void place_unuse(unsigned arena, uint64_t offset, uint64_t length, bool stores_may_come);
int place_move(unsigned arena, uint64_t address, uint64_t offset, uint64_t length);
uint32_t place_generation(unsigned arena, uint64_t offset);
/* Tries again what lingers, and what waits if there are mappings now. */
void place_sweep(void);
void place_forget_orphans(unsigned arena);
uint64_t place_lingering_bytes(unsigned arena);

/* --- peer.c --- */
void views_after_fork_in_child(void);
/* A process may be its own peer: is this a view, and not memory of the program's? Takes a lock below
 * mapped_lock. */
bool is_view(uint64_t address);

#endif
