/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packet sockets: what this host sends does not come back, whatever the kernel can do. */
#include "refused_calls.h"
#include "test_local_sides.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "engine/host/packet_socket.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

static bool lo_up(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;

    close(fd);
    return up;
}

/* A packet socket on lo, which sees each frame twice: as it is sent, and as it arrives. -1: not allowed here. */
static int on_lo(void)
{
    const struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex("lo")};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    assert_int_equal(packet_socket_ignore_outgoing(fd), 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void send_datagrams(unsigned count)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int receiver = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(receiver, (const struct sockaddr *)&to, sizeof(to)), 0);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(sendto(sender, "softhca", 7, 0, (const struct sockaddr *)&to, sizeof(to)), 7);
    /* The kernel shows the frame to packet sockets before. */
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(recv(receiver, (char[8]){0}, 8, 0), 7);
    close(receiver);
    close(sender);
}

static void assert_only_arrivals(int fd, unsigned wanted)
{
    unsigned arrived = 0;

    for (;;) {
        struct sockaddr_ll from;
        socklen_t length = sizeof(from);
        char frame[256];

        if (recvfrom(fd, frame, sizeof(frame), 0, (struct sockaddr *)&from, &length) < 0)
            break;
        assert_int_not_equal(from.sll_pkttype, PACKET_OUTGOING);
        arrived++;
    }
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(arrived, wanted);
}

static void what_is_sent_does_not_come_back(void **state)
{
    int fd = on_lo();

    if (fd < 0) {
        print_message("no packet socket: %s\n", strerror(errno));
        skip();
    }
    send_datagrams(3);
    assert_only_arrivals(fd, 3);
    close(fd);
}

/* The last test: the filter stays. */
static void nor_before_linux_4_20(void **state)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_PACKET, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_IGNORE_OUTGOING, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    refuse_calls(filter, array_size(filter));
    what_is_sent_does_not_come_back(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_does_not_come_back),
        cmocka_unit_test(nor_before_linux_4_20),
    };

    own_network();
    if (!lo_up()) {
        printf("no network namespace of its own: %s\n", strerror(errno));
        return 77;
    }
    return run_unit_tests("packet_socket", tests);
}
