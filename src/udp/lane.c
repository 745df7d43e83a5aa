/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets to the network. A lane copies each into its buffer, once, so that the ICRC is of the very bytes
 * that are sent, whatever the program does to its memory meanwhile. Packets of one QP that follow each other
 * leave as one datagram, which the kernel or the adapter cuts apart again (UDP_SEGMENT).
 *
 * The IPv4 identification is covered by the ICRC, and a UDP socket does not show it: unconnected and with DF
 * it is 0, and counts up over the segments of one datagram. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/sys.h"
#include "udp/internal.h"
#include "wire/codec.h"
#include "wire/crc.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#define BUFFER_SIZE (256u * 1024)
#define PACKET_MAX  (HEADER_LENGTH_MAX + 4096u + 4 + ICRC_LENGTH)
#define MESSAGES    64u
/* What is staged leaves when it is so much: the receiver begins before the sender has done, and all of it
 * stays in the cache of one processor. */
#define FLUSH_AT     (128u * 1024)
#define DATAGRAM_END 65000u /* IPv6 or IPv4, whatever is in front of it */
#define CONTROL_SIZE 128
/* Two programs that answer each other send datagrams of small packets of one size over and over. After so
 * many the socket itself cuts: a control message less, and with no others a system call that copies less. */
#define CUT_AFTER 16u
#define CUT_MOST  512u /* fits whatever path a packet takes that is not cut */
/* Of a congestion notification packet: sixteen reserved bytes behind the BTH (IBA annex A17.9.3). */
#define NOTIFICATION_LENGTH (BTH_LENGTH + 16u + ICRC_LENGTH)
#define BTH_BECN            0x40
#define FLOW_LABEL          0xfffffu

/* One datagram: a packet, or several of the same size but the last, which may be smaller. */
struct message {
    struct udp_path path;
    uint32_t begin, length;
    uint16_t segment, segments;
};

struct way {
    struct event_source source; /* fd -1: not open yet; watched while it is blocked */
    uint16_t port;
    unsigned segments;     /* how many packets a datagram may have */
    struct udp_path usual; /* all zero: none */
    uint16_t cut;      /* the socket cuts into packets of so many bytes what says nothing else; 0: does not */
    uint16_t repeated; /* of the last datagram that was to be cut */
    unsigned repeats;
};

struct lane_buffers {
    uint8_t bytes[BUFFER_SIZE];
    struct message messages[MESSAGES];
    struct mmsghdr headers[MESSAGES];
    struct iovec vectors[MESSAGES];
    struct sockaddr_in6 names[MESSAGES];
    uint8_t control[MESSAGES][CONTROL_SIZE] __attribute__((aligned(16)));
    struct icrc_memory icrc;
};

struct udp_lane {
    struct lock lock;
    struct way ipv4, ipv6;
    struct lane_buffers *buffers;
    uint32_t filled;
    unsigned first, count; /* messages [first, count) are to be sent */
    _Atomic bool blocked;  /* the socket takes no more: epoll tells; written under lock */
    int complained;        /* the last error that was told */
} cache_aligned;

static struct udp_lane lanes[UDP_LANES] = {
    [0 ... UDP_LANES - 1] = {.ipv4.source.fd = -1, .ipv6.source.fd = -1},
};

struct udp_lane *udp_lane(uint32_t qpn)
{
    /* The lower bits of a block are the same in all numbers of a process. */
    return &lanes[(qpn ^ qpn >> 3 ^ qpn >> 14) % UDP_LANES];
}

unsigned udp_lane_number(const struct udp_lane *lane)
{
    return (unsigned)(lane - lanes);
}

struct udp_lane *udp_lane_by_number(unsigned number)
{
    return &lanes[number];
}

/* --- opening ------------------------------------------------------------------------------------- */

static void writable(struct event_source *source, uint32_t events);

