/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device file (object/memory/share.c, shared.c), which other processes that have its descriptor write: this
 * process opens and adopts it, creates, finds, uses and ends objects and device memory, while the input changes any
 * byte of the page.
 *
 * Handles and addresses are in their range, however the page is; a structure is freed once; what is not changed works
 * as among honest processes; no descriptor and no mapping is left.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "fuzz.h"
#include "input.h"
#include "object/memory/share_internal.h"

#define STEPS      64u
#define STRUCTURES 16u
#define MEMORIES   8u

static struct input input;
static struct share *share;
static int file;
static struct share_page *page;
static struct {
    struct shared *shared;
    bool published, ended, used;
} structures[STRUCTURES];
static struct {
    char *at;
    uint64_t length;
    uint32_t handle;
} memories[MEMORIES];
static bool tampered;

enum step {
    CREATES,
    FINDS,
    USES,
    UNUSES,
    ENDS,
    DROPS,
    TAKES,
    GIVES,
    LOOKS,
    REGIONS,
    TAMPERS,
    ADOPTS,
    STEP_KINDS
};

static uint32_t most(enum share_kind kind)
{
    return kind == SHARE_PD ? LIMIT_PD : kind == SHARE_DM ? SHARE_DMS : SHARE_REGIONS;
}

static unsigned structures_of(const struct shared *shared)
{
    unsigned count = 0;

    for (unsigned i = 0; i < STRUCTURES; i++)
        count += structures[i].shared == shared;
    return count;
}

static void create_one(unsigned place, uint8_t choice)
{
    struct shared *shared;
    struct share_region region = {.handle = choice % 8, .length = 4096, .lkey = 1};

    if (structures[place].shared || shared_create(share, choice % 3, place, &shared) != 0)
        return;
    require(shared->handle < most(shared->kind) && shared->structures == 1 && !shared->users);
    require(!shared_is_alive(shared));
    structures[place].shared = shared;
    if (choice & 0x80)
        return; /* as if its process had failed in between */
    if (shared->kind == SHARE_MR) {
        for (unsigned i = 0; i < STRUCTURES; i++) {
            if (structures[i].shared && structures[i].shared->kind == SHARE_PD) {
                region.pd = structures[i].shared->handle;
                region.pd_generation = structures[i].shared->generation;
            }
        }
        share_region_fill(shared, &region);
    }
    shared_publish(shared);
    require(tampered || shared_is_alive(shared));
    structures[place].published = true;
}

static void find_one(unsigned place, uint8_t choice)
{
    struct shared *shared;
    uint32_t handle = choice & 0x80 ? input_32(&input) : choice % 8;
    uint64_t mask, value;

    if (structures[place].shared || shared_find(share, choice / 16 % 3, handle, place, &shared) != 0)
        return;
    require(handle == shared->handle && handle < most(shared->kind));
    require(shared->structures == structures_of(shared) + 1);
    require((atomic_load(shared_word(shared, &mask, &value)) & mask) == value || tampered);
    structures[place].shared = shared;
    structures[place].published = true;
}

static void use_one(unsigned place)
{
    struct shared *shared = structures[place].shared;
    int error;

    if (!shared || structures[place].used)
        return;
    error = shared_use(shared);
    require(error == 0 ||
            (error == -EINVAL && (tampered || !structures[place].published || structures[place].ended)));
    structures[place].used = !error;
}

static void unuse_one(unsigned place)
{
    if (structures[place].used)
        shared_unuse(structures[place].shared);
    structures[place].used = false;
}

static void end_one(unsigned place)
{
    struct shared *shared = structures[place].shared;
    int error;

    if (!shared)
        return;
    error = shared_end(shared);
    require(!shared->users || error == -EBUSY);
    require(error != -EBUSY || shared->users || tampered);
    if (error)
        return;
    require(!shared_is_alive(shared) && shared_end(shared) == -ENOENT);
    for (unsigned i = 0; i < STRUCTURES; i++) {
        if (structures[i].shared == shared)
            structures[i].ended = true;
    }
    shared_give_handle(shared);
}

