/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets through real sockets over lo: valid packets arrive with all fields, damaged ones do not. */
#include "test_udp_sides.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

enum { BLOCK = 0x1234, QPN = BLOCK * 256 + 7 };

static const struct {
    const char *from, *to;
} ways[] = {{"127.0.0.1", "127.0.0.1"}, {"127.0.0.1", "127.1.2.3"}, {"::1", "::1"}};

/* A packet with a different value in each field of its opcode. */
static struct packet packet_of(uint8_t opcode, uint32_t payload_length)
{
    uint32_t properties = opcode_table[opcode].properties;
    struct packet packet = {
        .opcode = opcode,
        .flags = PACKET_SOLICITED | PACKET_ACK_REQUEST,
        .pkey = 0xffff,
        .dest_qpn = QPN,
        .psn = psn_make(0xabcdef),
    };

    if (properties & OPCODE_HAS_DETH) {
        packet.qkey = 0x11223344;
        packet.src_qpn = 0x556677;
    }
    if (properties & (OPCODE_HAS_RETH | OPCODE_HAS_ATOMIC_ETH)) {
        packet.rkey = 0x01020304;
        packet.address = 0x1112131415161718;
    }
    if (properties & OPCODE_HAS_RETH)
        packet.dma_length = 0x7fffffff;
    if (properties & OPCODE_HAS_ATOMIC_ETH) {
        packet.swap_add = 0x2122232425262728;
        packet.compare = 0x3132333435363738;
    }
    if (properties & OPCODE_HAS_AETH) {
        packet.syndrome = 0x1f;
        packet.msn = 0x414243;
    }
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        packet.original = 0x5152535455565758;
    if (properties & OPCODE_HAS_IMM)
        packet.imm_data = 0x61626364;
    if (properties & OPCODE_HAS_INVALIDATE)
        packet.invalidate_rkey = 0x71727374;
    if (properties & OPCODE_HAS_PAYLOAD)
        packet.payload_length = payload_length;
    return packet;
}

static void check_same(const struct packet *a, const struct packet *b)
{
    CHECK(a->opcode == b->opcode && a->flags == b->flags && a->pkey == b->pkey);
    CHECK(a->dest_qpn == b->dest_qpn && a->src_qpn == b->src_qpn && psn_equal(a->psn, b->psn));
    CHECK(a->syndrome == b->syndrome && a->msn == b->msn && a->imm_data == b->imm_data);
    CHECK(a->invalidate_rkey == b->invalidate_rkey && a->qkey == b->qkey && a->rkey == b->rkey);
    CHECK(a->dma_length == b->dma_length && a->address == b->address && a->swap_add == b->swap_add);
    CHECK(a->compare == b->compare && a->original == b->original);
    CHECK(a->payload_length == b->payload_length);
}

/* From a process to itself: the helper thread and this thread receive. */
static void open_block(void)
{
    own_block(BLOCK);
    CHECK(serve(BLOCK) == 0);
    CHECK(udp_state() == UDP_OPEN && udp_serves(BLOCK) && !udp_serves(BLOCK + 1));
}

enum { LABEL = 0x54321 };
/* Of <linux/in6.h>, which does not go with <netinet/in.h>. */
enum { FLOWLABEL_MANAGER = 32, FLOWINFO_IS_SENT = 33 };

/* May a socket send any flow label? Before Linux 5.3 only one that it has leased. */
static bool labels_are_free(void)
{
    const struct sockaddr_in6 to = {.sin6_family = AF_INET6,
                                    .sin6_port = htons(9),
                                    .sin6_addr = IN6ADDR_LOOPBACK_INIT,
                                    .sin6_flowinfo = htonl(LABEL)};
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), yes = 1;
    bool sent;

    CHECK(setsockopt(fd, IPPROTO_IPV6, FLOWINFO_IS_SENT, &yes, sizeof(yes)) == 0);
    sent = sendto(fd, "", 1, 0, (const struct sockaddr *)&to, sizeof(to)) == 1;
    CHECK(sent || errno == EINVAL);
    close(fd);
    return sent;
}