static int open_way(struct udp_lane *lane, struct way *way, int family, const struct udp_path *path)
{
    int fd, error = 0;

    if (!lane->buffers)
        lane->buffers = sys_mmap(NULL, sizeof(*lane->buffers), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (error)
        return error;
    crc_choose(sys_now);
    way->usual = *path;
    fd = socket_for_sending(family, &way->usual, &way->port, &way->segments);
    if (fd < 0)
        return fd;
    way->source.fd = fd;
    way->source.ready = writable;
    error = event_add(&way->source, 0);
    if (error) {
        way->source.fd = -1;
        fd_close(fd);
        return error;
    }
    event_pause(&way->source);
    return 0;
}

/* NULL: there is no such socket. */
static struct way *way_to(struct udp_lane *lane, const struct udp_path *path)
{
    bool is_ipv4 = ipudp_gid_is_ipv4(path->destination);
    struct way *way = is_ipv4 ? &lane->ipv4 : &lane->ipv6;
    int error;

    if (likely(way->source.fd >= 0))
        return way;
    error = open_way(lane, way, is_ipv4 ? AF_INET : AF_INET6, path);
    if (!error)
        return way;
    if (lane->complained != error)
        log_error("cannot create a UDP socket to send from: %s", strerror(-error));
    lane->complained = error;
    return NULL;
}

/* --- sending what is staged ---------------------------------------------------------------------- */

static void add_control(struct msghdr *header, int level, int type, const void *data, size_t length)
{
    struct cmsghdr *message =
        (struct cmsghdr *)(void *)((char *)header->msg_control + header->msg_controllen);

    message->cmsg_level = level;
    message->cmsg_type = type;
    message->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(message), data, length);
    header->msg_controllen += CMSG_SPACE(length);
}

static void add_control_int(struct msghdr *header, int level, int type, int value)
{
    add_control(header, level, type, &value, sizeof(value));
}

/* Where it comes from and how far it may go, as the socket has it anyway. */
static bool is_usual(const struct way *way, const struct udp_path *path)
{
    return !path->ifindex && path->hop_limit == way->usual.hop_limit &&
           memcmp(path->source, way->usual.source, sizeof(path->source)) == 0;
}

static void address_ipv4(struct msghdr *header, const struct udp_path *path, bool usual)
{
    struct sockaddr_in *name = header->msg_name;
    struct in_pktinfo info = {.ipi_ifindex = (int)path->ifindex};

    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    memcpy(&name->sin_addr, path->destination + 12, 4);
    header->msg_namelen = sizeof(*name);
    memcpy(&info.ipi_spec_dst, path->source + 12, 4);
    if (!usual) {
        add_control(header, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
        add_control_int(header, IPPROTO_IP, IP_TTL, path->hop_limit);
    }
    if (path->traffic_class)
        add_control_int(header, IPPROTO_IP, IP_TOS, path->traffic_class);
}

static void address_ipv6(struct msghdr *header, const struct udp_path *path)
{
    struct sockaddr_in6 *name = header->msg_name;
    struct in6_pktinfo info = {.ipi6_ifindex = path->ifindex};

    *name = (struct sockaddr_in6){
        .sin6_family = AF_INET6,
        .sin6_port = htons(ROCE_UDP_PORT),
        .sin6_flowinfo = htonl(path->flow_label & FLOW_LABEL),
        .sin6_scope_id = path->ifindex,
    };
    memcpy(&name->sin6_addr, path->destination, 16);
    header->msg_namelen = sizeof(*name);
    memcpy(&info.ipi6_addr, path->source, 16);
    add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
    add_control_int(header, IPPROTO_IPV6, IPV6_HOPLIMIT, path->hop_limit);
    if (path->traffic_class)
        add_control_int(header, IPPROTO_IPV6, IPV6_TCLASS, path->traffic_class);
}

static bool is_cut_so(const struct way *way, const struct message *message)
{
    return message->segments > 1 ? message->segment == way->cut : !way->cut || message->length <= way->cut;
}

static void add_segment(struct msghdr *header, const struct message *message)
{
    uint16_t segment = message->segments > 1 ? message->segment : 0;

    add_control(header, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment));
}

static void prepare_header(struct udp_lane *lane, unsigned index, bool is_ipv4)
{
    const struct way *way = is_ipv4 ? &lane->ipv4 : &lane->ipv6;
    struct lane_buffers *buffers = lane->buffers;
    const struct message *message = &buffers->messages[index];
    struct msghdr *header = &buffers->headers[index].msg_hdr;

    buffers->vectors[index] = (struct iovec){buffers->bytes + message->begin, message->length};
    *header = (struct msghdr){
        .msg_name = &buffers->names[index],
        .msg_iov = &buffers->vectors[index],
        .msg_iovlen = 1,
        .msg_control = buffers->control[index],
    };
    if (is_ipv4)
        address_ipv4(header, &message->path, is_usual(way, &message->path));
    else
        address_ipv6(header, &message->path);
    if (!is_cut_so(way, message))
        add_segment(header, message);
}

