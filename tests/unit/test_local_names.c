/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names beside QPN blocks: one holder on the host, found by all, free at once when it goes. */
#include "refused_calls.h"
#include "test_local_sides.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { HELD, FOUND, DONE, GONE, LEFT }; /* words of the board */

static int find(const char *text, struct link **ret_link)
{
    int error;

    rundown_enter();
    error = local_name_find(text, ret_link);
    rundown_exit();
    return error;
}

static struct link *recall(const char *text)
{
    struct link *link;

    rundown_enter();
    link = local_name_recall(text);
    rundown_exit();
    return link;
}

static void raise_word(unsigned word)
{
    atomic_fetch_add(&board->word[word], 1);
}

static void await_word(unsigned word)
{
    UNTIL(atomic_load(&board->word[word]) > 0);
}

/* A process with a block, as everybody has who takes names. */
static struct local_name *take(const char *text, unsigned number)
{
    struct local_name *name;

    publish_qpn(number);
    CHECK(local_name_take(text, &name) == 0);
    return name;
}

static void holds_until_found(unsigned number)
{
    struct local_name *name = take("test/a", number), *again;
    struct link *link;

    CHECK(local_name_take("test/a", &again) == -EADDRINUSE);
    CHECK(find("test/a", &link) == 0 && link_is_self(link));
    CHECK(link_serial(link) == local_self_serial());
    CHECK(!local_name_is_held("test/b"));
    raise_word(HELD);
    await_word(FOUND);
    local_name_release(name);
    CHECK(!local_name_is_held("test/a"));
    CHECK(local_name_take("test/a", &again) == 0);
    local_name_release(again);
    raise_word(DONE);
    await_word(GONE);
}

static void finds(unsigned number)
{
    struct local_name *name;
    struct link *link;

    await_word(HELD);
    publish_qpn(number);
    CHECK(local_name_is_held("test/a"));
    CHECK(local_name_take("test/a", &name) == -EADDRINUSE);
    CHECK(find("test/a", &link) == -EAGAIN); /* held by somebody that we have no link to */
    CHECK(local_name_search("test/a", 42) == 0);
    UNTIL(seen.searches == 1);
    CHECK(seen.cookie == 42 && seen.holder && link_is_up(seen.holder));
    CHECK(find("test/a", &link) == 0 && link == seen.holder);
    /* It is the link that QP numbers lead to. */
    CHECK(find_link(await_qpn(0)) == link);
    rundown_enter();
    CHECK(local_link_of_serial(link_serial(link)) == link);
    CHECK(!local_link_of_serial(link_serial(link) + LINKS_MAX));
    rundown_exit();
    raise_word(FOUND);
    await_word(DONE);
    CHECK(find("test/a", &link) == -ECONNREFUSED);
    CHECK(local_name_search("test/a", 43) == 0);
    UNTIL(seen.searches == 2);
    CHECK(seen.cookie == 43 && !seen.holder);
    raise_word(GONE);
}

static void test_a_name_leads_to_its_holder(void **state)
{
    board_clear();
    RUN_SIDES(holds_until_found, finds);
}

static void recalls_its_own(unsigned number)
{
    struct local_name *name = take("test/i", number);
    int listener, other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct link *link;

    CHECK(find("test/i", &link) == 0 && link_is_self(link)); /* there is a link to itself */
    CHECK(recall("test/i") == link);
    CHECK(!recall("test/j"));
    local_name_release(name);
    CHECK(!recall("test/i"));
    /* The program closes the socket, and uses its number. */
    listener = dup(0);
    close(listener);
    CHECK(local_name_take("test/i", &name) == 0 && recall("test/i") == link);
    CHECK(dup2(other, listener) == listener);
    CHECK(!recall("test/i"));
    CHECK(find("test/i", &link) == -ECONNREFUSED);
}

static void test_own_names_are_recalled_as_long_as_they_are_held(void **state)
{
    board_clear();
    RUN_SIDES(recalls_its_own);
}

/* A holder lets one of two names go, takes it again, and lets it go. */
static void holds_by_turns(unsigned number)
{
    struct local_name *name = take("test/g", number), *other;

    CHECK(local_name_take("test/h", &other) == 0);
    raise_word(HELD);
    await_word(FOUND);
    local_name_release(other);
    raise_word(DONE);
    await_word(GONE);
    local_name_release(name);
    raise_word(DONE);
    await_word(LEFT);
}

static void recalls(unsigned number)
{
    char block[LOCAL_BLOCK_NAME_MAX + 1];
    struct link *link;

    await_word(HELD);
    publish_qpn(number);
    CHECK(!recall("test/g"));
    CHECK(local_name_search("test/g", 1) == 0);
    UNTIL(seen.searches == 1);
    /* The number that the holder tells is read before a look-up, so it is the second one that counts. */
    CHECK(find("test/g", &link) == 0 && !recall("test/g"));
    UNTIL(find("test/g", &link) == 0 && recall("test/g")); /* the holder's end may not be installed yet */
    CHECK(recall("test/g") == link && link == seen.holder);
    /* The name of the holder's QP numbers, by which MADs for its communication IDs go. */
    local_block_name(await_qpn(0) / LOCAL_BLOCK_QPNS, block);
    UNTIL(find(block, &link) == 0 && recall(block));
    CHECK(recall(block) == seen.holder);
    CHECK(!recall("test/h") && !recall("test/"));
    raise_word(FOUND);
    UNTIL(atomic_load(&board->word[DONE]) == 1);
    /* Another name has ended, or this one: the holder is asked again. */
    CHECK(!recall("test/g"));
    CHECK(find("test/g", &link) == 0 && recall("test/g") == link);
    raise_word(GONE);
    UNTIL(atomic_load(&board->word[DONE]) == 2);
    CHECK(!recall("test/g") && find("test/g", &link) == -ECONNREFUSED && !recall("test/g"));
    raise_word(LEFT);
}