static void sends_every_opcode(unsigned number)
{
    static const uint32_t lengths[] = {0, 1, 2, 3, 4, 255, 1024, 4095, 4096};
    struct udp_path path = path_between(ways[number].from, ways[number].to);
    bool labelled = !ipudp_gid_is_ipv4(path.source) && labels_are_free();
    uint8_t bytes[PAYLOAD_MAX];
    unsigned sent = 0;

    open_block();
    path.traffic_class = 0x6a; /* ECT(0) */
    path.hop_limit = 33;
    path.flow_label = LABEL;
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        for (unsigned i = 0; opcode_table[opcode].name && i < array_size(lengths); i++) {
            struct packet packet = packet_of((uint8_t)opcode, lengths[i]);
            const struct iovec halves[2] = {
                {bytes, packet.payload_length / 2},
                {bytes + packet.payload_length / 2, packet.payload_length - packet.payload_length / 2}};
            const struct arrived *arrived = &inbox->kept[sent];

            fill_pattern(bytes, packet.payload_length, opcode);
            CHECK(udp_send(udp_lane(opcode), &path, &packet, halves, 2) == 0);
            udp_flush(udp_lane(opcode));
            UNTIL(atomic_load(&inbox->count) == sent + 1);
            check_same(&packet, &arrived->packet);
            CHECK(is_pattern(arrived, opcode));
            CHECK(!memcmp(arrived->packet.grh.source, path.source, 16));
            CHECK(!memcmp(arrived->packet.grh.destination, path.destination, 16));
            CHECK(arrived->packet.grh.hop_limit == 33 && arrived->packet.grh.traffic_class == 0x6a);
            CHECK(!labelled || arrived->packet.grh.flow_label == LABEL);
            CHECK(arrived->arrival.ifindex == 1 && !arrived->arrival.congested);
            CHECK(arrived->arrival.source_port >= 1024);
            sent++;
        }
    }
    CHECK(sent > 200 && udp_counters->bad_icrc == 0 && udp_counters->malformed == 0 &&
          udp_counters->not_sent == 0);
}

static void test_every_packet_arrives_as_it_was_sent(void **state)
{
    for (unsigned i = 0; i < array_size(ways); i++)
        side_finish(side_start(sends_every_opcode, i));
}

/* struct in6_flowlabel_req */
struct label_request {
    struct in6_addr destination;
    uint32_t label;
    uint8_t action, share;
    uint16_t flags, expires, linger, pad;
};

/* From then on nobody of this network namespace may send one that he has not leased. */
static void lease_a_label_for_itself(void)
{
    enum { GET = 0, CREATE = 1, EXCLUSIVE = 1 };
    const struct label_request request = {.destination = IN6ADDR_LOOPBACK_INIT,
                                          .label = htonl(0x12345),
                                          .action = GET,
                                          .share = EXCLUSIVE,
                                          .flags = CREATE};
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    CHECK(setsockopt(fd, IPPROTO_IPV6, FLOWLABEL_MANAGER, &request, sizeof(request)) == 0);
}

static void sends_labels_that_are_not_leased(unsigned number)
{
    const unsigned count = 8;
    struct udp_path path = path_between("::1", "::1");

    lease_a_label_for_itself();
    CHECK(!labels_are_free());
    open_block();
    for (unsigned i = 0; i < count; i++) {
        path.flow_label = i % 4 ? LABEL + i : 0;
        send_pattern(&path, QPN, i, 64, i);
        if (i % 3 == 2)
            udp_flush(udp_lane(QPN));
    }
    udp_flush(udp_lane(QPN));
    UNTIL(atomic_load(&inbox->count) + udp_counters->not_sent == count);
    CHECK(udp_counters->not_sent == 0);
    for (unsigned i = 0; i < count; i++)
        CHECK(inbox->kept[i].packet.psn.value == i && is_pattern(&inbox->kept[i], i));
}

