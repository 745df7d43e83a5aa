/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* UDP port 4791 belongs to the first user who binds it, whose process forwards packets to the processes of others: its
 * guests. An attacker asks it for the packets of a guest. */
#include "attacker.h"
#include "work.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "udp/control_message.h"

#define PORT_OWNER (&sides[1])
#define GUEST      (&sides[2])
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

enum { OWNER_USER = 61013, BLOCK_QPNS = 256, PORT_SIDES = 2 };

/* --- what an attacker shows as a proof ------------------------------------------------------------------- */

static int bound_socket(int type, uint32_t block)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "softhca/2/qpn/%04x", block);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    if (fd >= 0 &&
        bind(fd, (struct sockaddr *)&name,
             (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)length) == 0 &&
        listen(fd, 1) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool send_fds(int socket, const void *data, size_t length, const int *fds, unsigned int count)
{
    struct iovec part = {(void *)(uintptr_t)data, length};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(16 * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

/* A listener of the guest's name, in a network namespace that anybody may make. -1: not on this machine. */
static int foreign_listener(uint32_t block)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int ends[2], fd = -1;
    pid_t child;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)
            fd = bound_socket(SOCK_SEQPACKET, block);
        _exit(fd < 0 || !send_fds(ends[1], &byte, 1, &fd, 1));
    }
    close(ends[1]);
    if (recvmsg(ends[0], &message, MSG_CMSG_CLOEXEC) == 1 && control.header.cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
    waitpid(child, NULL, 0);
    close(ends[0]);
    return fd;
}

/* --- asking the port owner ------------------------------------------------------------------------------- */

/* The names of all who serve the port; the port owner is the one who says so. */
static int connect_to_port_owner(void)
{
    FILE *names = fopen("/proc/net/unix", "re");
    const struct udp_message hello = {
        .magic = UDP_MESSAGE_MAGIC, .version = UDP_MESSAGE_VERSION, .type = UDP_MESSAGE_REQUEST, .serial = 1};
    char line[256];
    int found = -1;

    while (names && found < 0 && fgets(line, sizeof(line), names)) {
        const char *name = strstr(line, "@softhca/1/udp/");
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct udp_message reply = {0};
        int fd, forwarding[2];
        socklen_t length;

        if (!name)
            continue;
        length = (socklen_t)strcspn(name + 1, "\n");
        memcpy(address.sun_path + 1, name + 1, length);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd >= 0 &&
            connect(fd, (struct sockaddr *)&address,
                    (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + length) == 0 &&
            socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, forwarding) == 0 &&
            send_fds(fd, &hello, sizeof(hello), &forwarding[1], 1) &&
            recv(fd, &reply, sizeof(reply), 0) == sizeof(reply) &&
            (reply.flags & UDP_MESSAGE_FROM_PORT_OWNER))
            found = fd;
        else if (fd >= 0)
            close(fd);
    }
    if (names)
        fclose(names);
    return found;
}

enum proof { NO_PROOF, FOREIGN_NAMESPACE, STREAM_OF_THAT_NAME };

struct claim {
    uint32_t block;
    enum proof proof;
};

enum outcome { NOT_HERE, REFUSED, SERVED };

static void claim_block(int connection, const void *argument)
{
    const struct claim *claim = argument;
    struct udp_message request = {.magic = UDP_MESSAGE_MAGIC,
                                  .version = UDP_MESSAGE_VERSION,
                                  .type = UDP_MESSAGE_REQUEST,
                                  .serial = 2,
                                  .block_count = 1,
                                  .blocks = {(uint16_t)claim->block}},
                       reply = {0};
    int port_owner = connect_to_port_owner(), proof = -1;
    enum outcome outcome = NOT_HERE;

    CHECK(port_owner >= 0, "no port owner");
    if (claim->proof == FOREIGN_NAMESPACE)
        proof = foreign_listener(claim->block);
    else if (claim->proof == STREAM_OF_THAT_NAME)
        proof = bound_socket(SOCK_STREAM, claim->block);
    if (proof >= 0 || claim->proof == NO_PROOF) {
        CHECK(send_fds(port_owner, &request, sizeof(request), &proof, proof >= 0), "sendmsg: %s",
              strerror(errno));
        outcome = recv(port_owner, &reply, sizeof(reply), 0) == sizeof(reply) && reply.serial == 2 ? SERVED
                                                                                                   : REFUSED;
    }
    attacker_ready(connection, &outcome, sizeof(outcome));
}

