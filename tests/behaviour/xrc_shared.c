/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs-contract §1.4, §2.11, §6.4: an XRC domain that several processes have open by one file. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "work.h"

/* Pointers mean something only on their side. */
struct member {
    struct ibv_context *context;
    struct ibv_xrcd *xrcd;
    char file[32];
    int flags, error;
};

static struct ibv_xrcd *open_domain(struct ibv_context *context, const char *file, int flags)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags};
    struct ibv_xrcd *xrcd;

    CHECK(fd >= 0, "open %s: %s", file, strerror(errno));
    errno = 0;
    xrcd = ibv_open_xrcd(context, &attr);
    close(fd); /* the domain does not need it any more */
    return xrcd;
}

static void make_file(char name[32])
{
    int fd;

    strcpy(name, "/tmp/softhca-xrc-XXXXXX");
    fd = mkstemp(name);
    CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
    close(fd);
}

/* --- domains
 * --------------------------------------------------------------------------------------------------- */

static void open_there(void *arg)
{
    struct member *member = arg;

    if (!member->context)
        member->context = open_the_device();
    member->xrcd = open_domain(member->context, member->file, member->flags);
    member->error = member->xrcd ? 0 : errno;
}

static void close_there(void *arg)
{
    struct member *member = arg;

    CHECK(!ibv_close_xrcd(member->xrcd), "ibv_close_xrcd");
}

static int open_at(struct side *side, struct member *member, int flags)
{
    member->flags = flags;
    side_call(side, open_there, member, sizeof(*member));
    return member->error;
}

static void the_flags_hold_between_processes(void **state)
{
    struct member near = {0}, far = {0};

    make_file(near.file);
    strcpy(far.file, near.file);
    assert_int_equal(open_at(NEAR, &near, 0), EAGAIN); /* there is none */
    assert_int_equal(open_at(FAR, &far, O_CREAT | O_EXCL), 0);
    assert_int_equal(open_at(NEAR, &near, O_CREAT | O_EXCL), EINVAL);
    assert_int_equal(open_at(NEAR, &near, 0), 0);
    side_call(FAR, close_there, &far, sizeof(far));
    assert_int_equal(open_at(FAR, &far, O_CREAT | O_EXCL), EINVAL); /* it is the same one still */
    close_there(&near);
    assert_int_equal(open_at(FAR, &far, 0), EAGAIN); /* gone with the last */
    unlink(near.file);
}

static void a_domain_goes_with_the_last_process_that_had_it(void **state)
{
    struct member near = {0}, far = {0};

    make_file(near.file);
    strcpy(far.file, near.file);
    assert_int_equal(open_at(FAR, &far, O_CREAT), 0);
    side_kill(FAR);
    assert_int_equal(open_at(NEAR, &near, 0), EAGAIN);
    assert_int_equal(open_at(NEAR, &near, O_CREAT | O_EXCL), 0);
    close_there(&near);
    unlink(near.file);
}

/* Of several that want to be the first, one is. */
static void one_of_all_is_the_first(void **state)
{
    enum { MEMBERS = 4, ROUNDS = 5 };
    struct member member[MEMBERS] = {{0}};
    struct call call[MEMBERS];

    make_file(member[0].file);
    for (int round = 0; round < ROUNDS; round++) {
        int first = 0;

        for (int i = 0; i < MEMBERS; i++) {
            strcpy(member[i].file, member[0].file);
            member[i].flags = O_CREAT | O_EXCL;
            side_start(&call[i], &sides[1 + i], open_there, &member[i], sizeof(member[i]));
        }
        for (int i = 0; i < MEMBERS; i++) {
            side_finish(&call[i]);
            first += !member[i].error;
            CHECK(!member[i].error || member[i].error == EINVAL, "%s", strerror(member[i].error));
        }
        assert_int_equal(first, 1);
        for (int i = 0; i < MEMBERS; i++) {
            if (!member[i].error)
                side_call(&sides[1 + i], close_there, &member[i], sizeof(member[i]));
        }
    }
    unlink(member[0].file);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_flags_hold_between_processes),
        TEST_WITH(a_domain_goes_with_the_last_process_that_had_it, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(one_of_all_is_the_first, .fars = 4),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
