/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams from the network, and from processes that forward them (udp/receive.c). The system calls that receive are
 * replaced here (--wrap); all behind them is the code under test.
 *
 * A packet that is delivered lies inside its datagram, is for this process, and has a valid ICRC (IPv6, where nothing
 * of it is unknown). Each packet of a datagram is delivered, or handed on with its bytes, or counted as dropped:
 * exactly one of them. Bytes behind a datagram are not read (a sanitizer sees that).
 *
 * Input: steps. A datagram has a byte for the socket, one for ancillary data, one for the addresses, the bytes of a
 * packet (PACKET_BYTES), and how often it is repeated. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/rundown.h"
#include "base/sys.h"
#include "fuzz.h"
#include "input.h"
#include "udp/internal.h"
#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#if defined(__SANITIZE_ADDRESS__)
#define POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONS 1
#endif
#endif
#ifdef POISONS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define OUR_BLOCK  0x1200u
#define QUEUE      4u
#define BYTES_MOST 4096u
#define CLIENT     77 /* descriptor of a client's forwarding socket */
#define STEPS      24u

/* fd numbers, which nobody opens */
enum socket { SOCKET_SHARD = 1000, SOCKET_GROUP, SOCKET_CLIENT_GROUP, SOCKET_FORWARDING, SOCKETS_END };
#define SOCKETS (SOCKETS_END - SOCKET_SHARD)

struct udp_settings udp_settings;

static struct input input;
static struct reader readers[SOCKETS];

struct queued {
    int fd;
    struct datagram description;
    bool is_ipv4_socket_name, has_info, truncated, lies;
    uint32_t length;
    uint8_t bytes[BYTES_MOST];
};
static struct queued queue[QUEUE];
static unsigned queue_count, queue_taken;

/* What became of the packets of the batch. */
static uint32_t delivered, handed_on, whole_datagrams;
/* Where received datagrams lie. */
static struct {
    uint8_t *at;
    struct queued from;
} arrived[QUEUE];
static unsigned arrived_count;

/* --- the system's part ---------------------------------------------------------------------------------- */

ssize_t __wrap_sys_recvmsg(int fd, struct msghdr *message);
int __wrap_sys_recvmmsg(int fd, struct mmsghdr *messages, unsigned count);
int __wrap_sys_poll_now(struct pollfd *watched, unsigned count);
int __wrap_event_add(struct event_source *source, uint32_t events);
int __wrap_event_resume(struct event_source *source, uint32_t events);
void __wrap_event_pause(struct event_source *source);
void __wrap_event_close(struct event_source *source);

static void add_control(struct msghdr *message, size_t *used, int level, int type, const void *data,
                        size_t length)
{
    struct cmsghdr *header = (void *)((char *)message->msg_control + *used);

    require(*used + CMSG_SPACE(length) <= message->msg_controllen);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(header), data, length);
    *used += CMSG_SPACE(length);
}

/* As Linux does it: IP_TOS is a byte, other values are ints; IPv6 sockets report mapped addresses for IPv4. */
static void describe(const struct queued *from, struct msghdr *message)
{
    const struct datagram *is = &from->description;
    int segment = is->segment, traffic_class = is->traffic_class, hop_limit = is->hop_limit;
    struct in6_pktinfo info = {.ipi6_ifindex = is->ifindex};
    struct in_pktinfo info4 = {.ipi_ifindex = (int)is->ifindex};
    uint32_t flow = htonl(is->flow_label);
    bool is_ipv4 = ipudp_gid_is_ipv4(is->destination);
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(is->source_port)};
    struct sockaddr_in name4 = {.sin_family = AF_INET, .sin_port = htons(is->source_port)};
    size_t used = 0;

    memcpy(&info.ipi6_addr, is->destination, 16);
    memcpy(&info4.ipi_addr, is->destination + 12, 4);
    memcpy(&name.sin6_addr, is->source, 16);
    memcpy(&name4.sin_addr, is->source + 12, 4);
    if (from->is_ipv4_socket_name && is_ipv4)
        memcpy(message->msg_name, &name4, sizeof(name4));
    else
        memcpy(message->msg_name, &name, sizeof(name));
    if (from->has_info && is_ipv4)
        add_control(message, &used, IPPROTO_IP, IP_PKTINFO, &info4, sizeof(info4));
    else if (from->has_info)
        add_control(message, &used, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
    if (is_ipv4) {
        add_control(message, &used, IPPROTO_IP, IP_TOS, &is->traffic_class, 1);
        add_control(message, &used, IPPROTO_IP, IP_TTL, &hop_limit, sizeof(hop_limit));
    } else {
        add_control(message, &used, IPPROTO_IPV6, IPV6_TCLASS, &traffic_class, sizeof(traffic_class));
        add_control(message, &used, IPPROTO_IPV6, IPV6_HOPLIMIT, &hop_limit, sizeof(hop_limit));
        add_control(message, &used, IPPROTO_IPV6, IPV6_FLOWINFO, &flow, sizeof(flow));
    }
    if (segment)
        add_control(message, &used, IPPROTO_UDP, UDP_GRO, &segment, sizeof(segment));
    message->msg_controllen = used;
}