static void test_a_holder_is_recalled_until_a_name_ends(void **state)
{
    board_clear();
    RUN_SIDES(holds_by_turns, recalls);
}

static void recalls_until_killed(unsigned number)
{
    struct link *link;

    publish_qpn(number);
    await_word(HELD);
    CHECK(local_name_search("test/c", 1) == 0);
    UNTIL(seen.searches == 1);
    UNTIL(find("test/c", &link) == 0 && recall("test/c") == link);
    raise_word(FOUND);
    while (!atomic_load(&board->word[GONE]))
        usleep(1000);
    /* The helper thread, which is this one, has not seen yet that the process has ended. */
    CHECK(link_is_up(link) && !recall("test/c"));
}

static void holds_until_killed(unsigned number)
{
    take("test/c", number);
    raise_word(HELD);
    for (;;)
        turn(100);
}

static void takes_over(unsigned number)
{
    struct link *link;

    publish_qpn(number);
    await_word(HELD);
    CHECK(local_name_search("test/c", 1) == 0);
    UNTIL(seen.searches == 1);
    CHECK(seen.holder);
    raise_word(FOUND);
    await_word(GONE);
    /* The helper thread may not have seen yet that the process has ended; the name is free all the same. */
    CHECK(find("test/c", &link) == -ECONNREFUSED);
    take("test/c", 3);
    CHECK(find("test/c", &link) == 0 && link_is_self(link));
    UNTIL(seen.downs == 1);
}

static void test_a_name_is_free_when_its_holder_is_killed(void **state)
{
    pid_t holder, heir;

    board_clear();
    holder = side_start(holds_until_killed, 0);
    heir = side_start(takes_over, 1);
    while (!atomic_load(&board->word[FOUND]))
        usleep(1000);
    side_kill(holder);
    raise_word(GONE);
    side_finish(heir);
}

static void test_a_holder_that_was_killed_is_not_recalled(void **state)
{
    pid_t holder, other;

    board_clear();
    holder = side_start(holds_until_killed, 0);
    other = side_start(recalls_until_killed, 1);
    while (!atomic_load(&board->word[FOUND]))
        usleep(1000);
    side_kill(holder);
    raise_word(GONE);
    side_finish(other);
}

/* Many searches before there is a link: all end. */
static void searches_often(unsigned number)
{
    publish_qpn(number);
    await_word(HELD);
    for (unsigned i = 0; i < 200; i++)
        CHECK(local_name_search("test/d", i) == 0);
    UNTIL(seen.searches == 200);
    CHECK(seen.holder);
    raise_word(DONE);
}

static void holds_until_done(unsigned number)
{
    unsigned fds;

    take("test/d", number);
    fds = count_fds();
    raise_word(HELD);
    await_word(DONE);
    /* Of all the handshakes one link is left: socket and pidfd. */
    UNTIL(count_fds() <= fds + 2);
}

static void test_many_searches_end_in_one_link(void **state)
{
    board_clear();
    RUN_SIDES(holds_until_done, searches_often);
}

/* Somebody has bound the name and says nothing: others go on. */
static void squats(unsigned number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "softhca/2/test/e");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct local_name *name;
    struct link *link;

    publish_qpn(number);
    CHECK(bind(fd, (struct sockaddr *)&address,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) == 0);
    /* Bound, and not listening: nobody is there. */
    CHECK(find("test/e", &link) == -ECONNREFUSED && !local_name_is_held("test/e"));
    CHECK(local_name_take("test/e", &name) == -EADDRINUSE);
    CHECK(listen(fd, 0) == 0);
    CHECK(local_name_is_held("test/e"));
    CHECK(local_name_search("test/e", 7) == 0);
    take("test/f", 4);
    CHECK(local_name_search("test/f", 8) == 0);
    UNTIL(seen.searches == 1);
    CHECK(seen.cookie == 8 && link_is_self(seen.holder));
    shutdown(fd, SHUT_RDWR);
    close(fd);
    UNTIL(seen.searches == 2);
    CHECK(seen.cookie == 7 && !seen.holder);
}

static void test_a_squatter_delays_only_its_own_name(void **state)
{
    board_clear();
    RUN_SIDES(squats);
}

/* The last test: the filter stays. */
static void test_a_name_leads_to_its_holder_before_linux_5_3(void **state)
{
    refuse_pidfds();
    test_a_name_leads_to_its_holder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_leads_to_its_holder),
        cmocka_unit_test(test_a_name_is_free_when_its_holder_is_killed),
        cmocka_unit_test(test_own_names_are_recalled_as_long_as_they_are_held),
        cmocka_unit_test(test_a_holder_is_recalled_until_a_name_ends),
        cmocka_unit_test(test_a_holder_that_was_killed_is_not_recalled),
        cmocka_unit_test(test_many_searches_end_in_one_link),
        cmocka_unit_test(test_a_squatter_delays_only_its_own_name),
        cmocka_unit_test(test_a_name_leads_to_its_holder_before_linux_5_3),
    };

    return run_local_tests("local names", tests);
}