static void test_packets_leave_where_labels_have_to_be_leased(void **state)
{
    side_finish(side_start(sends_labels_that_are_not_leased, 0));
}

/* Each packet has the attributes of its own path, whatever path its socket was opened for. */
static void sends_different_ways(unsigned number)
{
    static const struct {
        const char *from;
        uint8_t hop_limit;
    } all[] = {{"127.0.0.1", 33}, {"127.0.0.2", 33}, {"127.0.0.1", 255}, {"127.0.0.2", 1}};
    struct udp_path path;

    open_block();
    for (unsigned i = 0; i < 20; i++) {
        path = path_between(all[i * 7 / 3 % 4].from, "127.0.0.1");
        path.hop_limit = all[i * 7 / 3 % 4].hop_limit;
        send_pattern(&path, QPN, i, 64, i);
        if (i % 5 == 4)
            udp_flush(udp_lane(QPN));
    }
    UNTIL(atomic_load(&inbox->count) == 20);
    for (unsigned i = 0; i < 20; i++) {
        const struct arrived *arrived = &inbox->kept[i];

        path = path_between(all[i * 7 / 3 % 4].from, "127.0.0.1");
        CHECK(arrived->packet.psn.value == i && is_pattern(arrived, i));
        CHECK(!memcmp(arrived->packet.grh.source, path.source, 16));
        CHECK(arrived->packet.grh.hop_limit == all[i * 7 / 3 % 4].hop_limit);
    }
    CHECK(udp_counters->not_sent == 0 && udp_counters->bad_icrc == 0);
}

static void test_packets_from_several_addresses_leave_by_one_socket(void **state)
{
    side_finish(side_start(sends_different_ways, 0));
}

/* Consecutive packets leave in one datagram, and each has its own IPv4 identification. */
static void sends_batches(unsigned number)
{
    const struct udp_path path = path_between(ways[number].from, ways[number].to);
    unsigned sent = 0;

    open_block();
    for (unsigned round = 0; round < 40; round++) {
        uint32_t length = round % 4 == 0 ? 4096 : round % 4 == 1 ? 8 : round * 24;
        unsigned count = length > 1024 ? 1 + round / 2 : 1 + round,
                 from = sent; /* as many as a small send buffer takes */

        for (unsigned i = 0; i < count; i++, sent++) /* the last one is shorter */
            send_pattern(&path, QPN, sent, i + 1 == count ? length / 2 : length, sent);
        udp_flush(udp_lane(QPN));
        UNTIL(atomic_load(&inbox->count) == sent);
        for (unsigned i = from; i < sent; i++) {
            CHECK(inbox->kept[i].packet.psn.value == i);
            CHECK(is_pattern(&inbox->kept[i], i));
        }
    }
    CHECK(udp_counters->packets_sent == sent && udp_counters->packets_received == sent);
    CHECK(udp_counters->bad_icrc == 0);
}

static void test_batches_keep_their_order(void **state)
{
    for (unsigned i = 0; i < array_size(ways); i++)
        side_finish(side_start(sends_batches, i));
}

static void test_one_by_one_works_as_well(void **state)
{
    setenv("SOFTHCA_UDP", "plain", 1);
    for (unsigned i = 0; i < array_size(ways); i++)
        side_finish(side_start(sends_batches, i));
    unsetenv("SOFTHCA_UDP");
}

/* Many datagrams with one segment size, then others: the lane makes a repeated size the socket's default, and
 * datagrams with other sizes must still be segmented correctly. */