/* --- port owner and guest -------------------------------------------------------------------------------- */

static void become_here(void *argument)
{
    become(*(uid_t *)argument);
}

/* a is the port owner's, b the guest's. */
static void connect_guest(struct pair *p)
{
    uid_t owner = OWNER_USER, guest = VICTIM_USER;
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.timeout = 14;
    attr.retry_cnt = 2; /* packets that somebody else gets end a connection soon */
    need_root();
    side_call(PORT_OWNER, become_here, &owner, sizeof(owner));
    side_call(GUEST, become_here, &guest, sizeof(guest));
    end_open(&p->a, PORT_OWNER, &attr);
    end_open(&p->b, GUEST, &attr);
    end_connect(&p->a, &p->b);
    pair_marker(&p->a, &p->b);
    pair_marker(&p->b, &p->a);
}

static void nobody_gets_packets_of_a_guest_by(struct pair *p, enum proof proof, const char *what)
{
    const struct claim claim = {p->b.qp_num / BLOCK_QPNS, proof};
    struct attacker attacker = attacker_start(ATTACKER_USER, claim_block, &claim);
    enum outcome outcome;

    attacker_told(&attacker, &outcome, sizeof(outcome));
    if (outcome == NOT_HERE) {
        attacker_end(&attacker);
        skip_because("no user namespaces for everybody");
    }
    CHECK(outcome == REFUSED, "%s is a proof", what);
    pair_marker(&p->a, &p->b);
    attacker_end(&attacker);
}

static void only_a_listener_of_this_host_proves_a_block(void **state)
{
    struct pair p;

    connect_guest(&p);
    nobody_gets_packets_of_a_guest_by(&p, STREAM_OF_THAT_NAME, "a stream socket of the same name");
    nobody_gets_packets_of_a_guest_by(&p, FOREIGN_NAMESPACE, "a listener in another network namespace");
    pair_close(&p);
}

/* getsockopt(SO_NETNS_COOKIE) fails, as it does before Linux 5.14. */
static void forget_cookies_here(void *argument)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_NETNS_COOKIE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
          "seccomp: %s", strerror(errno));
}

static void nor_where_the_kernel_does_not_name_namespaces(void **state)
{
    struct pair p;

    need_root();
    side_call(PORT_OWNER, forget_cookies_here, NULL, 0);
    connect_guest(&p);
    nobody_gets_packets_of_a_guest_by(&p, STREAM_OF_THAT_NAME, "a stream socket of the same name");
    nobody_gets_packets_of_a_guest_by(&p, FOREIGN_NAMESPACE, "a listener in another network namespace");
    pair_close(&p);
}

/* The port owner's user is believed without a proof: it could read the packets anyway. Its other processes must not
 * leave a guest deaf for ever, though. */
static void a_guest_declares_again_what_somebody_else_had(void **state)
{
    const struct claim *claim;
    struct claim of_guest = {.proof = NO_PROOF};
    struct attacker attacker;
    enum outcome outcome;
    struct pair p;

    connect_guest(&p);
    of_guest.block = p.b.qp_num / BLOCK_QPNS;
    claim = &of_guest;
    attacker = attacker_start(OWNER_USER, claim_block, claim);
    attacker_told(&attacker, &outcome, sizeof(outcome));
    assert_int_equal(outcome, SERVED);
    attacker_end(&attacker);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(only_a_listener_of_this_host_proves_a_block, .fars = PORT_SIDES),
        TEST_WITH(nor_where_the_kernel_does_not_name_namespaces, .fars = PORT_SIDES),
        TEST_WITH(a_guest_declares_again_what_somebody_else_had, .fars = PORT_SIDES),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
