/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is mapped where: both ways to ask the kernel say the same. */
#include "unit.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/maps.h"

#define PAGE 4096u

static struct maps by_query, by_text;

static int open_both(void **state)
{
    return maps_open(&by_query) || maps_open_text(&by_text);
}

static int close_both(void **state)
{
    maps_close(&by_query);
    maps_close(&by_text);
    return 0;
}

static char *map(size_t length, int protection, int flags, int fd, off_t offset)
{
    char *memory = mmap(NULL, length, protection, flags, fd, offset);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static struct mapping find(uintptr_t address)
{
    struct mapping one = {0}, other = {0};

    errno = 4711;
    assert_int_equal(maps_find_now(&by_query, address, &one), 0);
    assert_int_equal(maps_find_now(&by_text, address, &other), 0);
    assert_int_equal(errno, 4711);
    assert_memory_equal(&one, &other, sizeof(one));
    return one;
}

static void private_memory_has_no_file(void **state)
{
    char *memory = map(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct mapping mapping;

    mprotect(memory + 2 * PAGE, PAGE, PROT_READ);
    munmap(memory + 4 * PAGE, PAGE);
    mapping = find((uintptr_t)memory + 2 * PAGE + 17);
    assert_int_equal(mapping.start, (uintptr_t)memory + 2 * PAGE);
    assert_int_equal(mapping.end, (uintptr_t)memory + 3 * PAGE);
    assert_true(mapping.readable && !mapping.writable && !mapping.executable && !mapping.shared);
    assert_int_equal(mapping.inode, 0);
    assert_int_equal(mapping.offset, 0);

    mapping = find((uintptr_t)memory + 3 * PAGE);
    assert_true(mapping.readable && mapping.writable);
    /* A gap: what comes behind it. */
    mapping = find((uintptr_t)memory + 4 * PAGE + 1);
    assert_int_equal(mapping.start, (uintptr_t)memory + 5 * PAGE);
    munmap(memory, 8 * PAGE);
}

static void files_are_told_by_inode(void **state)
{
    int fd = memfd_create("a name with spaces", MFD_CLOEXEC);
    char *memory, name[64], cut[6];
    struct mapping mapping;
    struct stat file;

    assert_int_equal(ftruncate(fd, 16 * PAGE), 0);
    assert_int_equal(fstat(fd, &file), 0);
    memory = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 3 * PAGE);
    mapping = find((uintptr_t)memory + PAGE);
    assert_true(mapping.shared && mapping.writable);
    assert_int_equal(mapping.inode, file.st_ino);
    assert_int_equal(mapping.device_major, major(file.st_dev));
    assert_int_equal(mapping.device_minor, minor(file.st_dev));
    assert_int_equal(mapping.offset, 3 * PAGE);
    assert_true(maps_name(mapping.start, name, sizeof(name)) > 0);
    assert_string_equal(name, "/memfd:a name with spaces (deleted)");
    assert_int_equal(maps_name(mapping.start, cut, sizeof(cut)), 5);
    assert_string_equal(cut, "/memf");
    munmap(memory, 4 * PAGE);
    assert_int_equal(maps_name((uintptr_t)memory, name, sizeof(name)), 0);
    close(fd);
}

static void both_ways_list_the_same(void **state)
{
    uintptr_t next = 0;
    unsigned count = 0;

    for (;; count++) {
        struct mapping one = {0}, other = {0};
        int error = maps_find(&by_query, next, &one);

        if (error || one.end < one.start || one.start > UINTPTR_MAX / 2) /* [vsyscall] is only in the text */
            break;
        assert_int_equal(maps_find(&by_text, next, &other), 0);
        assert_memory_equal(&one, &other, sizeof(one));
        next = one.end;
    }
    assert_true(count > 5);
    /* Backwards, too. */
    find(0);
    find((uintptr_t)&next);
    find((uintptr_t)both_ways_list_the_same);
}

static void behind_everything_there_is_nothing(void **state)
{
    struct mapping mapping;

    assert_int_equal(maps_find(&by_query, UINTPTR_MAX - 1, &mapping), -ENOENT);
    assert_int_equal(maps_find(&by_text, UINTPTR_MAX - 1, &mapping), -ENOENT);
    find((uintptr_t)&mapping);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_both, close_both)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(private_memory_has_no_file),
        test(files_are_told_by_inode),
        test(both_ways_list_the_same),
        test(behind_everything_there_is_nothing),
    };

    return run_unit_tests("maps", tests);
}
