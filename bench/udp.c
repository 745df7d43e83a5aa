/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* UDP over loopback: packets of a fixed size, as many in one datagram as the kernel cuts apart (UDP_SEGMENT) and
 * hands over in one piece (UDP_GRO), from one sender as fast as it can to one receiver, who counts what arrives; and
 * one packet going to and fro between two who poll. The sockets are what whoever speaks RoCEv2 through sockets needs:
 * those that send are unconnected, those that receive tell who sent it to which address. What RoCEv2 adds to that is
 * the rest. With --between the two are in network namespaces of their own, by the names that ip-netns(8) gives them.
 *
 * --checked: both as RC over such sockets cannot do with less; nothing is queued, looked up, timed or completed. Of
 * the stream the sender computes the ICRC of each packet, the receiver checks it, copies the payload to its place in
 * a message and acknowledges what a system call has brought, and no more is under way than a window. To and fro go
 * SENDs of 8 bytes, and a stream of them: BTH, payload and ICRC are built, and ICRC, address, P_Key, QP number,
 * opcode and PSN checked. Who answers at once acknowledges by a second packet of the same datagram. */
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

#include "base/psn.h"
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

static _Noreturn void die(const char *what)
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

/* Into buffer[0]; its length. */
static size_t receive_polling(struct side *side, struct description *ret_description,
                              struct msghdr *ret_header)
{
    static struct iovec vector = {buffer[0], sizeof(buffer[0])};
    ssize_t length;

    do {
        *ret_header = described(ret_description, &vector);
        length = recvmsg(side->receiver, ret_header, MSG_DONTWAIT);
        if (length >= 0)
            return (size_t)length;
    } while (errno == EAGAIN);
    die("recvmsg");
}

static void answer(struct side *side, size_t size)
{
    struct description description;
    struct msghdr header;

    for (size_t i = 0; i < SAMPLES; i++) {
        receive_polling(side, &description, &header);
        send_one(side, buffer[0], size);
    }
}

static double measure_latency(struct side *side, size_t size)
{
    static uint64_t took[SAMPLES];
    struct description description;
    struct msghdr header;

    for (size_t i = 0; i < SAMPLES; i++) {
        uint64_t began = now_ns();

        send_one(side, buffer[0], size);
        receive_polling(side, &description, &header);
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

/* Until at most so many are not acknowledged. */
static void wait_for_room(struct side *side, uint64_t sent, unsigned most, uint64_t *acknowledged)
{
    do {
        uint64_t count;

        while (recv(side->receiver, &count, sizeof(count), MSG_DONTWAIT) == sizeof(count))
            *acknowledged = count;
    } while (sent - *acknowledged > most);
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
        wait_for_room(side, sent, WINDOW - PACKETS, &acknowledged);
        send_one(side, packets, sizeof(message[0]));
        sent += PACKETS;
        took = now_ns() - began;
    } while (took < STREAM_NS);
    wait_for_room(side, sent, 0, &acknowledged);
    took = now_ns() - began;
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
    send_one(side, "", LENGTH_OF_STOP);
    /* What is sent before the receiver is ready for it would be of this stream. */
    while (recv(side->receiver, buffer[0], sizeof(buffer[0]), 0) != LENGTH_OF_STOP) {
    }
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
            if (headers[i].msg_len == LENGTH_OF_STOP) {
                send_one(side, "", LENGTH_OF_STOP);
                return;
            }
            placed += place_packets((uint8_t *)buffer[i], headers[i].msg_len, placed);
        }
        send_one(side, &placed, sizeof(placed));
    }
}

/* --- checked, to and fro ---------------------------------------------------------------------------- */

static const uint32_t ACK_REQUEST = 1u << 31;
enum {
    PAYLOAD = 8,
    SEND_LENGTH = BTH_LENGTH + PAYLOAD + ICRC_LENGTH,
    ACK_LENGTH = BTH_LENGTH + AETH_LENGTH + ICRC_LENGTH,
    QPN = 0x123456,
    PKEY = 0xffff,
    ACK_WITHOUT_CREDITS = 0x1f, /* AETH syndrome */
};

struct requester_and_responder {
    /* Of the first and the second packet of a datagram: the kernel numbers what it cuts apart. */
    struct icrc_path to[2], from[2];
    struct icrc_memory computed, checked;
    uint32_t next_psn, acknowledged_psn, expected_psn, received;
    char payload[PAYLOAD], placed[PAYLOAD];
};

