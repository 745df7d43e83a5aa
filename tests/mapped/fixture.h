/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the tests of mapped memory share. Each test is a process of its own (support/runner.h), and runs once
 * for each way in which a kernel lets memory be switched (SOFTHCA_TEST_SWITCH). */
#ifndef TESTS_MAPPED_FIXTURE_H
#define TESTS_MAPPED_FIXTURE_H

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/types.h"
#include "mapped/extents.h"
#include "mapped/keeper.h"
#include "mapped/mapped.h"
#include "support/runner.h"
#include "support/side.h"

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))

enum way {
    WAY_FULL,  /* userfaultfd for every access */
    WAY_USER,  /* for accesses in user mode */
    WAY_MINOR, /* the same on a kernel that cannot write-protect shared pages, nor be asked for one mapping */
    WAY_ALONE, /* none: only while the program has one thread */
};
/* The first thing in a test that switches memory. Skips the test where the machine does not allow the way, or
 * does not allow `bytes` to be locked. */
enum way begin(uint64_t bytes);
/* run_topic(), or one skip for all where the machine does not allow the way. */
int run_mapped(const struct test *tests, size_t count, int argc, char **argv);

char *map(size_t length); /* private, anonymous, writable */
char *map_with(size_t length, int protection, int flags);
void fill(char *memory, size_t length, unsigned seed);
bool filled(const char *memory, size_t length, unsigned seed);

/* A region of which everything is mapped. */
struct mapped_region *add(const void *address, size_t length);
/* The reason why nothing of it is. */
enum mapped_reason refused(const void *address, size_t length);
/* Bytes of a region that are mapped. */
uint64_t mapped_bytes(const struct mapped_region *region);
/* What peers see at an address of ours: through a view of their own. */
char *peer_view(const struct mapped_region *region, const void *address);

bool is_shared(const void *address);
/* Under a sanitizer: mlock() does nothing, and its own memory lies where shadows would like to. */
bool sanitized(void);
unsigned count_maps(void);
unsigned count_maps_in(const void *address, size_t length);
unsigned count_fds(void);
uint64_t arena_blocks(void); /* bytes that the arenas take */
bool is_resident(const void *address);

/* Threads that increment random words and remember how often. */
struct writers;
struct writers *writers_start(void *memory, size_t length, unsigned threads);
/* Ends them. The number of increments that are not in memory. */
uint64_t writers_finish(struct writers *writers, uint64_t *ret_total);

/* Cycles of a test: fewer in a normal run. */
unsigned cycles(unsigned normal, unsigned thorough);
/* Regions of a test that makes thousands of mappings: no more than 1000 where the kernel's list of mappings
 * has to be read (before Linux 6.11), because then each takes as long as there are mappings. */
unsigned many_regions(unsigned normal, unsigned thorough);

#endif
