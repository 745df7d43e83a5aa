/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Control requests: who is heard, what becomes of the descriptor, and how what lasts ends. A side is the process that
 * is asked; another one is the tool. */
#include "test_local_sides.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/memory_file.h"
#include "local/handshake_message.h"

/* Words of the board. */
enum { GO, ENDED, ASKED };

/* --- the process ---------------------------------------------------------------------------------------- */

static int answers;
static int result_of_control;

static int decide(enum control_subject subject, int file, char *why, size_t size)
{
    uint64_t length;

    answers++;
    atomic_fetch_add(&board->word[ASKED], 1);
    CHECK(subject == CONTROL_CAPTURE || subject == CONTROL_FAULTS);
    CHECK(subject != CONTROL_CAPTURE || (memory_file_check(file, &length) == 0 && length == 4096));
    CHECK(subject != CONTROL_FAULTS || file == -1);
    if (result_of_control < 0)
        snprintf(why, size, "the ring is too small");
    return result_of_control;
}

static void note_end(enum control_subject subject)
{
    CHECK(subject == CONTROL_CAPTURE);
    atomic_fetch_add(&board->word[ENDED], 1);
}

static void serve(int result)
{
    unsigned fds;

    on_control = decide;
    on_control_ended = note_end;
    result_of_control = result;
    publish_qpn(0);
    fds = count_fds();
    UNTIL(atomic_load(&board->word[GO]) == 1);
    turn(0); /* what the tool's end has left */
    CHECK(count_fds() == fds);
}

static void accepts(unsigned number)
{
    serve(0);
    CHECK(answers == 1 && atomic_load(&board->word[ENDED]) == 0);
}

static void attaches(unsigned number)
{
    serve(1);
    CHECK(answers == 1 && atomic_load(&board->word[ENDED]) == 1);
}

static void refuses(unsigned number)
{
    serve(-EINVAL);
    CHECK(answers == 1);
}

static void hears_nobody(unsigned number)
{
    serve(1);
    CHECK(answers == 0);
}

/* --- the tool ------------------------------------------------------------------------------------------- */

