/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets to the network. A lane copies each packet into its buffer once, so the ICRC covers the bytes that are
 * sent even if the program writes to its memory meanwhile. Consecutive packets of one path leave as one datagram,
 * which the kernel or the NIC segments again (UDP_SEGMENT).
 *
 * The ICRC covers the IPv4 identification, which a UDP socket neither sets nor reports. On an unconnected socket
 * with DF the kernel uses 0 for the first segment of a datagram and increments it for each further one. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "base/gid_text.h"
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
/* Staged bytes that trigger a flush: the receiver starts before the sender has finished, and the bytes stay in the
 * cache of one processor. */
#define FLUSH_AT     (128u * 1024)
#define DATAGRAM_END 65000u /* UDP payload limit that fits with IPv4 and IPv6 headers */
#define CONTROL_SIZE 128
/* Request-response programs repeat datagrams of small packets of one size. After DEFAULT_SEGMENT_AFTER of them the
 * segment size becomes the socket's default: no control message for it, and sendto() instead of sendmsg() if there
 * is no other one. */
#define DEFAULT_SEGMENT_AFTER 16u
#define DEFAULT_SEGMENT_MAX   512u /* bytes; larger segments might exceed the MTU of another path */
#define NOTIFICATION_LENGTH   (CNP_LENGTH + (uint32_t)ICRC_LENGTH)

/* One datagram: packets of the same size, except that the last may be smaller. */
struct message {
    struct udp_path path;
    struct icrc_path covered; /* by the ICRC, of its next packet */
    uint32_t begin, length;   /* in lane_buffers.bytes */
    uint16_t segment, segments;
};

/* The socket of one address family of a lane. */
struct lane_socket {
    struct event_source source; /* fd -1: not open yet; watched while the lane is blocked */
    uint16_t port;
    unsigned segments;        /* how many packets a datagram may have; 1: no UDP_SEGMENT */
    struct udp_path usual;    /* path the socket is bound to; all zero: none */
    uint16_t default_segment; /* default UDP_SEGMENT of the socket; 0: none */
    uint16_t repeated;        /* segment size of the last datagram that differed from `default_segment` */
    unsigned repeats;
    bool labels_left_out; /* flow labels of IPv6 */
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
    struct lane_socket ipv4, ipv6;
    struct lane_buffers *buffers;
    uint32_t filled;
    unsigned first, count; /* messages [first, count) are to be sent */
    _Atomic bool blocked;  /* send buffer full, epoll watches for EPOLLOUT; written under lock */
    int logged_error;      /* the last error that was logged, to log each once */
    struct udp_path held;  /* from udp_hold() to udp_release() */
} cache_aligned;

static struct udp_lane lanes[UDP_LANES] = {
    [0 ... UDP_LANES - 1] = {.ipv4.source.fd = -1, .ipv6.source.fd = -1},
};