static void drop_one(unsigned place)
{
    struct shared *shared = structures[place].shared;
    bool last = shared && structures_of(shared) == 1;

    if (!shared)
        return;
    unuse_one(place);
    memset(&structures[place], 0, sizeof(structures[place]));
    require(shared_drop(shared) == last);
}

/* Addresses of device memory are in the file, behind the page. */
static void check_memory(const char *at, uint64_t length)
{
    const char *begin = (const char *)share->page + HEAD_SIZE;

    require(at >= begin && length <= LIMIT_DM_SIZE && at + length <= begin + LIMIT_DM_SIZE);
}

static void take_memory(unsigned place, uint8_t choice)
{
    uint32_t handle = choice % SHARE_DMS;
    uint64_t length = 1 + ((uint64_t)input_16(&input) << (choice & 0x80 ? 5 : 0)) % LIMIT_DM_SIZE;

    if (memories[place].at || share_memory_take(share, handle, length) != 0 ||
        share_memory_find(share, handle, &memories[place].at, &memories[place].length) != 0) {
        return;
    }
    require(memories[place].length == length || tampered);
    check_memory(memories[place].at, memories[place].length);
    memories[place].handle = handle;
    if (memories[place].length)
        memories[place].at[memories[place].length - 1] = 1;
}

static void give_memory(unsigned place)
{
    if (memories[place].at)
        share_memory_give(share, file, memories[place].at, memories[place].length);
    memories[place].at = NULL;
}

static void look(uint8_t choice)
{
    uint64_t length;
    uint32_t pid;
    char *at;

    if (share_memory_find(share, choice % SHARE_DMS, &at, &length) == 0) {
        check_memory(at, length);
        if (length)
            (void)*(volatile char *)&at[length - 1];
    }
    require(!share_knows_process(share, share->index, &pid));
    (void)share_knows_process(share, choice & 0x80 ? input_32(&input) : choice, &pid);
}

static void find_region(unsigned place, uint8_t choice)
{
    const struct shared *pd = structures[choice / 16].shared;
    struct share_region region;
    struct shared *shared;

    if (!pd || pd->kind != SHARE_PD || structures[place].shared ||
        share_region_find(pd, choice % 8, &region, &shared) != 0)
        return;
    require(shared->kind == SHARE_MR && shared->handle < SHARE_REGIONS);
    require(region.handle == choice % 8 && region.pd == pd->handle && region.pd_generation == pd->generation);
    structures[place].shared = shared;
    structures[place].published = true;
}

static void tamper(unsigned number)
{
    tampered = true;
    switch (number % 8) {
    case 0:
        input_mutate(&input, page, offsetof(struct share_page, taken));
        break;
    case 1:
        input_mutate(&input, page->taken, sizeof(page->taken));
        break;
    case 2:
        input_mutate(&input, page->process, sizeof(page->process[0]) * 4);
        break;
    case 3:
        input_mutate(&input, page->dms, sizeof(page->dms[0]) * 8);
        break;
    case 4:
        input_mutate(&input, page->regions, sizeof(page->regions[0]) * 8);
        break;
    case 5:
        input_mutate(&input, page->pds, sizeof(page->pds[0]) * 8);
        break;
    case 6:
        input_mutate(&input, page->region, sizeof(page->region[0]) * 8);
        break;
    default:
        input_mutate(&input, page, 0xffff);
    }
}

/* The same file again; one that is not sealed, or not of that size. */
static void adopt(unsigned number)
{
    uint8_t guid[8];
    struct share *again;
    int fd = number % 3 == 0 ? fcntl(file, F_DUPFD_CLOEXEC, 0)
                             : memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    require(fd >= 0);
    if (number % 3)
        require(ftruncate(fd, number % 3 == 1 ? FILE_SIZE : 4096) == 0 && pwrite(fd, page, 48, 0) == 48);
    if (share_adopt(fd, guid, &again) == 0) {
        require(number % 3 == 0);
        require(again == share || tampered); /* another id: another device, of the same file */
        share_close(again);
    } else {
        require(number % 3 || tampered);
    }
    close(fd);
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS, place = number % STRUCTURES;

    switch ((enum step)(choice % STEP_KINDS)) {
    case CREATES:
        create_one(place, input_8(&input));
        break;
    case FINDS:
        find_one(place, input_8(&input));
        break;
    case USES:
        use_one(place);
        break;
    case UNUSES:
        unuse_one(place);
        break;
    case ENDS:
        end_one(place);
        break;
    case DROPS:
        drop_one(place);
        break;
    case TAKES:
        take_memory(number % MEMORIES, input_8(&input));
        break;
    case GIVES:
        give_memory(number % MEMORIES);
        break;
    case LOOKS:
        look(input_8(&input));
        break;
    case REGIONS:
        find_region(place, input_8(&input));
        break;
    case TAMPERS:
        tamper(number);
        break;
    case ADOPTS:
        adopt(number);
        break;
    case STEP_KINDS:
        break;
    }
}

