/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who owns a block of QP numbers, as the kernel says, and what the answers cost. */
#include "test_local_sides.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/sys.h"
#include "local/handshake_message.h"

/* A user without an account. */
enum { OTHER = 61031 };
enum { DONE = 8, ACCEPTED, SECOND }; /* words of the board */
enum { QUESTIONS_OF_ONE = 1024 };

static void become(uid_t user)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
}

/* --- a listener that was given away ------------------------------------------------------------------------ */

/* Answers on the listener of its parent, as if it were the parent. */
static void answer_for(int listener)
{
    struct handshake_message message;
    struct pollfd ready = {.fd = listener, .events = POLLIN};

    while (poll(&ready, 1, -1) == 1) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (recv(fd, &message, sizeof(message), 0) != (ssize_t)sizeof(message))
            continue;
        message.type = HANDSHAKE_WELCOME;
        message.result = HANDSHAKE_OK;
        message.instance[0] ^= 1;
        (void)!send(fd, &message, sizeof(message), MSG_NOSIGNAL);
        if (recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message))
            atomic_store(&board->word[ACCEPTED], 1);
    }
}

/* Never answers itself. */
static void gives_listener_away(unsigned number)
{
    uint32_t qpn = publish_qpn(number);
    int listener = dup(local_block_socket(qpn / LOCAL_BLOCK_QPNS));
    pid_t child = fork();

    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        answer_for(listener);
        _exit(0);
    }
    while (!atomic_load(&board->word[DONE]))
        poll(NULL, 0, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void looks_for_owner(unsigned number)
{
    CHECK(!find_link(await_qpn(0)));
    CHECK(!atomic_load(&board->word[ACCEPTED]));
    atomic_store(&board->word[DONE], 1);
}

static void test_only_the_owner_of_a_name_answers_for_it(void **state)
{
    side_fn *const sides[] = {gives_listener_away, looks_for_owner};

    board_clear();
    run_sides(sides, array_size(sides));
}

/* --- questions ----------------------------------------------------------------------------------------------- */

static void has_two_blocks(unsigned number)
{
    uint32_t block;

    become(OTHER);
    publish_qpn(number);
    CHECK(local_block_take(&block) == 0);
    atomic_store(&board->word[SECOND], block);
    UNTIL(atomic_load(&board->word[DONE]));
}

static bool owns(struct link *link, uint32_t block)
{
    bool it_does;

    rundown_enter();
    it_does = local_is_owner(link, block);
    rundown_exit();
    return it_does;
}

static void asks(unsigned number)
{
    uint32_t qpn = await_qpn(0), second;
    struct link *link;
    bool in_time = false;

    UNTIL((second = atomic_load(&board->word[SECOND])));
    link = find_link(qpn);
    CHECK(link && owns(link, qpn / LOCAL_BLOCK_QPNS) && owns(link, second));
    /* What is known is forgotten after a second. Then one question less is left than there are... */
    while (!in_time) {
        uint32_t asked = 0;
        ns_t began, now = sys_now();

        while (sys_now() - now < 2 * NS_PER_S)
            turn(100);
        began = sys_now();
        for (uint32_t block = 1; asked < QUESTIONS_OF_ONE; block++) {
            if (block == second || block == qpn / LOCAL_BLOCK_QPNS || block % LOCAL_SHARDS == 0)
                continue;
            CHECK(!owns(link, block));
            asked++;
        }
        /* ... if all that took less than the second in which they are counted. */
        in_time = sys_now() - began < NS_PER_S / 2;
        if (in_time)
            CHECK(!owns(link, second));
    }
    UNTIL(owns(link, second)); /* in the next one */
    atomic_store(&board->word[DONE], 1);
}

static void test_a_user_causes_so_many_questions_at_most(void **state)
{
    side_fn *const sides[] = {has_two_blocks, asks};

    if (geteuid() != 0) {
        print_message("needs root, to be another user\n");
        skip();
    }
    board_clear();
    run_sides(sides, array_size(sides));
}

/* --- last words ------------------------------------------------------------------------------------------------ */

/* Has its link, and has taken no block: nobody owns those that it speaks for. */
static void claims_what_is_nobodys(unsigned number)
{
    become(OTHER);
    CHECK(find_link(await_qpn(1)));
    UNTIL(atomic_load(&board->word[DONE]));
}

static struct link *other_link;
static void take_link(struct link *link, void *argument)
{
    other_link = link;
}

static void hears_last_words(unsigned number)
{
    uint32_t qpn = publish_qpn(number), nobodys = qpn / LOCAL_BLOCK_QPNS ^ 0x8000;

    UNTIL((local_for_each_link(take_link, NULL), other_link != NULL));
    CHECK(!owns(other_link, nobodys)); /* it is there */
    atomic_store(&board->word[DONE], 1);
    while (link_peer_is_there(other_link))
        poll(NULL, 0, 1);
    CHECK(owns(other_link, nobodys));
    CHECK(!owns(other_link, qpn / LOCAL_BLOCK_QPNS)); /* somebody's */
}

static void test_last_words_are_believed_for_what_nobody_owns(void **state)
{
    side_fn *const sides[] = {claims_what_is_nobodys, hears_last_words};

    if (geteuid() != 0) {
        print_message("needs root, to be another user\n");
        skip();
    }
    board_clear();
    run_sides(sides, array_size(sides));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_owner_of_a_name_answers_for_it),
        cmocka_unit_test(test_a_user_causes_so_many_questions_at_most),
        cmocka_unit_test(test_last_words_are_believed_for_what_nobody_owns),
    };

    return run_local_tests("local_owners", tests);
}
