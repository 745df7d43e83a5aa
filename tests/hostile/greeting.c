/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process tells whoever greets it, and what it permits him: anybody can connect to the name of a block of QP
 * numbers and say HELLO. */
#include "attacker.h"
#include "work.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "local/handshake_message.h"
#include "local/layout.h"
#include "local/notify.h"

#define VICTIM (&sides[1])

enum { BLOCK_QPNS = 256, GREETING_SIDES = 1, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* --- the attacker --------------------------------------------------------------------------------------- */

static socklen_t name_of(uint32_t block, struct sockaddr_un *ret_address)
{
    int length;

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = snprintf(ret_address->sun_path + 1, sizeof(ret_address->sun_path) - 1, BLOCK_NAME_PREFIX "%04x",
                      block);
    return (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)length;
}

static void send_message(int socket, const struct handshake_message *message, int memory)
{
    struct iovec part = {(void *)(uintptr_t)message, sizeof(*message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr msg = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    memcpy(CMSG_DATA(&control.header), &memory, sizeof(memory));
    CHECK(sendmsg(socket, &msg, MSG_NOSIGNAL) == sizeof(*message), "sendmsg: %s", strerror(errno));
}

/* Says HELLO, and tells the answer. */
static void greet(int connection, const void *argument)
{
    const uint32_t *qpn = argument;
    struct handshake_message message = {.magic = HANDSHAKE_MAGIC,
                                        .version = HANDSHAKE_VERSION,
                                        .type = HANDSHAKE_HELLO,
                                        .instance = {'a', 't', 't', 'a', 'c', 'k', 'e', 'r'},
                                        .layout_size = LAYOUT_SIZE};
    int memory = make_segment_file(0, LAYOUT_SIZE, ALL_SEALS),
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    socklen_t length = name_of(*qpn / BLOCK_QPNS, &address);

    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0, "connect: %s", strerror(errno));
    send_message(fd, &message, memory);
    CHECK(recv(fd, &message, sizeof(message), 0) == sizeof(message), "no answer");
    attacker_ready(connection, &message, sizeof(message));
}

/* Takes the name of a block, tells a QP number of it, and waits for a HELLO; returns the connection. */
static int await_hello(int connection, struct handshake_message *ret_hello)
{
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd;
    struct sockaddr_un address;
    uint32_t qpn = 0;

    for (uint32_t block = 0x4711; !qpn; block++) {
        socklen_t length = name_of(block, &address);

        if (bind(listener, (struct sockaddr *)&address, length) == 0)
            qpn = block * BLOCK_QPNS + 1;
    }
    CHECK(listen(listener, 4) == 0 && send(connection, &qpn, sizeof(qpn), 0) == sizeof(qpn), "listen: %s",
          strerror(errno));
    fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && recv(fd, ret_hello, sizeof(*ret_hello), 0) == sizeof(*ret_hello), "no HELLO");
    return fd;
}

static void be_greeted(int connection, const void *argument)
{
    struct handshake_message hello;

    await_hello(connection, &hello);
    attacker_ready(connection, &hello, sizeof(hello));
}

/* Becomes a link, and tells how many descriptors come over it before the first doorbell, which follows the first
 * packet. */
static void collect_descriptors(int connection, const void *argument)
{
    struct handshake_message message;
    int fd = await_hello(connection, &message);
    uint32_t descriptors = 0;
    char data[256];

    message.type = HANDSHAKE_WELCOME;
    message.result = HANDSHAKE_OK;
    message.instance[0] ^= 1; /* of another process */
    CHECK(send(fd, &message, sizeof(message), 0) == sizeof(message), "send: %s", strerror(errno));
    CHECK(recv(fd, &message, sizeof(message), 0) == sizeof(message) && message.type == HANDSHAKE_READY,
          "no READY");
    do {
        struct iovec part = {data, sizeof(data)};
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(16 * sizeof(int))];
        } control;
        struct msghdr got = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

        CHECK(recvmsg(fd, &got, 0) > 0, "no doorbell");
        descriptors += CMSG_FIRSTHDR(&got) != NULL;
    } while (data[0] != LINK_RINGS);
    attacker_ready(connection, &descriptors, sizeof(descriptors));
}

static struct handshake_message answer_to(uid_t user, uint32_t qpn)
{
    struct attacker attacker = attacker_start(user, greet, &qpn);
    struct handshake_message message;

    attacker_told(&attacker, &message, sizeof(message));
    attacker_end(&attacker);
    return message;
}

/* --- addresses ------------------------------------------------------------------------------------------ */

static void become_here(void *argument)
{
    become(*(uid_t *)argument);
}

static void open_victim(struct end *end, enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);
    uid_t user = VICTIM_USER;

    attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
    need_root();
    side_call(VICTIM, become_here, &user, sizeof(user));
    end_open(end, VICTIM, &attr);
}

static void check_silent(const struct handshake_message *message, enum handshake_type type)
{
    static const uint8_t nothing[sizeof(message->nonce)];

    assert_int_equal(message->type, type);
    assert_int_equal(message->nonce_address, 0);
    assert_memory_equal(message->nonce, nothing, sizeof(nothing));
    assert_int_equal(message->segment, 0);
    assert_int_equal(message->flags & HANDSHAKE_MAY_PROBE, 0);
}

