/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fork(): before it, the shadows get a copy of the contents, so that the child, which inherits them, only has to move
 * them into place: the parent waits for nothing in the child. Until mapped_fork_child() has run, the child sees the
 * shared pages, so that fork handlers of the program which run earlier find their memory. Children of a raw clone()
 * do not have the pages (MADV_DONTFORK). The kernel treats pages that a NIC has pinned alike: it copies them at
 * fork(). */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"
#include "mapped/internal.h"
#include "mapped/window.h"

static __thread bool forking __attribute__((tls_model("initial-exec")));
static pid_t parent; /* process that forks; valid while `forking` */

static pid_t own_pid(void)
{
    return (pid_t)syscall(SYS_getpid); /* glibc of old cached getpid() */
}

bool owner_enter(void)
{
    if (!forking) {
        lock_acquire(&mapped_lock);
        return true;
    }
    return own_pid() == parent;
}

void owner_leave(void)
{
    if (!forking)
        lock_release(&mapped_lock);
}

bool owner_is_forking(void)
{
    return forking;
}

static void switch_copy_call(void *argument)
{
    switch_copy(argument);
}

static void *address_of(const struct extent *extent)
{
    return (void *)(uintptr_t)(extent->start & ADDRESS_MASK);
}

#define for_each_live(arena, extent)                                                                         \
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++)                                                 \
        for (struct extent *extent = extents_from(&owner.arena[arena].live, 0); extent;                      \
             extent = extents_from(&owner.arena[arena].live, extent->end))

/* The end of the run of extents that continue each other in every respect: to the kernel they are one mapping. */
static uint64_t end_of_run(unsigned arena, const struct extent *extent)
{
    const struct extent *next;

    while ((next = extents_from(&owner.arena[arena].live, extent->end)) != NULL &&
           extent_continues(extent, next))
        extent = next;
    return extent->end;
}

static void mark_run(unsigned arena, struct extent *extent, uint64_t end, bool in_fork)
{
    for (; extent && extent->start < end; extent = extents_from(&owner.arena[arena].live, extent->end))
        extent->in_fork = in_fork;
}

static void prepare_run(unsigned arena, struct extent *extent, uint64_t end)
{
    struct switch_copy request = {.address = (uintptr_t)address_of(extent),
                                  .length = end - extent->start,
                                  .arena = arena,
                                  .offset = extent->start,
                                  .shadow = extent->shadow};

    keeper_call(switch_copy_call, &request);
    if (!request.error)
        request.error = sys_madvise(address_of(extent), request.length, MADV_DOFORK);
    mark_run(arena, extent, end, request.error == 0);
}

void mapped_fork_prepare(void)
{
    lock_acquire(&mapped_lock); /* released in mapped_fork_parent(); the child initializes it anew */
    parent = own_pid();
    forking = true;
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++) {
        struct extent *extent = extents_from(&owner.arena[arena].live, 0);

        while (extent) {
            uint64_t end = end_of_run(arena, extent);

            prepare_run(arena, extent, end);
            /* A part of the run is unmapped or moved: copy each extent by itself. */
            for (struct extent *one = extent; !extent->in_fork && one && one->start < end;
                 one = extents_from(&owner.arena[arena].live, one->end))
                if (one != extent || one->end != end)
                    prepare_run(arena, one, one->end);
            extent = extents_from(&owner.arena[arena].live, end);
        }
    }
}

void mapped_fork_parent(void)
{
    for_each_live(arena, extent)
    {
        if (extent->in_fork)
            sys_madvise(address_of(extent), extent_length(extent), MADV_DONTFORK);
        extent->in_fork = false;
        /* Only the child needs the copies. */
        sys_madvise((void *)extent->shadow, extent_length(extent), MADV_DONTNEED);
        sys_mprotect((void *)extent->shadow, extent_length(extent), PROT_NONE);
    }
    forking = false;
    lock_release(&mapped_lock);
}

static void free_all(struct extents *set)
{
    struct extent *extent;

    while ((extent = set->root) != NULL) {
        extents_remove(set, extent);
        free(extent);
    }
}

void mapped_fork_child(void)
{
    sys_forget_thread();
    for_each_live(arena, extent)
    {
        size_t length = extent_length(extent);

        if (!extent->in_fork)
            unmap(extent->shadow, length);
        else if (move_over(extent->shadow, length, (uintptr_t)address_of(extent)) != 0)
            unmap((uintptr_t)address_of(extent), length); /* the parent's memory */
    }
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++) {
        free_all(&owner.arena[arena].live);
        free_all(&owner.arena[arena].orphans);
    }
    owner = (struct owner){.process = owner.process + 1, .ports = owner.ports};
    files_after_fork_in_child();
    views_after_fork_in_child();
    keeper_after_fork_in_child();
    forking = false;
    lock_init(&mapped_lock);
}
