/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* UDP over loopback: packets of a fixed size, as many in one datagram as the kernel cuts apart (UDP_SEGMENT)
 * and hands over in one piece (UDP_GRO), from one sender as fast as it can to one receiver, who counts what
 * arrives; and one packet going to and fro between two who poll. The sockets are what whoever speaks RoCEv2
 * through sockets needs: those that send are unconnected, those that receive tell who sent it to which
 * address. What RoCEv2 adds to that is the rest. With --between the two are in network namespaces of their
 * own, by the names that ip-netns(8) gives them.
 *
 * --checked: the stream as RC over such sockets cannot do with less. The sender computes the ICRC of each packet, the
 * receiver checks it, copies the payload to its place in a message and acknowledges what a system call has brought, and
 * no more is under way than a window. Nothing is lost, queued, looked up or completed. */
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum {
    SAMPLES = 20000,
    PACKET = 4096,
    SEGMENTS = 64,
    DATAGRAM = 65000,
    BATCH = 4, /* datagrams per system call */
    BUFFER = 4 << 20,
    LENGTH_OF_STOP = 1,
    OVERHEAD = BTH_LENGTH + ICRC_LENGTH,
    MESSAGE = 1 << 20,
    WINDOW = 128, /* packets, as transport's largest window */
};
static const uint64_t STREAM_NS = 300000000;

static char buffer[BATCH][65536];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void set(int fd, int level, int option, int value)
{
    if (setsockopt(fd, level, option, &value, sizeof(value)))
        die("setsockopt");
}

/* One to receive and one to send from, for each side. */
struct side {
    const char *namespace; /* NULL: where we are */
    struct in_addr address;
    int receiver, sender;
    struct sockaddr_in peer;
};

/* Sockets stay where they were opened. */
static void enter(const char *namespace)
{
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "/run/netns/%s", namespace);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET))
        die(path);
    close(fd);
}

static int open_socket(struct in_addr address)
{
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = address};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)))
        die("socket");
    set(fd, SOL_SOCKET, SO_RCVBUF, BUFFER);
    set(fd, SOL_SOCKET, SO_SNDBUF, BUFFER);
    return fd;
}

static void open_sides(struct side sides[2])
{
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof(sides[0].peer);

        if (sides[i].namespace)
            enter(sides[i].namespace);
        sides[i].sender = open_socket(sides[i].address);
        set(sides[i].sender, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
        sides[i].receiver = open_socket(sides[i].address);
        set(sides[i].receiver, IPPROTO_IP, IP_PKTINFO, 1);
        set(sides[i].receiver, IPPROTO_IP, IP_RECVTOS, 1);
        set(sides[i].receiver, IPPROTO_IP, IP_RECVTTL, 1);
        set(sides[i].receiver, IPPROTO_UDP, UDP_GRO, 1);
        if (getsockname(sides[i].receiver, (struct sockaddr *)&sides[1 - i].peer, &length))
            die("getsockname");
    }
}

static void send_one(struct side *side, const void *data, size_t size)
{
    if (sendto(side->sender, data, size, 0, (struct sockaddr *)&side->peer, sizeof(side->peer)) !=
        (ssize_t)size)
        die("send");
}

/* What the kernel says of a datagram. */
struct description {
    struct sockaddr_in source;
    char control[256] __attribute__((aligned(16)));
};

static struct msghdr described(struct description *description, struct iovec *vector)
{
    return (struct msghdr){
        .msg_name = &description->source,
        .msg_namelen = sizeof(description->source),
        .msg_iov = vector,
        .msg_iovlen = 1,
        .msg_control = description->control,
        .msg_controllen = sizeof(description->control),
    };
}

/* --- to and fro ----------------------------------------------------------------------------------- */

static void receive_polling(struct side *side)
{
    struct iovec vector = {buffer[0], sizeof(buffer[0])};
    struct description description;
    struct msghdr header;

    do {
        header = described(&description, &vector);
        if (recvmsg(side->receiver, &header, MSG_DONTWAIT) >= 0)
            return;
    } while (errno == EAGAIN);
    die("recvmsg");
}

static void answer(struct side *side, size_t size)
{
    for (size_t i = 0; i < SAMPLES; i++) {
        receive_polling(side);
        send_one(side, buffer[0], size);
    }
}