static int take(int fd, struct msghdr *message)
{
    const struct queued *from = &queue[queue_taken];
    struct iovec *last = &message->msg_iov[message->msg_iovlen - 1];
    struct datagram header;
    uint32_t length;
    size_t before = 0;

    if (queue_taken == queue_count || from->fd != fd)
        return -EAGAIN;
    queue_taken++;
    header = from->description;
    length = from->length;
    require(last->iov_len == DATAGRAM_MAX && message->msg_iovlen == (fd == SOCKET_FORWARDING ? 2 : 1));
    require(message->msg_iovlen == 1 || message->msg_iov[0].iov_len == sizeof(header));
    ASAN_UNPOISON_MEMORY_REGION(last->iov_base, DATAGRAM_MAX);
    memcpy(last->iov_base, from->bytes, length);
    ASAN_POISON_MEMORY_REGION((uint8_t *)last->iov_base + length, DATAGRAM_MAX - length);
    message->msg_flags = from->truncated ? MSG_TRUNC : 0;
    if (fd == SOCKET_FORWARDING) {
        header.length = length;
        if (from->lies)
            input_mutate(&input, &header, sizeof(header));
        before = from->lies && input_8(&input) % 4 == 0 ? input_8(&input) % sizeof(header) : sizeof(header);
        memcpy(message->msg_iov[0].iov_base, &header, sizeof(header));
        if (before < sizeof(header))
            length = 0;
    } else {
        describe(from, message);
    }
    arrived[arrived_count].at = last->iov_base;
    arrived[arrived_count++].from = *from;
    return (int)(before + length);
}

ssize_t __wrap_sys_recvmsg(int fd, struct msghdr *message)
{
    arrived_count = 0;
    return take(fd, message);
}

int __wrap_sys_recvmmsg(int fd, struct mmsghdr *messages, unsigned count)
{
    unsigned taken = 0;

    arrived_count = 0;
    for (; taken < count; taken++) {
        int length = take(fd, &messages[taken].msg_hdr);

        if (length < 0)
            break;
        messages[taken].msg_len = (unsigned)length;
    }
    return taken ? (int)taken : -EAGAIN;
}

int __wrap_sys_poll_now(struct pollfd *watched, unsigned count)
{
    return queue_taken < queue_count;
}

int __wrap_event_add(struct event_source *source, uint32_t events)
{
    return 0;
}

int __wrap_event_resume(struct event_source *source, uint32_t events)
{
    return input_8(&input) % 4 == 0 ? -ENOSPC : 0;
}

void __wrap_event_pause(struct event_source *source)
{
}

void __wrap_event_close(struct event_source *source)
{
    source->fd = -1;
}

/* --- what the code under test calls ----------------------------------------------------------------------- */

static bool is_ours(uint32_t qpn)
{
    return qpn / UDP_BLOCK_QPNS == OUR_BLOCK || qpn == 1;
}

/* Index in `arrived` of the datagram that has these bytes. */
static unsigned datagram_of(const void *bytes, size_t length)
{
    const uint8_t *at = bytes;

    for (unsigned i = 0; i < arrived_count; i++) {
        if (at >= arrived[i].at && at + length <= arrived[i].at + arrived[i].from.length)
            return i;
    }
    require(false); /* the bytes lie in no datagram */
    return 0;
}