static void put_gid(uint8_t gid[16], struct in_addr address)
{
    memcpy(gid, (const uint8_t[12]){[10] = 0xff, [11] = 0xff}, 12);
    memcpy(gid + 12, &address, 4);
}

static void begin_checked(const struct side *side, struct requester_and_responder *ret_qp)
{
    memset(ret_qp, 0, sizeof(*ret_qp));
    for (uint16_t i = 0; i < 2; i++) {
        ret_qp->to[i] = ret_qp->from[i] = (struct icrc_path){.source_port = path.source_port,
                                                             .destination_port = path.destination_port,
                                                             .identification = i,
                                                             .dont_fragment = true};
        put_gid(ret_qp->to[i].source, side->address);
        put_gid(ret_qp->to[i].destination, side->peer.sin_addr);
        put_gid(ret_qp->from[i].source, side->peer.sin_addr);
        put_gid(ret_qp->from[i].destination, side->address);
    }
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, SEND_LENGTH);
}

static void put_headers(uint8_t *packet, enum bth_opcode opcode, uint32_t psn)
{
    const uint32_t words[BTH_LENGTH / 4] = {htonl((uint32_t)opcode << 24 | PKEY), htonl(QPN), htonl(psn)};

    memcpy(packet, words, sizeof(words));
}

static void send_checked(struct side *side, struct requester_and_responder *qp, bool acknowledges)
{
    uint8_t packets[SEND_LENGTH + ACK_LENGTH], *ack = packets + SEND_LENGTH;
    uint32_t aeth = htonl((uint32_t)ACK_WITHOUT_CREDITS << 24 | (qp->received & PSN_MASK));

    put_headers(packets, OP_SEND_ONLY, ACK_REQUEST | qp->next_psn);
    memcpy(packets + BTH_LENGTH, qp->payload, PAYLOAD);
    icrc_store(icrc_of_next(&qp->computed, &qp->to[0], packets, SEND_LENGTH), ack - ICRC_LENGTH);
    qp->next_psn = (qp->next_psn + 1) & PSN_MASK;
    if (acknowledges) {
        put_headers(ack, OP_ACKNOWLEDGE, (qp->expected_psn - 1) & PSN_MASK);
        memcpy(ack + BTH_LENGTH, &aeth, AETH_LENGTH);
        icrc_store(icrc_of_next(&qp->computed, &qp->to[1], ack, ACK_LENGTH), ack + ACK_LENGTH - ICRC_LENGTH);
    }
    send_one(side, packets, acknowledges ? sizeof(packets) : SEND_LENGTH);
}

/* Is it a SEND? What is neither that nor an acknowledgement of what was sent ends the program. */
static bool take_packet(struct requester_and_responder *qp, const uint8_t *packet, size_t length,
                        unsigned number)
{
    uint32_t words[BTH_LENGTH / 4], psn;

    if (length < BTH_LENGTH + ICRC_LENGTH || number > 1 ||
        !icrc_check_next(&qp->checked, &qp->from[number], packet, length))
        die("ICRC");
    memcpy(words, packet, sizeof(words));
    psn = ntohl(words[2]) & PSN_MASK;
    if (ntohl(words[1]) != QPN || (ntohl(words[0]) & 0xffff) != PKEY)
        die("QP number or P_Key");
    if (packet[0] == OP_SEND_ONLY && length == SEND_LENGTH && psn == qp->expected_psn) {
        memcpy(qp->placed, packet + BTH_LENGTH, PAYLOAD);
        qp->expected_psn = (psn + 1) & PSN_MASK;
        qp->received++;
        return true;
    }
    if (packet[0] != OP_ACKNOWLEDGE || length != ACK_LENGTH || packet[BTH_LENGTH] >> 5 ||
        psn != ((qp->next_psn - 1) & PSN_MASK))
        die("opcode or PSN");
    qp->acknowledged_psn = psn;
    return false;
}

/* Bytes of each packet but the last: what the kernel put together, it says. ECN marks would be answered by CNPs. */
static size_t length_of_packets(struct msghdr *header, size_t length)
{
    int segment = (int)length;

    for (struct cmsghdr *word = CMSG_FIRSTHDR(header); word; word = CMSG_NXTHDR(header, word)) {
        if (word->cmsg_level == IPPROTO_UDP && word->cmsg_type == UDP_GRO)
            memcpy(&segment, CMSG_DATA(word), sizeof(segment));
        if (word->cmsg_level == IPPROTO_IP && word->cmsg_type == IP_TOS && (*CMSG_DATA(word) & 3) == 3)
            die("congestion");
    }
    return segment > 0 ? (size_t)segment : length;
}

