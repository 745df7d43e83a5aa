/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/random_pool.h"

#include <sys/mman.h>

#include "base/sys.h"
#include "base/types.h"

#define PAGE_BYTES 4096u

struct random_page {
    uint64_t left; /* numbers[0..left) were not handed out. The kernel makes it 0 in a child */
    uint64_t numbers[PAGE_BYTES / sizeof(uint64_t) - 1];
};

_Static_assert(sizeof(struct random_page) == PAGE_BYTES, "one page, or more of it than we use");

static struct random_page *page_new(void)
{
    struct random_page *page =
        sys_mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, NULL);

    if (page && sys_madvise(page, PAGE_BYTES, MADV_WIPEONFORK) != 0) {
        sys_munmap(page, PAGE_BYTES);
        page = NULL;
    }
    return page;
}

uint64_t random_pool_take(struct random_pool *pool)
{
    struct random_page *page;
    uint64_t number;

    if (!pool->page && !pool->refused) {
        pool->page = page_new();
        pool->refused = !pool->page;
    }
    page = pool->page;
    if (!page) {
        sys_random(&number, sizeof(number));
        return number;
    }
    if (!page->left) {
        sys_random(page->numbers, sizeof(page->numbers));
        page->left = array_size(page->numbers);
    }
    number = page->numbers[--page->left];
    page->numbers[page->left] = 0;
    return number;
}