struct udp_lane *udp_lane(uint32_t qpn)
{
    /* Skips the lower bits of the block (the shard), which are the same in most QPNs of a process. */
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

static int open_socket(struct udp_lane *lane, struct lane_socket *sock, int family,
                       const struct udp_path *path)
{
    int fd, error = 0;

    if (!lane->buffers)
        lane->buffers = sys_mmap(NULL, sizeof(*lane->buffers), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (error)
        return error;
    crc_choose(sys_now);
    sock->usual = *path;
    fd = socket_for_sending(family, &sock->usual, &sock->port, &sock->segments);
    if (fd < 0)
        return fd;
    sock->source.fd = fd;
    sock->source.ready = writable;
    error = event_add(&sock->source, 0);
    if (error) {
        sock->source.fd = -1;
        fd_close(fd);
        return error;
    }
    event_pause(&sock->source);
    return 0;
}

/* NULL: no socket of this address family can be opened. */
static cold_path struct lane_socket *open_socket_to(struct udp_lane *lane, const struct udp_path *path)
{
    bool is_ipv4 = ipudp_gid_is_ipv4(path->destination);
    struct lane_socket *sock = is_ipv4 ? &lane->ipv4 : &lane->ipv6;
    int error = open_socket(lane, sock, is_ipv4 ? AF_INET : AF_INET6, path);

    if (!error)
        return sock;
    if (lane->logged_error != error)
        log_error("cannot create a UDP socket to send from: %s (limit: ulimit -n): packets to other hosts "
                  "are dropped",
                  strerror(-error));
    lane->logged_error = error;
    return NULL;
}

static inline struct lane_socket *socket_to(struct udp_lane *lane, const struct udp_path *path)
{
    struct lane_socket *sock = ipudp_gid_is_ipv4(path->destination) ? &lane->ipv4 : &lane->ipv6;

    return likely(sock->source.fd >= 0) ? sock : open_socket_to(lane, path);
}

/* --- sending what is staged ---------------------------------------------------------------------- */

/* Do the socket's own source address and hop limit suit the path? */
static bool is_usual(const struct lane_socket *sock, const struct udp_path *path)
{
    return !path->ifindex && path->hop_limit == sock->usual.hop_limit &&
           memcmp(path->source, sock->usual.source, sizeof(path->source)) == 0;
}

static bool is_default_segment(const struct lane_socket *sock, const struct message *message)
{
    return message->segments > 1 ? message->segment == sock->default_segment
                                 : !sock->default_segment || message->length <= sock->default_segment;
}

static void prepare_header(struct udp_lane *lane, unsigned index, bool is_ipv4)
{
    const struct lane_socket *sock = is_ipv4 ? &lane->ipv4 : &lane->ipv6;
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
        datagram_to_ipv4(header, &message->path, is_usual(sock, &message->path));
    else
        datagram_to_ipv6(header, &message->path);
    if (!is_default_segment(sock, message))
        datagram_segment(header, message->segments > 1 ? message->segment : 0);
}

/* Prepares the messages from `first` on that use the same socket, and returns how many. */
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

static void log_not_sent(struct udp_lane *lane, const struct message *message, int error)
{
    char text[GID_TEXT];

    if (lane->logged_error == error)
        return;
    lane->logged_error = error;
    log_warn("cannot send packets of %u bytes to %s: %s; they are dropped (EMSGSIZE: the MTU of the route is "
             "smaller: use a smaller path_mtu; EPERM: a firewall)",
             message->segment, gid_text(message->path.destination, text), strerror(-error));
}

static void drop_first(struct udp_lane *lane, int error)
{
    const struct message *message = &lane->buffers->messages[lane->first++];

    udp_count(&udp_counters->not_sent, message->segments);
    log_not_sent(lane, message, error);
}

/* Computes the ICRC and stores it in the last four bytes of the packet. */
static void add_icrc(struct udp_lane *lane, struct message *message, uint16_t identification, uint8_t *bytes,
                     uint32_t length)
{
    message->covered.identification = identification;
    icrc_store(icrc_of_next(&lane->buffers->icrc, &message->covered, bytes, length),
               bytes + length - ICRC_LENGTH);
}

static void set_default_segment(struct lane_socket *sock, uint16_t segment)
{
    if (segment && !socket_keeps_short_datagrams())
        return;
    sock->default_segment = socket_set_segment(sock->source.fd, segment) == 0 ? segment : 0;
    sock->repeats = 0;
}

/* Counts datagrams whose segment size differs from the socket's default, and changes the default when it repeats. */
static void count_segment_size(struct lane_socket *sock, const struct message *message)
{
    uint16_t wanted = message->segments > 1 ? message->segment : 0;

    if (wanted > DEFAULT_SEGMENT_MAX)
        return;
    if (wanted != sock->repeated)
        sock->repeats = 0;
    sock->repeated = wanted;
    if (++sock->repeats == DEFAULT_SEGMENT_AFTER)
        set_default_segment(sock, wanted);
}

/* The kernel or the outgoing interface refuses UDP_SEGMENT: from now on each datagram has one packet. The packets
 * of the first message are sent singly, with new ICRCs, because the IPv4 identification of each becomes 0. */
static void send_singly(struct udp_lane *lane, struct lane_socket *sock)
{
    struct message message = lane->buffers->messages[lane->first];
    struct mmsghdr *header = &lane->buffers->headers[lane->first];
    struct iovec vector;

    sock->segments = 1;
    set_default_segment(sock, 0);
    lane->buffers->messages[lane->first].segments = 1;
    prepare_header(lane, lane->first++, sock == &lane->ipv4);
    header->msg_hdr.msg_iov = &vector;
    for (uint32_t at = 0; at < message.length; at += message.segment) {
        uint8_t *bytes = lane->buffers->bytes + message.begin + at;
        uint32_t length = min_of((uint32_t)message.segment, message.length - at);

        add_icrc(lane, &message, 0, bytes, length);
        vector = (struct iovec){bytes, length};
        /* A packet that the send buffer cannot take is dropped; transport retransmits it. */
        udp_count(sys_sendmmsg(sock->source.fd, header, 1) == 1 ? &udp_counters->packets_sent
                                                                : &udp_counters->not_sent,
                  1);
    }
}

/* A label that was not leased is EINVAL before Linux 5.3, and on any kernel where somebody has leased one for himself
 * alone. The receiver needs none. false: that is not why. */
static bool leave_out_labels(struct udp_lane *lane, struct lane_socket *sock)
{
    if (sock != &lane->ipv6 || sock->labels_left_out || !lane->buffers->messages[lane->first].path.flow_label)
        return false;
    sock->labels_left_out = socket_leave_out_labels(sock->source.fd) == 0;
    return sock->labels_left_out;
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

static ssize_t hand_over_one(struct lane_socket *sock, const struct msghdr *header,
                             const struct message *message)
{
    if (!is_default_segment(sock, message))
        count_segment_size(sock, message);
    if (header->msg_controllen)
        return sys_sendmsg(sock->source.fd, header);
    return sys_sendto(sock->source.fd, header->msg_iov, header->msg_name, header->msg_namelen);
}

/* Returns how many messages were sent, or -errno. */
static int hand_over(struct udp_lane *lane, struct lane_socket *sock, unsigned count)
{
    struct mmsghdr *headers = lane->buffers->headers + lane->first;
    ssize_t length;

    if (count > 1)
        return sys_sendmmsg(sock->source.fd, headers, count);
    length = hand_over_one(sock, &headers->msg_hdr, &lane->buffers->messages[lane->first]);
    return length < 0 ? (int)length : 1;
}

/* Makes one system call and handles its result. false: the lane is blocked. */
static bool send_run(struct udp_lane *lane, struct lane_socket *sock, unsigned run)
{
    int sent = hand_over(lane, sock, run);

    if (likely(sent > 0)) {
        count_sent(lane, (unsigned)sent);
        return true;
    }
    if (sent == -EINTR)
        return true;
    if (sent == -EAGAIN) {
        atomic_store_explicit(&lane->blocked, true, memory_order_relaxed);
        if (!event_resume(&sock->source, EPOLLOUT | EPOLLONESHOT))
            return false;
        atomic_store_explicit(&lane->blocked, false, memory_order_relaxed);
    }
    if (sent == -EINVAL && leave_out_labels(lane, sock))
        return true;
    if ((sent == -EIO || sent == -EINVAL) && lane->buffers->messages[lane->first].segments > 1)
        send_singly(lane, sock);
    else if ((sent == -EIO || sent == -EINVAL) && sock->default_segment)
        set_default_segment(sock, 0);
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

    /* The lock orders the caller behind writable(): after false, the caller sees what preceded ops->writable(). */
    lock_acquire(&lane->lock);
    blocked = is_blocked(lane);
    lock_release(&lane->lock);
    return blocked;
}

/* Lock held on entry, released on return. */
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

/* A packet may be appended if it is not larger than the others and the last packet is not smaller. */
static bool has_room(const struct message *message, const struct lane_socket *sock, uint32_t length)
{
    return message->segments < sock->segments && length <= message->segment &&
           message->length == (uint32_t)message->segment * message->segments &&
           message->length + length <= DATAGRAM_END;
}

static struct message *begin_message(struct udp_lane *lane, const struct lane_socket *sock,
                                     const struct udp_path *path, uint32_t length)
{
    struct message *message = &lane->buffers->messages[lane->count++];

    *message = (struct message){
        .path = *path,
        .covered = {.source_port = sock->port, .destination_port = ROCE_UDP_PORT, .dont_fragment = true},
        .begin = lane->filled,
        .segment = (uint16_t)length,
    };
    memcpy(message->covered.source, path->source, sizeof(path->source));
    memcpy(message->covered.destination, path->destination, sizeof(path->destination));
    return message;
}

/* Returns the message that takes a packet of this length: the last one, or a new one. */
static inline struct message *message_for(struct udp_lane *lane, const struct lane_socket *sock,
                                          const struct udp_path *path, uint32_t length)
{
    if (likely(lane->count > lane->first)) {
        struct message *last = &lane->buffers->messages[lane->count - 1];

        if (has_room(last, sock, length) && same_path(&last->path, path))
            return last;
    }
    return begin_message(lane, sock, path, length);
}

static void copy_payload(uint8_t *to, const struct iovec *gather, unsigned gather_count)
{
    for (unsigned i = 0; i < gather_count; i++) {
        memcpy(to, gather[i].iov_base, gather[i].iov_len);
        to += gather[i].iov_len;
    }
}

/* Adds the ICRC of a packet that is otherwise complete in the buffer. */
static void finish(struct udp_lane *lane, struct message *message, uint32_t length)
{
    add_icrc(lane, message, message->segments, lane->buffers->bytes + lane->filled, length);
    message->segments++;
    message->length += length;
    lane->filled += length;
}

static void stage(struct udp_lane *lane, const struct lane_socket *sock, const struct udp_path *path,
                  const struct packet *packet, uint32_t length, const struct iovec *gather,
                  unsigned gather_count)
{
    struct message *message = message_for(lane, sock, path, length);
    uint8_t *bytes = lane->buffers->bytes + lane->filled;
    size_t headers = codec_encode(packet, bytes);

    copy_payload(bytes + headers, gather, gather_count);
    memset(bytes + headers + packet->payload_length, 0, codec_pad(packet->payload_length));
    finish(lane, message, length);
    if (unlikely(packet->flags & PACKET_BAD_ICRC))
        bytes[length - 1] ^= 0xff;
}

static void stage_notification(struct udp_lane *lane, const struct lane_socket *sock,
                               const struct udp_path *path, uint32_t dest_qpn)
{
    struct message *message = message_for(lane, sock, path, NOTIFICATION_LENGTH);

    codec_encode_cnp(dest_qpn, lane->buffers->bytes + lane->filled);
    finish(lane, message, NOTIFICATION_LENGTH);
    udp_count(&udp_counters->cnps_sent, 1);
}

/* Lock held. Finds the socket and flushes a full lane. 0, -EAGAIN (blocked) or -EHOSTUNREACH. */
static inline int make_space(struct udp_lane *lane, const struct udp_path *path,
                             const struct lane_socket **ret_socket)
{
    if (unlikely(lane->filled >= FLUSH_AT || lane->count == MESSAGES) && !is_blocked(lane))
        send_staged(lane);
    *ret_socket = socket_to(lane, path);
    if (unlikely(!*ret_socket))
        return -EHOSTUNREACH;
    return unlikely(is_blocked(lane)) ? -EAGAIN : 0;
}

int udp_send(struct udp_lane *lane, const struct udp_path *path, const struct packet *packet,
             const struct iovec *gather, unsigned gather_count)
{
    uint32_t length = codec_udp_payload_length(packet);
    const struct lane_socket *sock;
    int error;

    if (unlikely(length > PACKET_MAX))
        return -EHOSTUNREACH;
    lock_acquire(&lane->lock);
    error = make_space(lane, path, &sock);
    if (likely(!error))
        stage(lane, sock, path, packet, length, gather, gather_count);
    lock_release(&lane->lock);
    return error;
}

void udp_hold(struct udp_lane *lane, const struct udp_path *path)
{
    lock_acquire(&lane->lock);
    lane->held = *path;
}

bool udp_put(struct udp_lane *lane, const struct packet *packet)
{
    const struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    uint32_t length = codec_udp_payload_length(packet);
    const struct lane_socket *sock;

    if (unlikely(length > PACKET_MAX || make_space(lane, &lane->held, &sock)))
        return false;
    stage(lane, sock, &lane->held, packet, length, &payload, 1);
    return true;
}

void udp_release(struct udp_lane *lane)
{
    lock_release(&lane->lock);
}

uint16_t udp_source_port(struct udp_lane *lane, const uint8_t destination[16])
{
    const struct lane_socket *sock = ipudp_gid_is_ipv4(destination) ? &lane->ipv4 : &lane->ipv6;
    uint16_t port;

    lock_acquire(&lane->lock);
    port = sock->source.fd >= 0 ? sock->port : 0;
    lock_release(&lane->lock);
    return port;
}

bool udp_notify(struct udp_lane *lane, const struct udp_path *path, uint32_t dest_qpn)
{
    const struct lane_socket *sock;
    bool staged;

    lock_acquire(&lane->lock);
    staged = make_space(lane, path, &sock) == 0;
    if (staged)
        stage_notification(lane, sock, path, dest_qpn);
    lock_release(&lane->lock);
    return staged;
}

void lane_after_fork_in_child(void)
{
    for (unsigned i = 0; i < UDP_LANES; i++) {
        struct udp_lane *lane = &lanes[i];

        /* Leaks the buffers: another thread may have held the lock at the fork. */
        memset(lane, 0, sizeof(*lane));
        lane->ipv4.source.fd = lane->ipv6.source.fd = -1;
    }
}