/* Messages from `first` on that go through the same socket. */
static unsigned prepare_run(struct udp_lane *lane, bool is_ipv4)
{
    unsigned run = 0;

    for (unsigned i = lane->first; i < lane->count; i++, run++) {
        if (ipudp_gid_is_ipv4(lane->buffers->messages[i].path.destination) != is_ipv4)
            break;
        prepare_header(lane, i, is_ipv4);
    }
    return run;
}

static void complain(struct udp_lane *lane, const struct message *message, int error)
{
    char text[INET6_ADDRSTRLEN];

    if (lane->complained == error)
        return;
    lane->complained = error;
    if (ipudp_gid_is_ipv4(message->path.destination))
        inet_ntop(AF_INET, message->path.destination + 12, text, sizeof(text));
    else
        inet_ntop(AF_INET6, message->path.destination, text, sizeof(text));
    log_warn("cannot send packets of %u bytes to %s: %s", message->segment, text, strerror(-error));
}

static void drop_first(struct udp_lane *lane, int error)
{
    const struct message *message = &lane->buffers->messages[lane->first++];

    udp_count(&udp_counters->not_sent, message->segments);
    complain(lane, message, error);
}

/* Stores it. */
static void add_icrc(struct udp_lane *lane, const struct way *way, const struct udp_path *path,
                     uint16_t identification, uint8_t *bytes, uint32_t length)
{
    struct icrc_path covered = {
        .source_port = way->port,
        .destination_port = ROCE_UDP_PORT,
        .identification = identification,
        .dont_fragment = true,
    };

    memcpy(covered.source, path->source, sizeof(covered.source));
    memcpy(covered.destination, path->destination, sizeof(covered.destination));
    icrc_store(icrc_of_next(&lane->buffers->icrc, &covered, bytes, length), bytes + length - ICRC_LENGTH);
}

static void set_cut(struct way *way, uint16_t segment)
{
    way->cut = socket_set_segment(way->source.fd, segment) == 0 ? segment : 0;
    way->repeats = 0;
}

/* The last datagram needed a control message for how it is cut, or for not being cut. */
static void note_cut(struct way *way, const struct message *message)
{
    uint16_t wanted = message->segments > 1 ? message->segment : 0;

    if (wanted > CUT_MOST)
        return;
    if (wanted != way->repeated)
        way->repeats = 0;
    way->repeated = wanted;
    if (++way->repeats == CUT_AFTER)
        set_cut(way, wanted);
}

/* This kernel, or the interface that the route leads to, cannot cut: one packet at a time from now on, and
 * the packets of the first message, whose identifications are going to be others, too. */
static void send_singly(struct udp_lane *lane, struct way *way)
{
    const struct message message = lane->buffers->messages[lane->first];
    struct mmsghdr *header = &lane->buffers->headers[lane->first];
    struct iovec vector;

    way->segments = 1;
    set_cut(way, 0);
    lane->buffers->messages[lane->first].segments = 1;
    prepare_header(lane, lane->first++, way == &lane->ipv4);
    header->msg_hdr.msg_iov = &vector;
    for (uint32_t at = 0; at < message.length; at += message.segment) {
        uint8_t *bytes = lane->buffers->bytes + message.begin + at;
        uint32_t length = min_of((uint32_t)message.segment, message.length - at);

        add_icrc(lane, way, &message.path, 0, bytes, length);
        vector = (struct iovec){bytes, length};
        /* Whatever does not fit now is lost, as it may be anywhere. */
        udp_count(sys_sendmmsg(way->source.fd, header, 1) == 1 ? &udp_counters->packets_sent
                                                               : &udp_counters->not_sent,
                  1);
    }
}

static void count_sent(struct udp_lane *lane, unsigned messages)
{
    uint64_t packets = 0, bytes = 0;

    for (unsigned i = 0; i < messages; i++) {
        const struct message *message = &lane->buffers->messages[lane->first + i];

        packets += message->segments;
        bytes += message->length;
    }
    lane->first += messages;
    udp_count(&udp_counters->packets_sent, packets);
    udp_count(&udp_counters->bytes_sent, bytes);
}