static void sends_forms(unsigned number)
{
    static const struct {
        unsigned count;
        uint32_t length, last;
    } forms[] = {{2, 8, 4}, {1, 4, 4},  {1, 64, 64}, {1, 4096, 4096}, {2, 8, 4},     {3, 64, 8},
                 {2, 8, 8}, {2, 64, 4}, {2, 8, 4},   {1, 1024, 1024}, {2, 1024, 64}, {2, 8, 4}};
    const unsigned rounds = 20;
    struct udp_path path = path_between(ways[number].from, ways[number].to);
    unsigned sent = 0;

    open_block();
    for (unsigned round = 0; round < rounds * array_size(forms); round++) {
        unsigned form = round / rounds, from = sent;

        path.hop_limit = round % 7 == 6 ? 33 : 64; /* sometimes another control message */
        for (unsigned i = 0; i < forms[form].count; i++, sent++)
            send_pattern(&path, QPN, sent, i + 1 == forms[form].count ? forms[form].last : forms[form].length,
                         sent);
        udp_flush(udp_lane(QPN));
        UNTIL(atomic_load(&inbox->count) == sent);
        for (unsigned i = from; i < sent; i++) {
            CHECK(inbox->kept[i].packet.psn.value == i && is_pattern(&inbox->kept[i], i));
            CHECK(inbox->kept[i].packet.grh.hop_limit == path.hop_limit);
        }
    }
    CHECK(udp_counters->packets_sent == sent && udp_counters->packets_received == sent);
    CHECK(udp_counters->bad_icrc == 0 && udp_counters->malformed == 0 && udp_counters->not_sent == 0);
}

static void test_datagrams_of_one_form_after_those_of_another(void **state)
{
    for (unsigned i = 0; i < array_size(ways); i++)
        side_finish(side_start(sends_forms, i));
}

/* A sender of RoCEv2 with a plain socket, where the kernel chooses the identification. */
static void foreign_socket(int domain, bool connected, const char *to, int *ret_fd, uint16_t *ret_port)
{
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(ROCE_UDP_PORT)};
    struct sockaddr_in name4 = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)},
                       any = {.sin_family = AF_INET};
    socklen_t length = sizeof(name);
    int fd = socket(domain, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, to, &name4.sin_addr);
    inet_pton(AF_INET6, to, &name.sin6_addr);
    if (!connected && domain == AF_INET)
        CHECK(bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0);
    CHECK(connect(fd, domain == AF_INET ? (struct sockaddr *)&name4 : (struct sockaddr *)&name,
                  domain == AF_INET ? sizeof(name4) : sizeof(name)) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
    *ret_fd = fd;
    *ret_port = ntohs(name.sin6_port);
}

static void seal(const struct udp_path *path, uint16_t source_port, uint16_t identification, uint8_t *bytes,
                 uint32_t length)
{
    struct icrc_path covered = {
        .source_port = source_port,
        .destination_port = ROCE_UDP_PORT,
        .identification = identification,
        .dont_fragment = true,
    };
    uint32_t crc;

    memcpy(covered.source, path->source, 16);
    memcpy(covered.destination, path->destination, 16);
    crc = icrc_add_headers(icrc_begin(&covered, length), bytes, length - ICRC_LENGTH);
    icrc_store(crc, bytes + length - ICRC_LENGTH);
}

static uint32_t build(const struct udp_path *path, uint16_t source_port, uint16_t identification,
                      uint8_t bytes[256])
{
    const struct packet packet = packet_of(OP_SEND_ONLY, 100);
    uint32_t length = codec_udp_payload_length(&packet);

    fill_pattern(bytes + codec_encode(&packet, bytes), 100, 3);
    seal(path, source_port, identification, bytes, length);
    return length;
}