/* Until a SEND has come. */
static void take_send(struct side *side, struct requester_and_responder *qp)
{
    struct description description;
    struct msghdr header;
    bool taken = false;

    while (!taken) {
        size_t length = receive_polling(side, &description, &header),
               each = length_of_packets(&header, length);
        const uint8_t *packet = (const uint8_t *)buffer[0];

        if (description.source.sin_addr.s_addr != side->peer.sin_addr.s_addr)
            die("address");
        for (unsigned number = 0; length; number++) {
            size_t size = each < length ? each : length;

            taken |= take_packet(qp, packet, size, number);
            packet += size;
            length -= size;
        }
    }
}

static void answer_checked(struct side *side)
{
    struct requester_and_responder qp;

    begin_checked(side, &qp);
    for (size_t i = 0; i < SAMPLES; i++) {
        take_send(side, &qp);
        memcpy(qp.payload, qp.placed, PAYLOAD);
        send_checked(side, &qp, true);
    }
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
}

static double measure_checked_latency(struct side *side)
{
    static uint64_t took[SAMPLES];
    struct requester_and_responder qp;

    begin_checked(side, &qp);
    for (size_t i = 0; i < SAMPLES; i++) {
        uint64_t began = now_ns();

        memcpy(qp.payload, &began, PAYLOAD);
        send_checked(side, &qp, i > 0);
        take_send(side, &qp);
        took[i] = now_ns() - began;
        if (memcmp(qp.placed, &began, PAYLOAD))
            die("the answer");
    }
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
    if (qp.acknowledged_psn != SAMPLES - 1)
        die("acknowledgement");
    return (double)median(took, SAMPLES) / 2000;
}

/* --- checked, a stream of small packets -------------------------------------------------------------- */

enum { SMALL_UNDER_WAY = 512 };

/* Packets/s. */
static double stream_small(struct side *side)
{
    static uint8_t packets[SEGMENTS][SEND_LENGTH];
    struct requester_and_responder qp;
    uint64_t sent = 0, acknowledged = 0, began = now_ns(), took;

    begin_checked(side, &qp);
    do {
        for (unsigned i = 0; i < SEGMENTS; i++) {
            put_headers(packets[i], OP_SEND_ONLY, qp.next_psn);
            memcpy(packets[i] + BTH_LENGTH, &sent, PAYLOAD);
            icrc_store(icrc_of_next(&qp.computed, &qp.to[0], packets[i], SEND_LENGTH),
                       packets[i] + SEND_LENGTH - ICRC_LENGTH);
            qp.next_psn = (qp.next_psn + 1) & PSN_MASK;
            sent++;
        }
        send_one(side, packets, sizeof(packets));
        wait_for_room(side, sent, SMALL_UNDER_WAY - SEGMENTS, &acknowledged);
        took = now_ns() - began;
    } while (took < STREAM_NS);
    wait_for_room(side, sent, 0, &acknowledged);
    took = now_ns() - began;
    set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
    send_one(side, "", LENGTH_OF_STOP);
    return (double)sent / ((double)took / 1e9);
}

static void receive_small(struct side *side)
{
    struct requester_and_responder qp;
    struct mmsghdr headers[BATCH];
    uint64_t received = 0;

    begin_checked(side, &qp);
    for (;;) {
        int count = receive_batch(side, headers);

        for (int i = 0; i < count; i++) {
            const uint8_t *packet = (const uint8_t *)buffer[i];

            if (headers[i].msg_len == LENGTH_OF_STOP) {
                set(side->sender, IPPROTO_UDP, UDP_SEGMENT, 0);
                return;
            }
            for (size_t left = headers[i].msg_len; left >= SEND_LENGTH;
                 left -= SEND_LENGTH, packet += SEND_LENGTH)
                received += take_packet(&qp, packet, SEND_LENGTH, 0);
        }
        send_one(side, &received, sizeof(received));
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
        if (checked) {
            answer_checked(&sides[1]);
            receive_checked(&sides[1]);
            receive_small(&sides[1]);
        }
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
    if (checked) {
        double latency = measure_checked_latency(&sides[0]), gbps = stream_checked(&sides[0]);

        printf("checked latency_us %.3f gbps %.3f small_rate %.0f\n", latency, gbps, stream_small(&sides[0]));
    }
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