static void another_user_learns_no_address_by_a_greeting(void **state)
{
    struct handshake_message welcome;
    struct end victim;

    open_victim(&victim, IBV_QPT_RC);
    welcome = answer_to(ATTACKER_USER, victim.qp_num);
    assert_int_equal(welcome.result, HANDSHAKE_OK);
    check_silent(&welcome, HANDSHAKE_WELCOME);
    /* The own user does, to try whether it may read there. */
    welcome = answer_to(VICTIM_USER, victim.qp_num);
    assert_int_equal(welcome.result, HANDSHAKE_OK);
    assert_true(welcome.nonce_address != 0 && welcome.flags & HANDSHAKE_MAY_PROBE);
    end_close(&victim);
}

static void nor_by_being_greeted(void **state)
{
    struct attacker attacker;
    struct handshake_message hello;
    struct end victim, target;
    uint32_t qpn;

    open_victim(&victim, IBV_QPT_RC);
    attacker = attacker_start(ATTACKER_USER, be_greeted, NULL);
    attacker_told(&attacker, &qpn, sizeof(qpn));
    target = victim;
    target.qp_num = qpn;
    end_to_init(&victim);
    end_to_rtr(&victim, &target);
    end_to_rts(&victim);
    end_send(&victim, a_send(&victim, 1, 0, 8));
    attacker_told(&attacker, &hello, sizeof(hello));
    check_silent(&hello, HANDSHAKE_HELLO);
    attacker_end(&attacker);
    end_close(&victim);
}

/* The eventfd of a completion channel wakes who sleeps on it; the page says who sleeps. */
static void nobody_else_gets_the_descriptors_of_a_channel(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    uid_t user = VICTIM_USER;
    uint32_t qpn, descriptors;
    struct end victim, target;
    struct attacker attacker;

    need_root();
    side_call(VICTIM, become_here, &user, sizeof(user));
    attr.channel = true;
    end_open(&victim, VICTIM, &attr);
    for (int own = 0; own < 2; own++) {
        attacker = attacker_start(own ? VICTIM_USER : ATTACKER_USER, collect_descriptors, NULL);
        attacker_told(&attacker, &qpn, sizeof(qpn));
        target = victim;
        target.qp_num = qpn;
        end_to_state(&victim, IBV_QPS_RESET);
        end_to_init(&victim);
        end_to_rtr(&victim, &target);
        end_to_rts(&victim);
        end_send(&victim, a_send(&victim, 1, 0, 8));
        attacker_told(&attacker, &descriptors, sizeof(descriptors));
        CHECK(own == (descriptors > 0), "%u descriptors for the %s user", descriptors, own ? "own" : "other");
        attacker_end(&attacker);
    }
    end_close(&victim);
}

/* --- ptrace --------------------------------------------------------------------------------------------- */

static _Atomic unsigned int permissions;

/* The library calls this instead of that of the C library. */
__attribute__((visibility("default"))) int prctl(int option, ...)
{
    unsigned long argument[4];
    va_list list;

    va_start(list, option);
    for (unsigned int i = 0; i < COUNT(argument); i++)
        argument[i] = va_arg(list, unsigned long);
    va_end(list);
    if (option == PR_SET_PTRACER && argument[0] == PR_SET_PTRACER_ANY)
        atomic_fetch_add(&permissions, 1);
    return (int)syscall(SYS_prctl, (long)option, argument[0], argument[1], argument[2], argument[3]);
}

static void permissions_here(void *argument)
{
    *(unsigned int *)argument = atomic_load(&permissions);
}

static unsigned int permissions_of_victim(void)
{
    unsigned int count = 0;

    side_call(VICTIM, permissions_here, &count, sizeof(count));
    return count;
}

/* As Ubuntu has it; the kernel here may have no Yama. */
static void pretend_yama(void)
{
    int fd;

    CHECK(mount("yama", "/proc/sys/kernel", "tmpfs", 0, "mode=755") == 0 &&
              mkdir("/proc/sys/kernel/yama", 0755) == 0,
          "mount: %s", strerror(errno));
    fd = open("/proc/sys/kernel/yama/ptrace_scope", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    CHECK(fd >= 0 && write(fd, "1\n", 2) == 2, "open: %s", strerror(errno));
    close(fd);
}

static void a_greeting_permits_ptrace_only_where_memory_may_be_copied(void **state)
{
    struct handshake_message welcome;
    struct end victim, connected;
    struct end_attr attr = attr_of(IBV_QPT_RC);

    need_root();
    pretend_yama();
    open_victim(&victim, IBV_QPT_UD); /* whose payload goes through the ring, whatever its length */
    welcome = answer_to(VICTIM_USER, victim.qp_num);
    assert_int_equal(welcome.result, HANDSHAKE_OK);
    assert_int_equal(permissions_of_victim(), 0);
    end_open(&connected, VICTIM, &attr);
    welcome = answer_to(VICTIM_USER, victim.qp_num);
    assert_int_equal(welcome.result, HANDSHAKE_OK);
    assert_true(permissions_of_victim() > 0);
    end_close(&connected);
    end_close(&victim);
    umount2("/proc/sys/kernel", MNT_DETACH);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(another_user_learns_no_address_by_a_greeting, .fars = GREETING_SIDES),
        TEST_WITH(nor_by_being_greeted, .fars = GREETING_SIDES),
        TEST_WITH(nobody_else_gets_the_descriptors_of_a_channel, .fars = GREETING_SIDES),
        TEST_WITH(a_greeting_permits_ptrace_only_where_memory_may_be_copied, .fars = GREETING_SIDES),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
