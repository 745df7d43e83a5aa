/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.1: a program may register memory of any kind. Peers reach it, and when the registration
 * has ended it is what it was, and the program's alone. */
#include "lent.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 /* Linux 5.11 */
#endif

enum { HUGE = 2 << 20 };

static bool none(struct lent *lent, const char *what)
{
    snprintf(lent->why_not, sizeof(lent->why_not), "%s: %s", what, strerror(errno));
    return false;
}

static void peer_counts(struct pair *p, struct end *to, size_t at)
{
    end_poke64(to, at, 40);
    end_send(&p->a, a_fetch_add(&p->a, 3, LENGTH, to, at, 2));
    end_expect_success(&p->a, SQ, 3, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&p->a, LENGTH), 40);
    assert_int_equal(end_peek64(to, at), 42);
}

static void messages(struct pair *p, struct end *to, uint64_t seed)
{
    end_fill(&p->a, 0, LENGTH, seed);
    end_recv(to, a_recv(to, 4, 0, LENGTH));
    end_send(&p->a, a_send(&p->a, 5, 0, LENGTH));
    end_expect_success(&p->a, SQ, 5, IBV_WC_SEND);
    end_expect_success(to, RQ, 4, IBV_WC_RECV);
    end_expect_data(to, 0, LENGTH, seed);
    end_fill(to, 0, LENGTH, seed + 1);
    end_recv(&p->a, a_recv(&p->a, 6, 0, LENGTH));
    end_send(to, a_send(to, 7, 0, LENGTH));
    end_expect_success(to, SQ, 7, IBV_WC_SEND);
    end_expect_success(&p->a, RQ, 6, IBV_WC_RECV);
    end_expect_data(&p->a, 0, LENGTH, seed + 1);
}

static void peers_reach(bool (*make)(struct lent *))
{
    struct lent lent = {.make = make};
    struct end to;
    struct pair p;

    lend(&p, &lent, &to);
    if (lent.switched && path_under_test() == PATH_MAPPED && is_mapped(p.b.side->pid, p.b.buf))
        assert_true(is_mapped(p.b.side->pid, to.buf + PAGE));
    for (unsigned int i = 0; i < 3; i++) { /* the first may be how the two come to know each other */
        end_fill(&to, 0, LENGTH, 10 * i);
        peer_reads(&p, &to, 10 * i);
        peer_counts(&p, &to, 8 * i);
        messages(&p, &to, 10 * i + 1);
        peer_writes(&p, &to, 10 * i + 3);
    }
    AT(&p.b, deregister_here, &lent);
    end_expect_data(&to, 0, LENGTH, 23);
    assert_false(is_mapped(p.b.side->pid, to.buf + PAGE));
    end_fill(&to, 0, LENGTH, 30);
    AT(&p.b, register_here, &lent);
    to.rkey = lent.rkey;
    peer_reads(&p, &to, 30);
    AT(&p.b, deregister_here, &lent);
    /* A key that has ended. */
    end_send(&p.a, a_write(&p.a, 8, 0, LENGTH, &to, 0));
    end_expect_status(&p.a, SQ, 8, IBV_WC_REM_ACCESS_ERR);
    end_expect_data(&to, 0, LENGTH, 30);
    pair_close(&p);
}

static bool block(struct lent *lent) /* not on pages of its own */
{
    lent->at = malloc(LENGTH + 100);
    lent->at += lent->at ? 40 : 0;
    lent->switched = true;
    return true;
}

static bool static_data(struct lent *lent)
{
    static uint8_t data[LENGTH];

    lent->at = data;
    return true;
}

static atomic_uintptr_t stack_memory;

static void *stay_on_stack(void *arg)
{
    uint8_t memory[LENGTH];

    memset(memory, 0, LENGTH);
    atomic_store(&stack_memory, (uintptr_t)memory);
    for (;;)
        pause();
    return arg;
}

static bool stack(struct lent *lent)
{
    pthread_t thread;

    CHECK_ZERO(pthread_create(&thread, NULL, stay_on_stack, NULL));
    CHECK_ZERO(pthread_detach(thread));
    EVENTUALLY(atomic_load(&stack_memory), "a thread");
    lent->at = (uint8_t *)atomic_load(&stack_memory);
    return true;
}

static bool locked_memory(struct lent *lent)
{
    private_memory(lent);
    return mlock(lent->at, LENGTH) == 0 || none(lent, "mlock");
}