/* Any identification is derived from the ICRC of the packet. */
static void takes_any_identification(unsigned number)
{
    static const uint16_t identifications[] = {0, 1, 0x1234, 0x8000, 0xffff};
    const struct udp_path path = path_between("127.0.0.1", "127.0.0.1");
    uint16_t port;
    int fd;

    open_block();
    foreign_socket(AF_INET, false, "127.0.0.1", &fd, &port);
    for (unsigned i = 0; i < array_size(identifications); i++) {
        uint8_t bytes[256];
        uint32_t length = build(&path, port, identifications[i], bytes);

        CHECK(send(fd, bytes, length, 0) == (ssize_t)length);
        UNTIL(atomic_load(&inbox->count) == i + 1);
        CHECK(is_pattern(&inbox->kept[i], 3));
    }
    CHECK(udp_counters->bad_icrc == 0);
}

static void test_identifications_of_other_senders_are_solved_for(void **state)
{
    side_finish(side_start(takes_any_identification, 0));
}

/* RDMA adapters send no UDP checksum, not even over IPv6: the ICRC covers the same bytes. */
static void sends_without_checksum(unsigned number)
{
    bool ipv4 = ipudp_gid_is_ipv4(path_between(ways[number].from, ways[number].to).source);
    const struct udp_path path = path_between(ways[number].from, ways[number].to);
    int fd, yes = 1;
    uint8_t bytes[256];
    uint32_t length;
    uint16_t port;

    open_block();
    foreign_socket(ipv4 ? AF_INET : AF_INET6, false, ways[number].to, &fd, &port);
    CHECK(setsockopt(fd, ipv4 ? SOL_SOCKET : IPPROTO_UDP, ipv4 ? SO_NO_CHECK : UDP_NO_CHECK6_TX, &yes,
                     sizeof(yes)) == 0);
    length = build(&path, port, 0, bytes);
    CHECK(send(fd, bytes, length, 0) == (ssize_t)length);
    UNTIL(atomic_load(&inbox->count) == 1);
}

static void test_packets_without_checksum_are_taken(void **state)
{
    side_finish(side_start(sends_without_checksum, 0));
    side_finish(side_start(sends_without_checksum, 2));
}

/* The responder refuses a reserved opcode, not src/udp. */
static void sends_what_nothing_stands_for(unsigned number)
{
    static const uint8_t reserved[] = {0x1e, 0x1f, SERVICE_UC | OP_READ_REQUEST, SERVICE_UD | OP_WRITE_ONLY,
                                       0xff};
    const struct udp_path path = path_between("127.0.0.1", "127.0.0.1");
    uint8_t bytes[256];
    uint32_t length;
    uint16_t port;
    int fd;

    open_block();
    foreign_socket(AF_INET, false, "127.0.0.1", &fd, &port);
    length = build(&path, port, 0, bytes);
    for (unsigned i = 0; i < array_size(reserved); i++) {
        const struct packet *packet = &inbox->kept[i].packet;

        bytes[0] = reserved[i];
        seal(&path, port, 0, bytes, length);
        CHECK(send(fd, bytes, length, 0) == (ssize_t)length);
        UNTIL(atomic_load(&inbox->count) == i + 1);
        CHECK(packet->opcode == reserved[i] && packet->dest_qpn == QPN && packet->psn.value == 0xabcdef);
        CHECK(packet->payload_length == 0);
    }
    CHECK(udp_counters->malformed == 0);
}

static void test_unknown_operations_are_the_responders(void **state)
{
    side_finish(side_start(sends_what_nothing_stands_for, 0));
}