static ssize_t hand_over_one(struct way *way, const struct msghdr *header, const struct message *message)
{
    if (!is_cut_so(way, message))
        note_cut(way, message);
    if (header->msg_controllen)
        return sys_sendmsg(way->source.fd, header);
    return sys_sendto(way->source.fd, header->msg_iov, header->msg_name, header->msg_namelen);
}

/* Messages that were sent, or -errno. */
static int hand_over(struct udp_lane *lane, struct way *way, unsigned count)
{
    struct mmsghdr *headers = lane->buffers->headers + lane->first;
    ssize_t length;

    if (count > 1)
        return sys_sendmmsg(way->source.fd, headers, count);
    length = hand_over_one(way, &headers->msg_hdr, &lane->buffers->messages[lane->first]);
    return length < 0 ? (int)length : 1;
}

/* One system call, or what came of it. false: blocked. */
static bool send_run(struct udp_lane *lane, struct way *way, unsigned run)
{
    int sent = hand_over(lane, way, run);

    if (likely(sent > 0)) {
        count_sent(lane, (unsigned)sent);
        return true;
    }
    if (sent == -EINTR)
        return true;
    if (sent == -EAGAIN) {
        atomic_store_explicit(&lane->blocked, true, memory_order_relaxed);
        if (!event_resume(&way->source, EPOLLOUT | EPOLLONESHOT))
            return false;
        atomic_store_explicit(&lane->blocked, false, memory_order_relaxed);
    }
    if ((sent == -EIO || sent == -EINVAL) && lane->buffers->messages[lane->first].segments > 1)
        send_singly(lane, way);
    else if ((sent == -EIO || sent == -EINVAL) && way->cut)
        set_cut(way, 0);
    else
        drop_first(lane, sent);
    return true;
}

/* Lock held. */
static void send_staged(struct udp_lane *lane)
{
    while (lane->first < lane->count) {
        bool is_ipv4 = ipudp_gid_is_ipv4(lane->buffers->messages[lane->first].path.destination);

        if (!send_run(lane, is_ipv4 ? &lane->ipv4 : &lane->ipv6, prepare_run(lane, is_ipv4)))
            return;
    }
    lane->first = lane->count = 0;
    lane->filled = 0;
}

static bool is_blocked(const struct udp_lane *lane)
{
    return atomic_load_explicit(&lane->blocked, memory_order_relaxed);
}

bool udp_is_blocked(struct udp_lane *lane)
{
    bool blocked;

    /* With the lock: what was done before ops->writable() is seen by whoever is told "no". */
    lock_acquire(&lane->lock);
    blocked = is_blocked(lane);
    lock_release(&lane->lock);
    return blocked;
}

/* Lock held, which is released. */
static void flush(struct udp_lane *lane)
{
    if (!is_blocked(lane))
        send_staged(lane);
    lock_release(&lane->lock);
}

void udp_flush(struct udp_lane *lane)
{
    lock_acquire(&lane->lock);
    flush(lane);
}

bool udp_try_flush(struct udp_lane *lane)
{
    if (!lock_try(&lane->lock))
        return false;
    flush(lane);
    return true;
}

static struct udp_lane *lane_of(const struct event_source *source)
{
    return &lanes[(size_t)((const char *)source - (const char *)lanes) / sizeof(*lanes)];
}

/* Helper thread. */
static void writable(struct event_source *source, uint32_t events)
{
    struct udp_lane *lane = lane_of(source);
    bool blocked;

    lock_acquire(&lane->lock);
    event_pause(source);
    atomic_store_explicit(&lane->blocked, false, memory_order_relaxed);
    send_staged(lane);
    blocked = is_blocked(lane);
    lock_release(&lane->lock);
    if (!blocked)
        udp_settings.ops->writable(lane);
}

/* --- staging ------------------------------------------------------------------------------------- */