/* Without the code under test: is the ICRC of the packet valid that these bytes are in? */
static void check_icrc_of(const void *payload, uint32_t payload_length, const struct packet_grh *grh,
                          uint16_t port)
{
    unsigned index = datagram_of(payload, payload_length);
    const struct queued *from = &arrived[index].from;
    uint32_t segment = from->description.segment ? from->description.segment : from->length;
    uint32_t at = (uint32_t)((const uint8_t *)payload - arrived[index].at) / segment * segment;
    uint32_t length = from->length - at < segment ? from->length - at : segment;
    struct icrc_path path = {.source_port = port, .destination_port = ROCE_UDP_PORT};

    if (from->lies || ipudp_gid_is_ipv4(grh->destination))
        return;
    memcpy(path.source, grh->source, 16);
    memcpy(path.destination, grh->destination, 16);
    require(icrc_check(&path, arrived[index].at + at, length));
}

static void receive_packet(struct packet *packet, const struct udp_arrival *arrival)
{
    delivered++;
    require(is_ours(packet->dest_qpn) && !(packet->flags & ~(PACKET_SOLICITED | PACKET_ACK_REQUEST)));
    require(packet->payload_length <= BYTES_MOST);
    if (packet->payload_length)
        check_icrc_of(packet->payload, packet->payload_length, &packet->grh, arrival->source_port);
}

static void receive_cnp(const struct packet *packet)
{
    delivered++;
    require(packet->opcode == OPCODE_CNP && is_ours(packet->dest_qpn));
}

static void end_batch(void)
{
}

static const struct udp_ops ops = {
    .packet = receive_packet, .congestion = receive_cnp, .batch_end = end_batch, .is_ours = is_ours};

void port_owner_forward(const struct datagram *datagram, const uint8_t *bytes, bool was_forwarded)
{
    uint32_t qpn = (uint32_t)bytes[5] << 16 | (uint32_t)bytes[6] << 8 | bytes[7];

    require(datagram->length && datagram->segment && !is_ours(qpn));
    datagram_of(bytes, datagram->length);
    for (uint32_t at = 0; at < datagram->length; at += datagram->segment) {
        /* Only the last one may be too short to say where it goes. */
        if (datagram->length - at > BTH_LENGTH)
            require(bytes[at + 5] == bytes[5] && bytes[at + 6] == bytes[6]);
        handed_on++;
    }
}

void forwarding_send(int fd, const struct datagram *datagram, const uint8_t *bytes)
{
    require(fd == CLIENT);
    datagram_of(bytes, datagram->length);
    whole_datagrams++;
}

/* --- steps ------------------------------------------------------------------------------------------------ */

enum step { QUEUES, POLLS, WAKES, SLEEPS, DISARMS, DRAINS, MOVES, STEP_KINDS };

static void choose_addresses(struct datagram *is, uint8_t choice)
{
    static const uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 192, [14] = 2, [15] = 1};

    memcpy(is->source, mapped, 16);
    memcpy(is->destination, mapped, 16);
    if (choice & 1) {
        is->source[0] = is->destination[0] = 0xfd;
        is->source[15] = choice;
    }
    if (choice & 2) /* a group */
        is->destination[choice & 1 ? 0 : 12] = choice & 1 ? 0xff : 239;
    is->ifindex = choice & 4 ? 0 : 3;
    is->source_port = (uint16_t)(0xc000 | choice);
    is->flow_label = choice;
    is->hop_limit = choice;
}

/* Ends the packet with a valid ICRC. */
static void seal(const struct datagram *is, uint16_t number, uint8_t *bytes, uint32_t length)
{
    struct icrc_path path = {.source_port = is->source_port,
                             .destination_port = ROCE_UDP_PORT,
                             .identification = number,
                             .dont_fragment = true};

    if (length < BTH_LENGTH + ICRC_LENGTH)
        return;
    memcpy(path.source, is->source, 16);
    memcpy(path.destination, is->destination, 16);
    icrc_store(icrc_of(&path, bytes, length), bytes + length - ICRC_LENGTH);
}

