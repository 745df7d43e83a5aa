/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains that several processes open by one file: somebody who may not open the file binds the names by which they
 * see each other. */
#include "attacker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../behaviour/xrc_scene.h"

enum { OTHER_USER = 61013, VICTIMS = 4, ROUNDS = 5, NAMES = 3 };

static const char domain_file[] = "/mnt/domain";

/* Pointers mean something only on their side. */
struct member {
    uid_t user;
    int flags, error;
    struct ibv_xrcd *xrcd;
};

static void make_user_here(void *argument)
{
    const struct member *member = argument;

    become(member->user);
}

static void open_here(void *argument)
{
    static struct ibv_context *context;
    struct member *member = argument;

    if (!context)
        context = open_the_device();
    member->xrcd = open_domain(context, open_file(domain_file), member->flags);
    member->error = member->xrcd ? 0 : errno;
}

static void close_here(void *argument)
{
    const struct member *member = argument;

    CHECK_ZERO(ibv_close_xrcd(member->xrcd));
}

static void make_members(struct member *members, const uid_t *users, int count)
{
    for (int i = 0; i < count; i++) {
        members[i] = (struct member){.user = users[i]};
        side_call(&sides[1 + i], make_user_here, &members[i], sizeof(members[i]));
    }
}

static int open_at(struct side *side, struct member *member, int flags)
{
    member->flags = flags;
    side_call(side, open_here, member, sizeof(*member));
    return member->error;
}

static void close_at(struct side *side, struct member *member)
{
    side_call(side, close_here, member, sizeof(*member));
}

/* Of the victim, and perhaps of a group that the other user is in. */
static void make_domain_file(mode_t mode)
{
    int fd;

    need_root();
    (void)unlink(domain_file);
    fd = open(domain_file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && fchown(fd, VICTIM_USER, OTHER_USER) == 0 && fchmod(fd, mode) == 0, "%s: %s", domain_file,
          strerror(errno));
    close(fd);
}

/* --- the attacker ---------------------------------------------------------------------------------------- */

/* What he knows of a file that he may not open. */
static void bind_names(int connection, const void *argument)
{
    static const char *const rests[NAMES] = {"0123456789abcdef", "turn", "turn0123456789ab"};
    char told = 0;
    struct stat file;

    CHECK(open(domain_file, O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES, "the attacker opens the file");
    CHECK(stat(domain_file, &file) == 0, "stat: %s", strerror(errno));
    for (int i = 0; i < NAMES; i++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const int length =
            snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "softhca/1/xrcd/%016llx-%016llx/%s",
                     (unsigned long long)file.st_dev, (unsigned long long)file.st_ino, rests[i]);
        const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);

        CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0, "bind: %s", strerror(errno));
    }
    attacker_ready(connection, &told, sizeof(told));
}

static struct attacker start_attacker(void)
{
    struct attacker attacker = attacker_start(ATTACKER_USER, bind_names, NULL);
    char told;

    attacker_told(&attacker, &told, sizeof(told));
    return attacker;
}

/* --- attacks --------------------------------------------------------------------------------------------- */

static void who_may_not_open_the_file_has_no_domain_of_it(void **state)
{
    static const uid_t users[] = {VICTIM_USER};
    struct attacker attacker;
    struct member victim;

    make_domain_file(0600);
    attacker = start_attacker();
    make_members(&victim, users, 1);
    assert_int_equal(open_at(FAR, &victim, 0), EAGAIN); /* there is none */
    assert_int_equal(open_at(FAR, &victim, O_CREAT | O_EXCL), 0);
    close_at(FAR, &victim);
    attacker_end(&attacker);
}

/* All names that a process might wait for are taken. */
static void one_is_the_first_whatever_names_are_bound(void **state)
{
    static const uid_t users[VICTIMS] = {VICTIM_USER, VICTIM_USER, VICTIM_USER, VICTIM_USER};
    struct member members[VICTIMS];
    struct call calls[VICTIMS];
    struct attacker attacker;

    make_domain_file(0600);
    attacker = start_attacker();
    make_members(members, users, VICTIMS);
    for (int round = 0; round < ROUNDS; round++) {
        int first = 0;

        for (int i = 0; i < VICTIMS; i++) {
            members[i].flags = O_CREAT | O_EXCL;
            side_start(&calls[i], &sides[1 + i], open_here, &members[i], sizeof(members[i]));
        }
        for (int i = 0; i < VICTIMS; i++) {
            side_finish(&calls[i]);
            first += !members[i].error;
            CHECK(!members[i].error || members[i].error == EINVAL, "%s", strerror(members[i].error));
        }
        assert_int_equal(first, 1);
        for (int i = 0; i < VICTIMS; i++) {
            if (!members[i].error)
                close_at(&sides[1 + i], &members[i]);
        }
    }
    attacker_end(&attacker);
}

/* --- what goes on working -------------------------------------------------------------------------------- */

static void share(mode_t mode, uid_t first, uid_t second)
{
    const uid_t users[] = {first, second};
    struct member members[2];

    make_domain_file(mode);
    make_members(members, users, 2);
    for (int i = 0; i < 2; i++) {
        struct member *const one = &members[i], *const other = &members[!i];
        struct side *const here = &sides[1 + i], *const there = &sides[1 + !i];

        assert_int_equal(open_at(there, other, 0), EAGAIN);
        assert_int_equal(open_at(here, one, O_CREAT | O_EXCL), 0);
        assert_int_equal(open_at(there, other, O_CREAT | O_EXCL), EINVAL);
        assert_int_equal(open_at(there, other, 0), 0);
        close_at(here, one);
        assert_int_equal(open_at(here, one, O_CREAT | O_EXCL), EINVAL); /* it is the same one still */
        assert_int_equal(open_at(here, one, 0), 0);
        close_at(here, one);
        close_at(there, other);
    }
}

static void users_of_a_file_for_all_share_its_domain(void **state)
{
    share(0666, VICTIM_USER, OTHER_USER);
}

static void neither_of_two_users_has_to_own_the_file(void **state)
{
    share(0646, ATTACKER_USER, OTHER_USER + 1);
}

static void users_in_the_group_of_a_file_share_its_domain(void **state)
{
    share(0660, VICTIM_USER, OTHER_USER);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(who_may_not_open_the_file_has_no_domain_of_it, .fars = 1),
        TEST_WITH(one_is_the_first_whatever_names_are_bound, .fars = VICTIMS),
        TEST_WITH(users_of_a_file_for_all_share_its_domain, .fars = 2),
        TEST_WITH(neither_of_two_users_has_to_own_the_file, .fars = 2),
        TEST_WITH(users_in_the_group_of_a_file_share_its_domain, .fars = 2),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