static bool same_path(const struct udp_path *a, const struct udp_path *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Only its last packet may be smaller than the others. */
static bool has_room(const struct message *message, const struct way *way, uint32_t length)
{
    return message->segments < way->segments && length <= message->segment &&
           message->length == (uint32_t)message->segment * message->segments &&
           message->length + length <= DATAGRAM_END;
}

/* The message that a packet of this length becomes part of: the last one, or a new one. */
static struct message *message_for(struct udp_lane *lane, const struct way *way, const struct udp_path *path,
                                   uint32_t length)
{
    struct message *message = &lane->buffers->messages[lane->count];

    if (lane->count > lane->first && has_room(message - 1, way, length) && same_path(&message[-1].path, path))
        return message - 1;
    lane->count++;
    message->path = *path;
    message->begin = lane->filled;
    message->length = message->segments = 0;
    message->segment = (uint16_t)length;
    return message;
}

static void copy_payload(uint8_t *to, const struct iovec *gather, unsigned gather_count)
{
    for (unsigned i = 0; i < gather_count; i++) {
        memcpy(to, gather[i].iov_base, gather[i].iov_len);
        to += gather[i].iov_len;
    }
}

/* The packet is in the buffer, but for its ICRC. */
static void finish(struct udp_lane *lane, const struct way *way, struct message *message, uint32_t length)
{
    add_icrc(lane, way, &message->path, message->segments, lane->buffers->bytes + lane->filled, length);
    message->segments++;
    message->length += length;
    lane->filled += length;
}

static void stage(struct udp_lane *lane, const struct way *way, const struct udp_path *path,
                  const struct packet *packet, uint32_t length, const struct iovec *gather,
                  unsigned gather_count)
{
    struct message *message = message_for(lane, way, path, length);
    uint8_t *bytes = lane->buffers->bytes + lane->filled;
    size_t headers = codec_encode(packet, bytes);

    copy_payload(bytes + headers, gather, gather_count);
    memset(bytes + headers + packet->payload_length, 0, codec_pad(packet->payload_length));
    finish(lane, way, message, length);
}

static void stage_notification(struct udp_lane *lane, const struct way *way, const struct udp_path *path,
                               uint32_t dest_qpn)
{
    const uint8_t bth[BTH_LENGTH] = {
        OPCODE_CNP,
        0,
        0xff, /* P_Key */
        0xff,
        BTH_BECN,
        (uint8_t)(dest_qpn >> 16),
        (uint8_t)(dest_qpn >> 8),
        (uint8_t)dest_qpn,
    };
    struct message *message = message_for(lane, way, path, NOTIFICATION_LENGTH);
    uint8_t *bytes = lane->buffers->bytes + lane->filled;

    memset(bytes, 0, NOTIFICATION_LENGTH);
    memcpy(bytes, bth, sizeof(bth));
    finish(lane, way, message, NOTIFICATION_LENGTH);
    udp_count(&udp_counters->cnps_sent, 1);
}

/* Lock held. -EAGAIN: there is none. */
static int make_room(struct udp_lane *lane, const struct udp_path *path, const struct way **ret_way)
{
    if (lane->filled >= FLUSH_AT || lane->count == MESSAGES) {
        if (!is_blocked(lane))
            send_staged(lane);
    }
    *ret_way = way_to(lane, path);
    if (unlikely(!*ret_way))
        return -EHOSTUNREACH;
    return unlikely(is_blocked(lane)) ? -EAGAIN : 0;
}

int udp_send(struct udp_lane *lane, const struct udp_path *path, const struct packet *packet,
             const struct iovec *gather, unsigned gather_count)
{
    uint32_t length = codec_udp_payload_length(packet);
    const struct way *way;
    int error;

    if (unlikely(length > PACKET_MAX))
        return -EHOSTUNREACH;
    lock_acquire(&lane->lock);
    error = make_room(lane, path, &way);
    if (likely(!error))
        stage(lane, way, path, packet, length, gather, gather_count);
    lock_release(&lane->lock);
    return error;
}

void udp_notify(struct udp_lane *lane, const struct udp_path *path, uint32_t dest_qpn)
{
    const struct way *way;

    lock_acquire(&lane->lock);
    if (make_room(lane, path, &way) == 0)
        stage_notification(lane, way, path, dest_qpn);
    lock_release(&lane->lock);
}

void lane_after_fork_in_child(void)
{
    for (unsigned i = 0; i < UDP_LANES; i++) {
        struct udp_lane *lane = &lanes[i];

        memset(lane, 0, sizeof(*lane)); /* the buffers are lost: the lock may have been held */
        lane->ipv4.source.fd = lane->ipv6.source.fd = -1;
    }
}