static void queue_datagram(void)
{
    uint8_t choice = input_8(&input), how = input_8(&input), repeat;
    struct queued *to = &queue[queue_count];
    uint32_t length, segment, at = 0;
    bool ours;

    if (queue_count == QUEUE)
        return;
    queue_count++;
    memset(to, 0, offsetof(struct queued, bytes));
    to->fd = SOCKET_SHARD + choice % SOCKETS;
    to->is_ipv4_socket_name = choice & 16;
    to->has_info = !(choice & 32) || !(choice & 64);
    to->truncated = (choice & 0xc0) == 0xc0;
    to->lies = to->fd == SOCKET_FORWARDING && (how & 0x80);
    choose_addresses(&to->description, input_8(&input));
    to->description.traffic_class = how;
    segment = input_8(&input);
    segment = segment & 0x80 ? (segment & 0x7f) * 8 : segment;
    repeat = input_8(&input) % 32;
    length = min_of(segment * (1u + repeat) + (how & 8 ? input_8(&input) % (segment + 1) : 0), BYTES_MOST);
    to->length = length;
    /* Without UDP_GRO's message, the datagram is one packet. */
    to->description.segment = (uint16_t)(repeat || (how & 8) || to->fd == SOCKET_FORWARDING ? segment : 0);
    for (uint16_t number = 0; at < length; number++) {
        uint32_t here = segment ? min_of(segment, length - at) : length;

        if (!number || (how & 4))
            input_copy(&input, to->bytes + at, min_of(here, 44u));
        else
            memcpy(to->bytes + at, to->bytes, here);
        ours = here > 8 && !(to->bytes[at + 4] & 1);
        if (here > 8) { /* the byte in front of the QPN is reserved: here it says whose number it is */
            to->bytes[at + 5] = ours ? OUR_BLOCK >> 8 : 0x13;
            to->bytes[at + 6] = ours ? OUR_BLOCK & 0xff : to->bytes[at + 6] & 3;
        }
        if (!(how & 0x20) || number % 2)
            seal(&to->description, number, to->bytes + at, here);
        at += here;
    }
}

/* How many packets the batch has, of datagrams that are taken as they are. */
static uint64_t sum_of(void)
{
    return delivered + handed_on + atomic_load(&udp_counters->bad_icrc) +
           atomic_load(&udp_counters->malformed);
}

static void expect(unsigned from)
{
    uint64_t packets = 0, whole = 0;
    bool sure = true;

    for (unsigned i = from; i < queue_taken; i++) {
        const struct queued *is = &queue[i];
        uint32_t segment = is->description.segment ? is->description.segment : is->length;
        bool forwarded = is->fd == SOCKET_FORWARDING;
        bool group =
            is->description.destination[0] == 0xff || (ipudp_gid_is_ipv4(is->description.destination) &&
                                                       (is->description.destination[12] & 0xf0) == 0xe0);

        if (is->lies)
            sure = false;
        else if (!forwarded && (!is->has_info || !is->description.ifindex || is->truncated || !segment))
            packets++; /* counted as malformed, once */
        else if (forwarded && (is->truncated || !is->description.segment))
            packets++;
        else if (!forwarded && group != (is->fd != SOCKET_SHARD))
            continue;
        else if (is->fd == SOCKET_CLIENT_GROUP)
            whole++;
        else
            packets += (is->length + segment - 1) / segment;
    }
    if (sure)
        require(sum_of() == packets && whole_datagrams == whole);
}

static void reset_counts(void)
{
    delivered = handed_on = whole_datagrams = 0;
    atomic_store(&udp_counters->bad_icrc, 0);
    atomic_store(&udp_counters->malformed, 0);
}