static double measure_latency(struct side *side, size_t size)
{
    static uint64_t took[SAMPLES];

    for (size_t i = 0; i < SAMPLES; i++) {
        uint64_t began = now_ns();

        send_one(side, buffer[0], size);
        receive_polling(side);
        took[i] = now_ns() - began;
    }
    return (double)median(took, SAMPLES) / 2000;
}

/* --- stream --------------------------------------------------------------------------------------- */

static void stream(struct side *side, size_t size)
{
    size_t packets = DATAGRAM / size < SEGMENTS ? DATAGRAM / size : SEGMENTS;
    struct mmsghdr headers[BATCH];
    struct iovec vectors[BATCH];
    uint64_t began = now_ns();

    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){buffer[i], packets * size};
        headers[i].msg_hdr = (struct msghdr){.msg_name = &side->peer,
                                             .msg_namelen = sizeof(side->peer),
                                             .msg_iov = &vectors[i],
                                             .msg_iovlen = 1};
    }
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, (int)size);
    while (now_ns() - began < STREAM_NS)
        if (sendmmsg(side->sender, headers, BATCH, 0) < 0 && errno != ENOBUFS && errno != EAGAIN)
            die("sendmmsg");
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
}

/* Until the answer is there, for the word may be lost where the stream overruns the receiver. */
static double end_of_stream(struct side *side)
{
    struct timeval patience = {.tv_usec = 20000};
    double gbps;

    if (setsockopt(side->receiver, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
        die("SO_RCVTIMEO");
    do
        send_one(side, "", LENGTH_OF_STOP);
    while (recv(side->receiver, &gbps, sizeof(gbps), 0) != sizeof(gbps));
    return gbps;
}

/* Into buffer[]; the lengths are in headers. Returns how many came. */
static int receive_batch(struct side *side, struct mmsghdr headers[BATCH])
{
    static struct description descriptions[BATCH];
    static struct iovec vectors[BATCH];
    int count;

    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){buffer[i], sizeof(buffer[i])};
        headers[i].msg_hdr = described(&descriptions[i], &vectors[i]);
    }
    count = recvmmsg(side->receiver, headers, BATCH, MSG_WAITFORONE, NULL);
    if (count < 0)
        die("recvmmsg");
    return count;
}

/* The rate from the first datagram to the last. */
static void count_stream(struct side *side)
{
    struct mmsghdr headers[BATCH];
    uint64_t bytes = 0, first = 0, last = 0;
    double gbps;
    bool stopped = false;

    while (!stopped) {
        int count = receive_batch(side, headers);

        for (int i = 0; i < count; i++) {
            if (headers[i].msg_len == LENGTH_OF_STOP) {
                stopped = true;
                continue;
            }
            last = now_ns();
            if (!first)
                first = last;
            else
                bytes += headers[i].msg_len;
        }
    }
    gbps = last > first ? (double)bytes / (double)(last - first) : 0;
    send_one(side, &gbps, sizeof(gbps));
}

/* --- checked stream --------------------------------------------------------------------------------- */

static const struct icrc_path path = {.source_port = 50000, .destination_port = ROCE_UDP_PORT};

static void wait_for_room(struct side *side, uint64_t sent, unsigned packets, uint64_t *acknowledged)
{
    do {
        uint64_t count;

        while (recv(side->receiver, &count, sizeof(count), MSG_DONTWAIT) == sizeof(count))
            *acknowledged = count;
    } while (sent + packets - *acknowledged > WINDOW);
}

/* GB/s of payload. The packets lie where they are sent from: a sender that copies them there does more. */
static double stream_checked(struct side *side)
{
    enum { SIZE = PACKET + OVERHEAD, PACKETS = DATAGRAM / SIZE, MESSAGES = MESSAGE / PACKET / PACKETS };
    static uint8_t message[MESSAGES][PACKETS][SIZE];
    uint64_t sent = 0, acknowledged = 0, began = now_ns(), took;

    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, SIZE);
    do {
        uint8_t(*packets)[SIZE] = message[sent / PACKETS % MESSAGES];

        for (unsigned i = 0; i < PACKETS; i++)
            icrc_store(icrc_of(&path, packets[i], SIZE), packets[i] + SIZE - ICRC_LENGTH);
        wait_for_room(side, sent, PACKETS, &acknowledged);
        send_one(side, packets, sizeof(message[0]));
        sent += PACKETS;
        took = now_ns() - began;
    } while (took < STREAM_NS);
    wait_for_room(side, sent, WINDOW, &acknowledged);
    took = now_ns() - began;
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
    send_one(side, "", LENGTH_OF_STOP);
    return (double)(sent * PACKET) / (double)took;
}

