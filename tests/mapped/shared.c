/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that is shared already is not switched: peers get the file behind it. */
#include "fixture.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>

static char *map_file(int fd, size_t length, off_t offset)
{
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

    CHECK(fd >= 0 && memory != MAP_FAILED, "mmap: %m");
    return memory;
}

static struct mapped_file_description describe(const struct mapped_region *region)
{
    struct mapped_file_description description;
    struct mapped_piece piece;

    CHECK(mapped_pieces(region, &piece, 1) == 1, "one piece");
    CHECK_ZERO(mapped_file_describe(piece.file, &description));
    return description;
}

/* Both ways between the program's memory and a peer's view. */
static void check_view(const struct mapped_region *region, char *memory, size_t length)
{
    char *peer;

    fill(memory, length, 1);
    peer = peer_view(region, memory);
    CHECK(peer != memory && filled(peer, length, 1), "the peer sees something else");
    peer[length - 1] = 'p';
    CHECK(memory[length - 1] == 'p', "what the peer wrote is not there");
}

static int make_memfd(size_t length, unsigned flags)
{
    int fd = memfd_create("shared", MFD_CLOEXEC | flags);

    CHECK(fd >= 0 && ftruncate(fd, (off_t)length) == 0, "memfd: %m");
    return fd;
}

static void memfds(void **state)
{
    struct mapped_file_description description;
    struct mapped_region *region;
    char *memory;
    int fd, error = 0;

    begin(0);
    fd = make_memfd(16 * PAGE, MFD_ALLOW_SEALING);
    memory = map_file(fd, 8 * PAGE, (off_t)(4 * PAGE));
    region = add(memory, 8 * PAGE);
    description = describe(region);
    CHECK(description.kind == MAPPED_KIND_FILE && description.size == 16 * PAGE && description.writable,
          "unsealed");
    CHECK(!mapped_file_accept(mapped_file_open(2, true), &description, true, false, &error) &&
              error == -EPERM,
          "could shrink under its users: %d", error);
    check_view(region, memory, 8 * PAGE);
    mapped_remove(region, false);
    CHECK(is_shared(memory) && memory[8 * PAGE - 1] == 'p', "as it was");
    CHECK(mapped_file_describe(2, &description) == -ENOENT, "nobody uses it any more");

    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, "seal: %m");
    region = add(memory, 8 * PAGE);
    description = describe(region);
    CHECK(description.kind == MAPPED_KIND_SEALED, "sealed");
    CHECK(mapped_file_accept(mapped_file_open(2, true), &description, true, false, &error), "accepted: %d",
          error);
    mapped_remove(region, false);
}

static void descriptors_may_be_closed(void **state)
{
    struct mapped_region *region, *other;
    struct mapped_piece piece, other_piece;
    char *memory;
    int fd;

    begin(0);
    fd = make_memfd(8 * PAGE, 0);
    memory = map_file(fd, 8 * PAGE, 0);
    region = add(memory, 4 * PAGE);
    close(fd); /* the keeper has its own */
    other = add(memory + 2 * PAGE, 6 * PAGE);
    mapped_pieces(region, &piece, 1);
    mapped_pieces(other, &other_piece, 1);
    CHECK(piece.file == other_piece.file && other_piece.offset == 2 * PAGE, "the same file");
    check_view(other, memory + 2 * PAGE, 6 * PAGE);
    mapped_remove(region, false);
    check_view(other, memory + 2 * PAGE, 6 * PAGE);
    mapped_remove(other, false);

    /* Without any descriptor: found by the privileged only. */
    region = mapped_add((uintptr_t)memory, 8 * PAGE, MAPPED_PEERS_WRITE);
    if (mapped_bytes(region)) {
        check_view(region, memory, 8 * PAGE);
    } else {
        struct mapped_refusal refusal;

        mapped_refusals(region, &refusal, 1);
        CHECK(refusal.reason == MAPPED_NO_DESCRIPTOR, "%s", mapped_reason_text(refusal.reason));
    }
    mapped_remove(region, false);
}

static void files_in_dev_shm(void **state)
{
    char name[64];
    struct mapped_region *region;
    char *memory;
    int fd;

    begin(0);
    snprintf(name, sizeof name, "/softhca-test-%d", (int)getpid());
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        skip_because("shm_open: %s", strerror(errno));
    CHECK(ftruncate(fd, (off_t)(8 * PAGE)) == 0, "ftruncate: %m");
    memory = map_file(fd, 8 * PAGE, 0);
    close(fd); /* its name is enough */
    region = add(memory, 8 * PAGE);
    check_view(region, memory, 8 * PAGE);
    mapped_remove(region, false);
    shm_unlink(name);
}