static void take_step(uint8_t choice)
{
    unsigned from = queue_taken;
    struct reader *reader = &readers[choice / STEP_KINDS % SOCKETS];

    reset_counts();
    switch ((enum step)(choice % STEP_KINDS)) {
    case QUEUES:
        if (queue_taken == queue_count)
            queue_taken = queue_count = from = 0;
        queue_datagram();
        break;
    case POLLS:
        rundown_enter();
        (void)udp_poll();
        rundown_exit();
        break;
    case WAKES:
        if (reader->source.fd >= 0)
            reader->source.ready(&reader->source, 1);
        break;
    case SLEEPS:
        if (udp_prepare_sleep()) {
            for (unsigned i = 0; i < SOCKETS; i++)
                require(!readers[i].polled || readers[i].armed);
        }
        break;
    case DISARMS:
        udp_disarm();
        for (unsigned i = 0; i < SOCKETS; i++)
            require(!readers[i].polled || !readers[i].armed);
        break;
    case DRAINS:
        rundown_enter();
        (void)udp_has_packets();
        udp_drain();
        rundown_exit();
        break;
    case MOVES:
        reader_set_polled(reader);
        break;
    case STEP_KINDS:
        break;
    }
    expect(from);
}

static void add_readers(void)
{
    for (unsigned i = 0; i < SOCKETS; i++) {
        int fd = SOCKET_SHARD + (int)i;

        readers[i] = (struct reader){.source.fd = fd,
                                     .is_group = fd == SOCKET_GROUP || fd == SOCKET_CLIENT_GROUP,
                                     .is_forwarding = fd == SOCKET_FORWARDING,
                                     .forward_to = fd == SOCKET_CLIENT_GROUP ? CLIENT : -1,
                                     .polled = fd == SOCKET_SHARD || fd == SOCKET_FORWARDING};
        require(reader_add(&readers[i]) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    udp_settings.ops = &ops;
    input = (struct input){data, size};
    queue_count = queue_taken = 0;
    add_readers();
    for (unsigned step = 0; input.left && step < STEPS; step++)
        take_step(input_8(&input));
    for (unsigned i = 0; i < SOCKETS; i++) {
        reader_remove(&readers[i]);
        require(!list_linked(&readers[i].node));
    }
    rundown_enter();
    reset_counts();
    require(udp_poll() == 0 && delivered == 0);
    rundown_exit();
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------------ */

static void add_datagram(fuzz_add *add, enum socket socket, uint8_t how, uint8_t addresses, uint8_t opcode,
                         uint8_t repeat)
{
    const uint8_t step[] = {QUEUES, (uint8_t)(socket - SOCKET_SHARD), how, addresses, 60, repeat};
    const uint8_t headers[12] = {opcode, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 7};
    uint8_t bytes[256];
    size_t length = 0;

    for (unsigned i = 0; i < 3; i++) {
        memcpy(bytes + length, step, sizeof(step));
        length += sizeof(step);
        if (how & 8)
            bytes[length++] = 16;
        memcpy(bytes + length, headers, sizeof(headers));
        bytes[length + 4] = (uint8_t)(i == 1);
        memset(bytes + length + sizeof(headers), 0x5a, 32);
        length += sizeof(headers) + 32;
    }
    bytes[length++] = POLLS;
    bytes[length++] = (uint8_t)(WAKES + STEP_KINDS * (socket - SOCKET_SHARD));
    bytes[length++] = SLEEPS;
    bytes[length++] = DISARMS;
    bytes[length++] = (uint8_t)(MOVES + STEP_KINDS * (socket - SOCKET_SHARD));
    bytes[length++] = DRAINS;
    add(bytes, length);
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint8_t opcodes[] = {
        OP_SEND_ONLY, OP_WRITE_ONLY, OP_ACKNOWLEDGE, OP_READ_REQUEST, SERVICE_UD | OP_SEND_ONLY,
        OPCODE_CNP,   0x1f};
    static const uint8_t hows[] = {0, 3, 4, 8, 12, 0x20, 0x80};

    for (size_t i = 0; i < array_size(opcodes) * array_size(hows); i++) {
        for (unsigned socket = SOCKET_SHARD; socket < SOCKETS_END; socket++) {
            bool is_group = socket == SOCKET_GROUP || socket == SOCKET_CLIENT_GROUP;

            for (uint8_t family = 0; family < 2; family++)
                add_datagram(add, socket, hows[i % array_size(hows)], (uint8_t)(family | (is_group ? 2 : 0)),
                             opcodes[i / array_size(hows)], (uint8_t)(i % 3));
        }
    }
}