static void check(void)
{
    unsigned listed = 0, counted = 0;

    list_for_each (node, &share->objects) {
        const struct shared *shared = list_entry(node, struct shared, node);

        listed += shared->structures;
        require(shared->structures == structures_of(shared));
    }
    for (unsigned i = 0; i < STRUCTURES; i++)
        counted += structures[i].shared != NULL;
    require(listed == counted);
}

/* No two device memories that honest processes have taken overlap. */
static void check_overlap(void)
{
    for (unsigned i = 0; i < MEMORIES && !tampered; i++) {
        for (unsigned j = 0; j < i; j++)
            require(!memories[i].at || !memories[j].at ||
                    memories[i].at + memories[i].length <= memories[j].at ||
                    memories[j].at + memories[j].length <= memories[i].at);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t guid[8] = {1, 2, 3};
    static int first;
    int lowest;

    input = (struct input){data, size};
    tampered = false;
    memset(structures, 0, sizeof(structures));
    memset(memories, 0, sizeof(memories));
    require(share_open(guid, &share, &file) == 0);
    page = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(page != MAP_FAILED);
    for (unsigned step = 0; input.left && step < STEPS; step++) {
        take_step(input_8(&input));
        check();
        check_overlap();
    }
    for (unsigned i = 0; i < STRUCTURES; i++)
        drop_one(i);
    for (unsigned i = 0; i < MEMORIES; i++)
        give_memory(i);
    check();
    share_close(share);
    munmap(page, FILE_SIZE);
    lowest = dup(file);
    close(file);
    close(lowest);
    require(!first || lowest == first);
    first = lowest;
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t part = 0; part < 8; part++) {
        for (uint8_t kind = 0; kind < 3; kind++) {
            for (uint8_t value = 0; value < 4; value++) {
                const uint8_t bytes[] = {STEP(CREATES, 0),
                                         SHARE_PD,
                                         STEP(CREATES, 1),
                                         kind,
                                         STEP(FINDS, 2),
                                         (uint8_t)(kind * 16),
                                         STEP(USES, 2),
                                         STEP(ENDS, 1),
                                         STEP(TAKES, 0),
                                         0,
                                         0x10,
                                         0,
                                         STEP(TAKES, 1),
                                         0x81,
                                         0x20,
                                         0,
                                         STEP(LOOKS, 0),
                                         1,
                                         STEP(CREATES, 3),
                                         SHARE_MR,
                                         STEP(REGIONS, 4),
                                         2,
                                         STEP(ADOPTS, value),
                                         STEP(TAMPERS, part),
                                         2,
                                         0,
                                         value,
                                         1,
                                         0,
                                         (uint8_t)(value + 7),
                                         0xff,
                                         STEP(UNUSES, 2),
                                         STEP(ENDS, 1),
                                         STEP(FINDS, 5),
                                         (uint8_t)(kind * 16),
                                         STEP(LOOKS, 0),
                                         1,
                                         STEP(LOOKS, 0),
                                         0,
                                         STEP(GIVES, 0),
                                         STEP(TAKES, 2),
                                         2,
                                         0,
                                         9,
                                         STEP(REGIONS, 6),
                                         2,
                                         STEP(ADOPTS, 0),
                                         STEP(CREATES, 7),
                                         kind,
                                         STEP(DROPS, 2)};

                add(bytes, sizeof(bytes));
            }
        }
    }
}