static void system_v_segments(void **state)
{
    struct mapped_region *region;
    int number, error = 0;
    struct mapped_file_description description, wrong;
    char *memory;

    begin(0);
    number = shmget(IPC_PRIVATE, 8 * PAGE, IPC_CREAT | 0600);
    if (number < 0)
        skip_because("shmget: %s", strerror(errno));
    memory = shmat(number, NULL, 0);
    shmctl(number, IPC_RMID, NULL); /* as programs do */
    CHECK(memory != (char *)-1, "shmat: %m");
    region = add(memory + PAGE, 4 * PAGE);
    description = wrong = describe(region);
    CHECK(description.kind == MAPPED_KIND_SYSV && description.shmid == number, "number %d",
          description.shmid);
    CHECK(mapped_file_open(2, true) == -EOPNOTSUPP, "it has no descriptor");
    {
        struct mapped_file *file = mapped_file_accept(-1, &description, true, false, &error);
        struct mapped_view *view;
        char *peer;

        CHECK(file, "not accepted: %d", error);
        view = mapped_attach(file, PAGE, 4 * PAGE, &error);
        CHECK(view, "not attached: %d", error);
        peer = mapped_view_address(view, PAGE);
        fill(memory + PAGE, 4 * PAGE, 2);
        CHECK(filled(peer, 4 * PAGE, 2), "the peer sees something else");
        peer[0] = 'p';
        CHECK(memory[PAGE] == 'p', "what the peer wrote is not there");
        mapped_detach(view);
        mapped_file_drop(file);
    }
    wrong.inode++;
    CHECK(!mapped_file_accept(-1, &wrong, true, false, &error) && error == -EBADF, "another segment: %d",
          error);
    wrong = description;
    wrong.size += PAGE;
    CHECK(!mapped_file_accept(-1, &wrong, true, false, &error) && error == -EBADF, "too small: %d", error);
    mapped_remove(region, false);
    shmdt(memory);
}

static void anonymous_shared_memory(void **state)
{
    char *memory = map_with(8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    struct mapped_region *region;

    begin(0);
    region = mapped_add((uintptr_t)memory, 8 * PAGE, MAPPED_PEERS_WRITE);
    if (mapped_bytes(region)) { /* privileged */
        check_view(region, memory, 8 * PAGE);
    } else {
        struct mapped_refusal refusal;

        mapped_refusals(region, &refusal, 1);
        CHECK(refusal.reason == MAPPED_NO_DESCRIPTOR, "%s", mapped_reason_text(refusal.reason));
    }
    mapped_remove(region, false);
}

static void read_only_mappings(void **state)
{
    struct mapped_region *region;
    char *memory;
    int fd;

    begin(0);
    fd = make_memfd(8 * PAGE, 0);
    memory = mmap(NULL, 8 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(refused(memory, 8 * PAGE) == MAPPED_NOT_WRITABLE, "peers could write what the program may not");
    region = mapped_add((uintptr_t)memory, 8 * PAGE, MAPPED_PEERS_READ);
    CHECK(mapped_bytes(region) == 8 * PAGE, "but read");
    mapped_remove(region, false);
}

static void huge_pages(void **state)
{
    size_t huge = 2 << 20;
    struct mapped_region *region;
    char *memory;
    int fd;

    begin(0);
    fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
    if (fd < 0 || ftruncate(fd, (off_t)(2 * huge)) != 0)
        skip_because("no huge pages: %s", strerror(errno));
    memory = mmap(NULL, 2 * huge, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        skip_because("no huge pages: %s", strerror(errno));
    region = add(memory, 2 * huge);
    check_view(region, memory, 2 * huge);
    mapped_remove(region, false);
    munmap(memory, 2 * huge);
    memory = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %m");
    CHECK(refused(memory, huge) == MAPPED_PRIVATE_FILE, "private huge pages");
}

static void shared_and_private_in_one_region(void **state)
{
    char *memory = map(16 * PAGE);
    struct mapped_piece pieces[4];
    struct mapped_region *region;
    int fd;

    begin(16 * PAGE);
    fd = make_memfd(8 * PAGE, 0);
    CHECK(mmap(memory + 4 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
              MAP_FAILED,
          "mmap: %m");
    fill(memory, 16 * PAGE, 1);
    region = add(memory, 16 * PAGE);
    CHECK(mapped_pieces(region, pieces, 4) == 3, "three pieces");
    CHECK(pieces[0].file == 0 && pieces[1].file == 2 && pieces[2].file == 0, "of two files");
    mapped_remove(region, false);
    CHECK(!is_shared(memory) && is_shared(memory + 4 * PAGE) && !is_shared(memory + 12 * PAGE), "as it was");
    CHECK(filled(memory, 16 * PAGE, 1), "contents");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(memfds, .fars = 0),
        TEST_WITH(descriptors_may_be_closed, .fars = 0),
        TEST_WITH(files_in_dev_shm, .fars = 0),
        TEST_WITH(system_v_segments, .fars = 0),
        TEST_WITH(anonymous_shared_memory, .fars = 0),
        TEST_WITH(read_only_mappings, .fars = 0),
        TEST_WITH(huge_pages, .fars = 0),
        TEST_WITH(shared_and_private_in_one_region, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