static void sends_rubbish(unsigned number)
{
    bool ipv4 = ipudp_gid_is_ipv4(path_between(ways[number].from, ways[number].to).source);
    const struct udp_path path = path_between(ways[number].from, ways[number].to);
    uint8_t good[256], bytes[256];
    unsigned damaged = 0;
    uint32_t length;
    uint16_t port;
    int fd;

    open_block();
    foreign_socket(ipv4 ? AF_INET : AF_INET6, false, ways[number].to, &fd, &port);
    length = build(&path, port, 0, good);
    /* Inverts each bit, except in the byte that the ICRC does not cover and in DestQP, which would make the packet one
     * for an unknown QPN. */
    for (uint32_t bit = 0; bit < length * 8; bit++) {
        if (bit / 8 == 4 || (bit / 8 >= 5 && bit / 8 <= 7))
            continue;
        memcpy(bytes, good, sizeof(bytes));
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(send(fd, bytes, length, 0) == (ssize_t)length);
        damaged++;
        UNTIL(udp_counters->bad_icrc + udp_counters->malformed + atomic_load(&inbox->count) == damaged);
    }
    /* After one inverted bit no identification makes the ICRC valid. */
    CHECK(udp_counters->bad_icrc == damaged && atomic_load(&inbox->count) == 0);
    for (uint32_t cut = 0; cut < length; cut++) {
        uint64_t before = udp_counters->bad_icrc + udp_counters->malformed + udp_counters->unknown_qpn;

        CHECK(send(fd, good, cut, 0) == (ssize_t)cut);
        if (cut == 0)
            continue; /* empty datagram: nothing is counted */
        UNTIL(udp_counters->bad_icrc + udp_counters->malformed + udp_counters->unknown_qpn +
                  atomic_load(&inbox->count) >
              before);
    }
    CHECK(atomic_load(&inbox->count) == 0);
    CHECK(send(fd, good, length, 0) == (ssize_t)length);
    UNTIL(atomic_load(&inbox->count) == 1);
}

static void test_damaged_packets_are_dropped(void **state)
{
    side_finish(side_start(sends_rubbish, 0));
    side_finish(side_start(sends_rubbish, 2));
}

static void marks_congestion(unsigned number)
{
    struct udp_path path = path_between(ways[number].from, ways[number].to);

    open_block();
    path.traffic_class = 3;
    send_pattern(&path, QPN, 1, 64, 1);
    udp_flush(udp_lane(QPN));
    UNTIL(atomic_load(&inbox->count) == 1);
    CHECK(inbox->kept[0].arrival.congested && udp_counters->congested == 1);
}

static void test_congestion_marks_are_seen(void **state)
{
    side_finish(side_start(marks_congestion, 0));
    side_finish(side_start(marks_congestion, 2));
}

/* Sends a CNP as an adapter does (IBA annex A17.9.3). */
static void is_notified(unsigned number)
{
    bool ipv4 = ipudp_gid_is_ipv4(path_between(ways[number].from, ways[number].to).source);
    const struct udp_path path = path_between(ways[number].from, ways[number].to);
    enum { RESERVED = 16, LENGTH = BTH_LENGTH + RESERVED + ICRC_LENGTH };
    uint8_t bytes[LENGTH] = {0x81, 0, 0xff, 0xff, 0x40, QPN >> 16, QPN >> 8 & 0xff, QPN & 0xff};
    uint16_t port;
    int fd;

    open_block();
    foreign_socket(ipv4 ? AF_INET : AF_INET6, false, ways[number].to, &fd, &port);
    seal(&path, port, 0, bytes, LENGTH);
    CHECK(send(fd, bytes, LENGTH, 0) == LENGTH);
    UNTIL(atomic_load(&inbox->congested_qpn) == QPN);
    CHECK(udp_counters->cnps_received == 1 && atomic_load(&inbox->count) == 0);
}

static void test_congestion_notifications_are_told(void **state)
{
    side_finish(side_start(is_notified, 0));
    side_finish(side_start(is_notified, 2));
}

static void notifies(unsigned number)
{
    const struct udp_path path = path_between(ways[number].from, ways[number].to);

    open_block();
    udp_notify(udp_lane(QPN + 1), &path, QPN);
    udp_flush(udp_lane(QPN + 1));
    UNTIL(atomic_load(&inbox->congested_qpn) == QPN);
    CHECK(udp_counters->cnps_sent == 1 && udp_counters->cnps_received == 1);
    CHECK(udp_counters->bad_icrc == 0 && atomic_load(&inbox->count) == 0);
}