static bool transparent_huge_pages(struct lent *lent)
{
    uint8_t *memory = map_at(NULL, 3 * HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

    CHECK(memory, "mmap: %s", strerror(errno));
    memory += HUGE - (uintptr_t)memory % HUGE;
    if (madvise(memory, HUGE, MADV_HUGEPAGE))
        return none(lent, "MADV_HUGEPAGE");
    memset(memory, 0, HUGE);
    lent->at = memory + HUGE / 2;
    lent->switched = true;
    return true;
}

static bool private_huge_pages(struct lent *lent)
{
    lent->at = map_at(NULL, HUGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
    return lent->at || none(lent, "no huge pages");
}

static bool file_of(struct lent *lent, int fd, size_t length, int flags)
{
    if (fd < 0 || ftruncate(fd, (off_t)length))
        return none(lent, "a file");
    lent->at = map_at(NULL, length, flags, fd);
    return lent->at || none(lent, "a mapping of a file");
}

static bool shared_huge_pages(struct lent *lent)
{
    return file_of(lent, memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB), HUGE, MAP_SHARED);
}

static bool memfd(struct lent *lent)
{
    return file_of(lent, memfd_create("test", MFD_CLOEXEC), LENGTH, MAP_SHARED);
}

static bool sealed_memfd(struct lent *lent)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return file_of(lent, fd, LENGTH, MAP_SHARED) &&
           (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 || none(lent, "seals"));
}

static bool private_mapping_of_a_file(struct lent *lent)
{
    return file_of(lent, memfd_create("test", MFD_CLOEXEC), LENGTH, MAP_PRIVATE);
}

static bool file_in_dev_shm(struct lent *lent)
{
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "/softhca-test-memory-%d", (int)getpid());
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        shm_unlink(name);
    return file_of(lent, fd, LENGTH, MAP_SHARED);
}

static bool system_v(struct lent *lent)
{
    const int id = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);
    void *memory;

    if (id < 0)
        return none(lent, "shmget");
    memory = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    lent->at = memory == (void *)-1 ? NULL : memory;
    return true;
}

static bool anonymous_shared_memory(struct lent *lent)
{
    lent->at = map_at(NULL, LENGTH, MAP_SHARED | MAP_ANONYMOUS, -1);
    return true;
}

static bool memory_under_a_userfaultfd(struct lent *lent)
{
    const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register request = {.mode = UFFDIO_REGISTER_MODE_MISSING};

    if (fd < 0)
        return none(lent, "userfaultfd");
    private_memory(lent);
    lent->switched = false;
    memset(lent->at, 0, LENGTH);
    request.range = (struct uffdio_range){(uintptr_t)lent->at, LENGTH};
    CHECK_ZERO(ioctl(fd, UFFDIO_API, &api));
    CHECK_ZERO(ioctl(fd, UFFDIO_REGISTER, &request));
    return true;
}

#define REACHED(kind)                                                                                        \
    static void peers_reach_##kind(void **state)                                                             \
    {                                                                                                        \
        peers_reach(kind);                                                                                   \
    }
REACHED(block)
REACHED(static_data)
REACHED(stack)
REACHED(private_memory)
REACHED(locked_memory)
REACHED(transparent_huge_pages)
REACHED(private_huge_pages)
REACHED(shared_huge_pages)
REACHED(memfd)
REACHED(sealed_memfd)
REACHED(private_mapping_of_a_file)
REACHED(file_in_dev_shm)
REACHED(system_v)
REACHED(anonymous_shared_memory)
REACHED(memory_under_a_userfaultfd)

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(peers_reach_block),
        TEST(peers_reach_static_data),
        TEST(peers_reach_stack),
        TEST(peers_reach_private_memory),
        TEST(peers_reach_locked_memory),
        TEST(peers_reach_transparent_huge_pages),
        TEST(peers_reach_private_huge_pages),
        TEST(peers_reach_shared_huge_pages),
        TEST(peers_reach_memfd),
        TEST(peers_reach_sealed_memfd),
        TEST(peers_reach_private_mapping_of_a_file),
        TEST(peers_reach_file_in_dev_shm),
        TEST(peers_reach_system_v),
        TEST(peers_reach_anonymous_shared_memory),
        TEST(peers_reach_memory_under_a_userfaultfd),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