static int connect_to_owner(void)
{
    struct sockaddr_un address;
    socklen_t length = block_address(await_qpn(0) / LOCAL_BLOCK_QPNS, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

static void request(int socket, enum control_subject subject, const char *secret, int file)
{
    struct control_request message = {.magic = SEGMENT_REQUEST_MAGIC,
                                      .version = SEGMENT_REQUEST_VERSION,
                                      .type = CONTROL_REQUEST_TYPE,
                                      .subject = subject};
    struct iovec part = {&message, sizeof(message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    memcpy(message.secret, secret, sizeof(message.secret));
    if (file >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
    }
    CHECK(sendmsg(socket, &msg, MSG_NOSIGNAL) == sizeof(message));
}

static struct control_answer answer_of(int socket)
{
    struct control_answer answer;

    CHECK(recv(socket, &answer, sizeof(answer), 0) == sizeof(answer));
    CHECK(answer.magic == SEGMENT_REQUEST_MAGIC && answer.type == CONTROL_REQUEST_TYPE);
    CHECK(memchr(answer.why, '\0', sizeof(answer.why)));
    return answer;
}

static struct control_answer ask(int socket, enum control_subject subject, const char *secret, int file)
{
    request(socket, subject, secret, file);
    return answer_of(socket);
}

static int make_file(void)
{
    int fd = memory_file_make("test", 4096);

    CHECK(fd >= 0);
    return fd;
}

static bool has_ended(int socket)
{
    char byte;

    return recv(socket, &byte, 1, 0) == 0;
}

static void is_accepted(unsigned number)
{
    int socket = connect_to_owner();

    CHECK(ask(socket, CONTROL_FAULTS, SEGMENT_SECRET, -1).result == CONTROL_ACCEPTED);
    CHECK(has_ended(socket));
    atomic_store(&board->word[GO], 1);
}

static void closes(unsigned number)
{
    int socket = connect_to_owner();

    CHECK(ask(socket, CONTROL_CAPTURE, SEGMENT_SECRET, make_file()).result == CONTROL_ATTACHED);
    CHECK(atomic_load(&board->word[ENDED]) == 0);
    close(socket);
    UNTIL(atomic_load(&board->word[ENDED]) == 1);
    atomic_store(&board->word[GO], 1);
}

static void attaches_and_waits(unsigned number)
{
    CHECK(ask(connect_to_owner(), CONTROL_CAPTURE, SEGMENT_SECRET, make_file()).result == CONTROL_ATTACHED);
    atomic_store(&board->qpn[1], 1);
    pause();
}

static void is_refused(unsigned number)
{
    int socket = connect_to_owner();
    struct control_answer answer = ask(socket, CONTROL_CAPTURE, SEGMENT_SECRET, make_file());

    CHECK(answer.result == CONTROL_REFUSED && strcmp(answer.why, "the ring is too small") == 0);
    CHECK(has_ended(socket));
    atomic_store(&board->word[GO], 1);
}

static void does_not_know_the_secret(unsigned number)
{
    static const char *const wrong[] = {"0123456789abcdeX", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"};

    for (unsigned i = 0; i < array_size(wrong); i++) {
        struct control_answer answer = ask(connect_to_owner(), CONTROL_CAPTURE, wrong[i], make_file());

        CHECK(answer.result == CONTROL_REFUSED && strstr(answer.why, "may ptrace it"));
    }
    atomic_store(&board->word[GO], 1);
}

/* Sends, and closes before the process has read. */
static void gives_up(unsigned number)
{
    int socket = connect_to_owner();

    request(socket, CONTROL_CAPTURE, SEGMENT_SECRET, make_file());
    close(socket);
    atomic_store(&board->word[GO], 1);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void test_an_accepted_request_ends_the_connection(void **state)
{
    board_clear();
    RUN_SIDES(accepts, is_accepted);
}

static void test_what_lasts_ends_when_the_tool_closes(void **state)
{
    board_clear();
    RUN_SIDES(attaches, closes);
}

static void test_what_lasts_ends_when_the_tool_is_killed(void **state)
{
    pid_t process, tool;

    board_clear();
    process = side_start(attaches, 0);
    tool = side_start(attaches_and_waits, 1);
    while (!atomic_load(&board->qpn[1]))
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&board->word[ENDED]), 0);
    side_kill(tool);
    while (!atomic_load(&board->word[ENDED]))
        poll(NULL, 0, 1);
    atomic_store(&board->word[GO], 1);
    side_finish(process);
}

static void test_a_refusal_says_why(void **state)
{
    board_clear();
    RUN_SIDES(refuses, is_refused);
}

static void test_who_has_not_read_the_segment_is_not_heard(void **state)
{
    board_clear();
    RUN_SIDES(hears_nobody, does_not_know_the_secret);
}

/* A process that was stopped does not do later what its user was told has failed. */
static void test_a_request_whose_tool_has_given_up_is_dropped(void **state)
{
    pid_t process, tool;
    uint32_t asked;

    board_clear();
    process = side_start(hears_nobody, 0);
    while (!atomic_load(&board->qpn[0]))
        poll(NULL, 0, 1);
    kill(process, SIGSTOP);
    assert_int_equal(waitpid(process, NULL, WUNTRACED), process);
    tool = side_start(gives_up, 1);
    side_finish(tool);
    asked = atomic_load(&board->word[ASKED]);
    kill(process, SIGCONT);
    side_finish(process);
    assert_int_equal(asked, 0);
    assert_int_equal(atomic_load(&board->word[ASKED]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_accepted_request_ends_the_connection),
        cmocka_unit_test(test_what_lasts_ends_when_the_tool_closes),
        cmocka_unit_test(test_what_lasts_ends_when_the_tool_is_killed),
        cmocka_unit_test(test_a_refusal_says_why),
        cmocka_unit_test(test_who_has_not_read_the_segment_is_not_heard),
        cmocka_unit_test(test_a_request_whose_tool_has_given_up_is_dropped),
    };

    return run_local_tests("local_control", tests);
}