static void test_congestion_is_notified_of(void **state)
{
    side_finish(side_start(notifies, 0));
    side_finish(side_start(notifies, 2));
}

/* No route, a source address of another host: the packet is dropped, and the lane continues. */
static void sends_nowhere(unsigned number)
{
    struct udp_path path = path_between("127.0.0.1", "127.0.0.1");
    struct udp_path nowhere = path_between("127.0.0.1", "203.0.113.1"),
                    stranger = path_between("192.0.2.1", "127.0.0.1");

    open_block();
    for (unsigned i = 0; i < 100; i++) {
        send_pattern(i % 3 == 0 ? &nowhere : i % 3 == 1 ? &stranger : &path, QPN, i, 64, i);
        if (i % 10 == 9)
            udp_flush(udp_lane(QPN));
    }
    UNTIL(atomic_load(&inbox->count) == 33);
    CHECK(udp_counters->not_sent == 67);
}

static void test_what_cannot_be_sent_holds_up_nothing(void **state)
{
    side_finish(side_start(sends_nowhere, 0));
}

/* An intended data race of the test program, which ThreadSanitizer reports correctly. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RACES_ARE_REPORTED 1
#endif
#endif
#ifndef RACES_ARE_REPORTED

/* The program writes to its buffer during the send: the packet has the ICRC of the bytes that were sent. */
static _Atomic bool stop;
static uint64_t changing[512];

static void *change(void *argument)
{
    for (uint64_t i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++)
        __atomic_store_n(&changing[i % array_size(changing)], i, __ATOMIC_RELAXED);
    return argument;
}

static void sends_changing_memory(unsigned number)
{
    const struct udp_path path = path_between("127.0.0.1", "127.0.0.1");
    struct packet packet = packet_of(OP_SEND_ONLY, sizeof(changing));
    const struct iovec gather = {changing, sizeof(changing)};
    pthread_t changer;

    open_block();
    CHECK(pthread_create(&changer, NULL, change, NULL) == 0);
    for (unsigned i = 0; i < 200; i++) {
        CHECK(udp_send(udp_lane(QPN), &path, &packet, &gather, 1) == 0);
        udp_flush(udp_lane(QPN));
        UNTIL(atomic_load(&inbox->count) + udp_counters->bad_icrc == i + 1);
    }
    atomic_store(&stop, true);
    pthread_join(changer, NULL);
    CHECK(udp_counters->bad_icrc == 0);
}

static void test_memory_that_changes_is_sent_once(void **state)
{
    side_finish(side_start(sends_changing_memory, 0));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_packet_arrives_as_it_was_sent),
        cmocka_unit_test(test_packets_leave_where_labels_have_to_be_leased),
        cmocka_unit_test(test_packets_from_several_addresses_leave_by_one_socket),
        cmocka_unit_test(test_batches_keep_their_order),
        cmocka_unit_test(test_one_by_one_works_as_well),
        cmocka_unit_test(test_datagrams_of_one_form_after_those_of_another),
        cmocka_unit_test(test_identifications_of_other_senders_are_solved_for),
        cmocka_unit_test(test_packets_without_checksum_are_taken),
        cmocka_unit_test(test_unknown_operations_are_the_responders),
        cmocka_unit_test(test_damaged_packets_are_dropped),
        cmocka_unit_test(test_congestion_marks_are_seen),
        cmocka_unit_test(test_congestion_notifications_are_told),
        cmocka_unit_test(test_congestion_is_notified_of),
        cmocka_unit_test(test_what_cannot_be_sent_holds_up_nothing),
#ifndef RACES_ARE_REPORTED
        cmocka_unit_test(test_memory_that_changes_is_sent_once),
#endif
    };

    if (!own_network()) {
        printf("1..0 # SKIP a network namespace of our own is not allowed\n");
        return 0;
    }
    return run_unit_tests("udp_packets", tests);
}