/* The packets of a datagram, into the message. */
static unsigned place_packets(const uint8_t *packets, size_t length, uint64_t count)
{
    static uint8_t message[MESSAGE];
    unsigned placed = 0;

    for (; length >= PACKET + OVERHEAD; length -= PACKET + OVERHEAD, packets += PACKET + OVERHEAD) {
        if (!icrc_check(&path, packets, PACKET + OVERHEAD))
            die("ICRC");
        memcpy(message + (count + placed++) * PACKET % MESSAGE, packets + BTH_LENGTH, PACKET);
    }
    return placed;
}

static void receive_checked(struct side *side)
{
    struct mmsghdr headers[BATCH];
    uint64_t placed = 0;

    for (;;) {
        int count = receive_batch(side, headers);

        for (int i = 0; i < count; i++) {
            if (headers[i].msg_len == LENGTH_OF_STOP)
                return;
            placed += place_packets((uint8_t *)buffer[i], headers[i].msg_len, placed);
        }
        send_one(side, &placed, sizeof(placed));
    }
}

/* The word may have been said several times. */
static void empty(struct side *side)
{
    while (recv(side->receiver, buffer[0], sizeof(buffer[0]), MSG_DONTWAIT) >= 0) {
    }
}

/* --- both ------------------------------------------------------------------------------------------ */

static size_t packet_of(const char *text)
{
    size_t size = strtoull(text, NULL, 0);

    if (size <= LENGTH_OF_STOP) {
        fprintf(stderr, "sizes are larger than %d\n", LENGTH_OF_STOP);
        exit(2);
    }
    return size < PACKET ? size : PACKET;
}

static void hear(int fd)
{
    char word;

    if (read(fd, &word, 1) != 1)
        die("the other side");
}

static void tell(int fd)
{
    if (write(fd, "", 1) != 1)
        die("the other side");
}

static void place(struct side *side, char **namespace_and_address)
{
    side->namespace = namespace_and_address[0];
    if (!inet_aton(namespace_and_address[1], &side->address)) {
        fprintf(stderr, "%s is no address\n", namespace_and_address[1]);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct side sides[2] = {{.address.s_addr = htonl(INADDR_LOOPBACK)},
                            {.address.s_addr = htonl(INADDR_LOOPBACK)}};
    bool checked = false;
    int turn[2], status;
    pid_t child;

    if (argc > 5 && strcmp(argv[1], "--between") == 0) {
        place(&sides[0], argv + 2);
        place(&sides[1], argv + 4);
        argv += 5;
        argc -= 5;
    }
    if (argc > 1 && strcmp(argv[1], "--checked") == 0) {
        checked = true;
        argv++;
        argc--;
    }
    if (checked ? argc != 3 : argc < 4) {
        fprintf(stderr,
                "usage: bench_udp [--between NETNS ADDRESS NETNS ADDRESS] CPU CPU SIZE...\n"
                "       bench_udp [--between NETNS ADDRESS NETNS ADDRESS] --checked CPU CPU\n"
                "Larger messages go in packets of %d.\n",
                PACKET);
        return 2;
    }
    open_sides(sides);
    if (pipe(turn))
        die("pipe");
    child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL))
            die("prctl");
        pin(atoi(argv[2]));
        if (checked)
            receive_checked(&sides[1]);
        for (int i = 3; i < argc; i++) {
            answer(&sides[1], packet_of(argv[i]));
            count_stream(&sides[1]);
            hear(turn[0]);
            empty(&sides[1]);
            send_one(&sides[1], "", 1);
        }
        _exit(0);
    }
    pin(atoi(argv[1]));
    if (checked)
        printf("checked gbps %.3f\n", stream_checked(&sides[0]));
    for (int i = 3; i < argc; i++) {
        size_t packet = packet_of(argv[i]);
        double latency = measure_latency(&sides[0], packet), gbps;

        stream(&sides[0], packet);
        gbps = end_of_stream(&sides[0]);
        printf("size %s latency_us %.3f gbps %.3f\n", argv[i], latency, gbps);
        fflush(stdout);
        tell(turn[1]);
        if (recv(sides[0].receiver, buffer[0], sizeof(buffer[0]), 0) < 0)
            die("recv");
    }
    return waitpid(child, &status, 0) != child || status;
}
