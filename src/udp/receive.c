/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets from the network: receives datagrams in batches, splits those that the kernel has coalesced (UDP_GRO),
 * checks the ICRC, decodes headers. One thread at a time, with the receive lock held. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "udp/internal.h"
#include "wire/codec.h"
#include "wire/crc.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#define BATCH        4 /* datagrams of 64 KiB, few enough to stay in the cache until their packets are handled */
#define CONTROL_SIZE 256
#define ECN_MASK     3
#define ECN_CE       3
#define FLOW_LABEL   0xfffffu
/* After IDLE_POLLS calls of udp_poll() without packets, only every IDLE_EVERY-th call makes a system call. */
#define IDLE_POLLS 256u
#define IDLE_EVERY 8u
/* Bounds udp_drain() while packets keep arriving. */
#define DRAIN_BATCHES 256

struct slot {
    struct datagram description; /* of datagrams from the forwarding socket, in front of the bytes */
    uint8_t bytes[DATAGRAM_MAX];
};

struct receive_buffers {
    struct slot slot[BATCH];
    struct mmsghdr headers[BATCH];
    struct iovec vectors[BATCH][2];
    struct sockaddr_in6 names[BATCH];
    uint8_t control[BATCH][CONTROL_SIZE] __attribute__((aligned(16)));
    /* Headers [0, prepared) are as prepare_headers() leaves them, for a forwarding socket or for others. */
    unsigned prepared;
    bool prepared_for_forwarding;
    struct icrc_memory icrc;
};

_Atomic bool udp_has_sockets;
static struct network_counters own_counters;
struct network_counters *udp_counters = &own_counters;

static struct lock receive_lock = LOCK_INIT; /* guards all below except atomics */
static struct receive_buffers *buffers;
static struct list polled = {&polled, &polled}, others = {&others, &others};
static _Atomic uint32_t idle_polls;
/* Is any polled reader armed, are all? Changed with the receive lock held. */
static _Atomic bool any_armed, all_armed;

/* --- one datagram -------------------------------------------------------------------------------- */

/* A socket does not report the IPv4 identification, which the ICRC covers. Packets sent as one datagram count up
 * from 0 (lane.c), so *expected is tried first; for other senders icrc_check_next() derives it from the ICRC.
 * *expected becomes the identification of the next packet. */
static bool check_icrc(struct icrc_path *path, uint16_t *expected, const uint8_t *bytes, uint32_t length)
{
    path->identification = *expected;
    if (!icrc_check_next(&buffers->icrc, path, bytes, length))
        return false;
    *expected = (uint16_t)(path->identification + 1);
    return true;
}

/* SOFTHCA_UDP_LOSS. Receive lock held. */
static bool is_dropped_for_test(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) % 100 < udp_settings.loss;
}

static void take_cnp(const struct datagram *datagram, const uint8_t *bytes)
{
    struct packet packet = {.opcode = OPCODE_CNP, .dest_qpn = dest_qpn_of(bytes)};

    udp_count(&udp_counters->cnps_received, 1);
    describe_grh(datagram, &packet.grh);
    udp_settings.ops->congestion(&packet);
}

static void take_packet(const struct datagram *datagram, const uint8_t *bytes, uint32_t length, bool follows)
{
    const struct udp_arrival arrival = {
        .ifindex = datagram->ifindex,
        .source_port = datagram->source_port,
        .congested = (datagram->traffic_class & ECN_MASK) == ECN_CE,
        .follows = follows,
    };
    struct packet packet;
    int error;

    if (unlikely(udp_settings.loss) && is_dropped_for_test())
        return;
    if (unlikely(bytes[0] == OPCODE_CNP)) {
        take_cnp(datagram, bytes);
        return;
    }
    error = codec_decode(bytes, length - ICRC_LENGTH, &packet);
    /* The responder refuses reserved opcodes (IBA 9.7.4). */
    if (unlikely(error && error != -EPROTONOSUPPORT)) {
        udp_count(&udp_counters->malformed, 1);
        return;
    }
    if (unlikely(arrival.congested))
        udp_count(&udp_counters->congested, 1);
    describe_grh(datagram, &packet.grh);
    udp_settings.ops->packet(&packet, &arrival);
}

/* Forwards consecutive packets from offset `at` for the same block of another process as one datagram. Returns
 * the offset after them. */
static uint32_t skip_others(const struct datagram *datagram, const uint8_t *bytes, uint32_t at,
                            bool was_forwarded)
{
    uint32_t block = dest_qpn_of(bytes + at) / UDP_BLOCK_QPNS, end = at;
    struct datagram part = *datagram;

    do
        end += min_of((uint32_t)datagram->segment, datagram->length - end);
    while (datagram->length - end > BTH_LENGTH && dest_qpn_of(bytes + end) / UDP_BLOCK_QPNS == block);
    part.length = end - at;
    port_owner_forward(&part, bytes + at, was_forwarded);
    return end;
}

/* Returns the offset of an ACK that follows one request to the same QP in a datagram, else the datagram's length.
 * The sender appended the ACK because only the last packet of a datagram may be smaller
 * (engine/paths/ack_delay.c). The ACK is handled first, because it completes an older message. */
static uint32_t offset_of_ack(const struct datagram *datagram, const uint8_t *bytes)
{
    const uint8_t *last = bytes + datagram->segment;

    if (datagram->length <= datagram->segment || datagram->length > 2u * datagram->segment ||
        datagram->length - datagram->segment < BTH_LENGTH + ICRC_LENGTH || last[0] != OP_ACKNOWLEDGE ||
        !(opcode_table[bytes[0]].properties & OPCODE_REQUEST) || dest_qpn_of(bytes) != dest_qpn_of(last) ||
        !udp_settings.ops->is_ours(dest_qpn_of(bytes)))
        return datagram->length;
    return datagram->segment;
}

static unsigned take_datagram(const struct datagram *datagram, const uint8_t *bytes, bool was_forwarded)
{
    struct icrc_path path = {
        .source_port = datagram->source_port,
        .destination_port = ROCE_UDP_PORT,
        .dont_fragment = true,
    };
    uint16_t expected = 0;
    unsigned packets = 0;
    uint32_t end;

    memcpy(path.source, datagram->source, sizeof(path.source));
    memcpy(path.destination, datagram->destination, sizeof(path.destination));
    end = offset_of_ack(datagram, bytes);
    if (end < datagram->length) {
        uint16_t second = 1;

        if (likely(check_icrc(&path, &second, bytes + end, datagram->length - end))) {
            take_packet(datagram, bytes + end, datagram->length - end, false);
            packets++;
        } else {
            udp_count(&udp_counters->bad_icrc, 1);
        }
    }
    for (uint32_t at = 0; at < end;) {
        uint32_t length = min_of((uint32_t)datagram->segment, end - at);

        if (unlikely(length < BTH_LENGTH + ICRC_LENGTH)) {
            udp_count(&udp_counters->malformed, 1);
        } else if (unlikely(!udp_settings.ops->is_ours(dest_qpn_of(bytes + at)))) {
            at = skip_others(datagram, bytes, at, was_forwarded);
            continue;
        } else if (unlikely(!check_icrc(&path, &expected, bytes + at, length))) {
            udp_count(&udp_counters->bad_icrc, 1);
        } else {
            take_packet(datagram, bytes + at, length, at != 0);
            packets++;
        }
        at += length;
    }
    /* Plain additions suffice: the receive lock is held. */
    udp_count_alone(&udp_counters->packets_received, packets);
    udp_count_alone(&udp_counters->bytes_received, datagram->length);
    return packets;
}

/* --- addresses and ancillary data ---------------------------------------------------------------- */

static void map_ipv4(uint8_t gid[16], const struct in_addr *address)
{
    memset(gid, 0, 10);
    gid[10] = gid[11] = 0xff;
    memcpy(gid + 12, address, 4);
}

static void describe_ip(struct datagram *ret, const struct cmsghdr *message)
{
    const void *data = CMSG_DATA(message);
    struct in_pktinfo info;

    switch (message->cmsg_type) {
    case IP_PKTINFO:
        memcpy(&info, data, sizeof(info));
        map_ipv4(ret->destination, &info.ipi_addr);
        ret->ifindex = (uint32_t)info.ipi_ifindex;
        break;
    case IP_TOS:
        ret->traffic_class = *(const uint8_t *)data;
        break;
    case IP_TTL:
        ret->hop_limit = (uint8_t) * (const int *)data;
        break;
    default:
        break;
    }
}

static void describe_ipv6(struct datagram *ret, const struct cmsghdr *message)
{
    const void *data = CMSG_DATA(message);
    struct in6_pktinfo info;
    uint32_t flow;

    switch (message->cmsg_type) {
    case IPV6_PKTINFO: /* also for IPv4 packets, with a mapped address */
        memcpy(&info, data, sizeof(info));
        memcpy(ret->destination, &info.ipi6_addr, sizeof(ret->destination));
        ret->ifindex = info.ipi6_ifindex;
        break;
    case IPV6_TCLASS:
        ret->traffic_class = (uint8_t) * (const int *)data;
        break;
    case IPV6_HOPLIMIT:
        ret->hop_limit = (uint8_t) * (const int *)data;
        break;
    case IPV6_FLOWINFO:
        memcpy(&flow, data, sizeof(flow));
        ret->flow_label = ntohl(flow) & FLOW_LABEL;
        break;
    default:
        break;
    }
}

/* false: truncated, or without the necessary ancillary data. */
static bool describe(struct datagram *ret, struct mmsghdr *header)
{
    const struct sockaddr_in6 *name = header->msg_hdr.msg_name;
    const struct sockaddr_in *name4 = header->msg_hdr.msg_name;

    memset(ret, 0, sizeof(*ret));
    ret->length = header->msg_len;
    ret->segment = (uint16_t)min_of(header->msg_len, (uint32_t)UINT16_MAX);
    for (struct cmsghdr *message = CMSG_FIRSTHDR(&header->msg_hdr); message;
         message = CMSG_NXTHDR(&header->msg_hdr, message)) {
        if (message->cmsg_level == IPPROTO_IP)
            describe_ip(ret, message);
        else if (message->cmsg_level == IPPROTO_IPV6)
            describe_ipv6(ret, message);
        else if (message->cmsg_level == IPPROTO_UDP && message->cmsg_type == UDP_GRO)
            ret->segment = (uint16_t) * (const int *)(const void *)CMSG_DATA(message);
    }
    if (name->sin6_family == AF_INET6) {
        memcpy(ret->source, &name->sin6_addr, sizeof(ret->source));
        ret->source_port = ntohs(name->sin6_port);
    } else {
        map_ipv4(ret->source, &name4->sin_addr);
        ret->source_port = ntohs(name4->sin_port);
    }
    return ret->segment && ret->ifindex && !(header->msg_hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
}

/* --- batches ------------------------------------------------------------------------------------- */

/* recvmmsg() modifies the headers of received datagrams only, so headers are prepared again only after that. */
static void prepare_headers(bool is_forwarding, unsigned count)
{
    if (buffers->prepared_for_forwarding != is_forwarding)
        buffers->prepared = 0;
    buffers->prepared_for_forwarding = is_forwarding;
    for (unsigned i = buffers->prepared; i < count; i++) {
        struct msghdr *header = &buffers->headers[i].msg_hdr;

        buffers->vectors[i][0] = (struct iovec){&buffers->slot[i].description, sizeof(struct datagram)};
        buffers->vectors[i][1] = (struct iovec){buffers->slot[i].bytes, DATAGRAM_MAX};
        *header = (struct msghdr){
            .msg_iov = buffers->vectors[i] + !is_forwarding,
            .msg_iovlen = 1 + is_forwarding,
        };
        if (!is_forwarding) {
            header->msg_name = &buffers->names[i];
            header->msg_namelen = sizeof(buffers->names[i]);
            header->msg_control = buffers->control[i];
            header->msg_controllen = CONTROL_SIZE;
        }
    }
    buffers->prepared = max_of(buffers->prepared, count);
}

/* Kernels without IPV6_MULTICAST_ALL deliver multicast also to the port's sockets. */
static bool is_misplaced(const struct reader *reader, const struct datagram *datagram)
{
    bool to_group = datagram->destination[0] == 0xff ||
                    (ipudp_gid_is_ipv4(datagram->destination) && (datagram->destination[12] & 0xf0) == 0xe0);

    return to_group != reader->is_group;
}

static unsigned take_from_socket(const struct reader *reader, struct mmsghdr *header, struct slot *slot)
{
    struct datagram datagram;

    if (unlikely(!describe(&datagram, header))) {
        udp_count(&udp_counters->malformed, 1);
        return 0;
    }
    if (unlikely(is_misplaced(reader, &datagram)))
        return 0;
    if (likely(reader->forward_to < 0))
        return take_datagram(&datagram, slot->bytes, false);
    forwarding_send(reader->forward_to, &datagram, slot->bytes);
    return 0;
}

/* Addresses are taken as given, as packets are not authenticated (docs/wire.md); lengths are checked. */
static unsigned take_from_forwarding_socket(struct mmsghdr *header, struct slot *slot)
{
    const struct datagram datagram = slot->description;

    if (header->msg_len < sizeof(datagram) || datagram.length != header->msg_len - sizeof(datagram) ||
        !datagram.segment || (header->msg_hdr.msg_flags & MSG_TRUNC)) {
        udp_count(&udp_counters->malformed, 1);
        return 0;
    }
    udp_count(&udp_counters->forwarded_to_us, 1);
    return take_datagram(&datagram, slot->bytes, true);
}

/* Returns the number of datagrams, or -errno. */
static int receive(const struct reader *reader, unsigned wanted)
{
    ssize_t length;

    if (wanted > 1)
        return sys_recvmmsg(reader->source.fd, buffers->headers, wanted);
    length = sys_recvmsg(reader->source.fd, &buffers->headers->msg_hdr);
    if (length < 0)
        return (int)length;
    buffers->headers->msg_len = (unsigned)length;
    return 1;
}

/* Receives and handles up to BATCH datagrams. Returns their number, or -errno. Receive lock held. */
static int take_batch(struct reader *reader, unsigned *packets)
{
    unsigned wanted = reader->was_full ? BATCH : 1;
    int count;

    if (reader->source.fd < 0)
        return 0;
    prepare_headers(reader->is_forwarding, wanted);
    count = receive(reader, wanted);
    if (count > 0)
        buffers->prepared = 0;
    /* recvmmsg() for a second datagram costs a third of receiving one, and mostly there is none. */
    reader->was_full = count == (int)wanted;
    for (int i = 0; i < count; i++)
        *packets += reader->is_forwarding
                        ? take_from_forwarding_socket(&buffers->headers[i], &buffers->slot[i])
                        : take_from_socket(reader, &buffers->headers[i], &buffers->slot[i]);
    return count;
}

static unsigned take_from(struct list *readers)
{
    unsigned packets = 0;

    list_for_each (node, readers)
        (void)take_batch(list_entry(node, struct reader, node), &packets);
    udp_settings.ops->batch_end();
    return packets;
}

unsigned udp_poll(void)
{
    uint32_t idle = atomic_load_explicit(&idle_polls, memory_order_relaxed);
    unsigned packets;

    if (idle > IDLE_POLLS && idle % IDLE_EVERY != 0) {
        atomic_store_explicit(&idle_polls, idle + 1, memory_order_relaxed);
        return 0;
    }
    if (!lock_try(&receive_lock))
        return 0;
    packets = take_from(&polled);
    lock_release(&receive_lock);
    atomic_store_explicit(&idle_polls, packets ? 0 : idle + 1, memory_order_relaxed);
    return packets;
}

void udp_drain(void)
{
    unsigned batches = 0;

    lock_acquire(&receive_lock);
    while (take_from(&polled) && ++batches < DRAIN_BATCHES) {
    }
    lock_release(&receive_lock);
}

void udp_end_batch(void)
{
    lock_acquire(&receive_lock);
    udp_settings.ops->batch_end();
    lock_release(&receive_lock);
}

bool udp_has_packets(void)
{
    bool has = false;

    if (!lock_try(&receive_lock))
        return false; /* the thread that holds the lock receives them */
    list_for_each (node, &polled) {
        struct pollfd watched = {.fd = list_entry(node, struct reader, node)->source.fd, .events = POLLIN};

        has |= sys_poll_now(&watched, 1) > 0;
    }
    lock_release(&receive_lock);
    return has;
}

/* --- readers ------------------------------------------------------------------------------------- */

/* Arrivals wake the helper thread. Receive lock held. */
static void set_armed(struct reader *reader)
{
    reader->armed = true;
    atomic_store_explicit(&any_armed, true, memory_order_relaxed);
}

static bool arm(struct reader *reader)
{
    int error = reader->armed ? 0 : event_resume(&reader->source, EPOLLIN);

    if (error == -ENOMEM || error == -ENOSPC)
        return false;
    set_armed(reader); /* after other errors the descriptor is dead: nothing arrives there */
    return true;
}

bool udp_prepare_sleep(void)
{
    bool armed = true;

    if (atomic_load_explicit(&all_armed, memory_order_acquire))
        return true;
    lock_acquire(&receive_lock);
    list_for_each (node, &polled)
        armed &= arm(list_entry(node, struct reader, node));
    atomic_store_explicit(&all_armed, armed, memory_order_release);
    lock_release(&receive_lock);
    return armed;
}

/* Without a watching epoll, arriving packets cost the sender no wakeup check either. */
void udp_disarm(void)
{
    if (!atomic_load_explicit(&any_armed, memory_order_relaxed))
        return;
    lock_acquire(&receive_lock);
    atomic_store_explicit(&all_armed, false, memory_order_relaxed);
    atomic_store_explicit(&any_armed, false, memory_order_relaxed);
    list_for_each (node, &polled) {
        struct reader *reader = list_entry(node, struct reader, node);

        if (reader->armed)
            event_pause(&reader->source);
        reader->armed = false;
    }
    lock_release(&receive_lock);
}

/* Helper thread. It calls udp_poll() next, which reads the polled sockets. */
static void ready(struct event_source *source, uint32_t events)
{
    struct reader *reader = container_of(source, struct reader, source);
    unsigned packets = 0;

    if (reader->polled) {
        atomic_store_explicit(&idle_polls, 0, memory_order_relaxed);
        return;
    }
    rundown_enter();
    lock_acquire(&receive_lock);
    if (take_batch(reader, &packets) > 0)
        udp_settings.ops->batch_end();
    lock_release(&receive_lock);
    rundown_exit();
}

static int need_buffers(void)
{
    int error = 0;

    crc_choose(sys_now);
    if (!buffers)
        buffers = sys_mmap(NULL, sizeof(*buffers), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
                           &error);
    if (error)
        log_error("cannot allocate receive buffers for UDP port 4791: %s (limit: ulimit -v): no packets from "
                  "other hosts arrive",
                  strerror(-error));
    return error;
}

int reader_add(struct reader *reader)
{
    int error;

    lock_acquire(&receive_lock);
    error = need_buffers();
    if (!error) {
        reader->source.ready = ready;
        error = event_add(&reader->source, EPOLLIN);
    }
    if (!error) {
        set_armed(reader);
        list_push_back(reader->polled ? &polled : &others, &reader->node);
        atomic_store_explicit(&all_armed, false, memory_order_relaxed); /* until udp_prepare_sleep() */
        if (reader->polled)
            atomic_store_explicit(&udp_has_sockets, true, memory_order_release);
    }
    lock_release(&receive_lock);
    return error;
}

void reader_remove(struct reader *reader)
{
    lock_acquire(&receive_lock);
    if (reader->source.fd >= 0)
        list_remove(&reader->node);
    event_close(&reader->source);
    lock_release(&receive_lock);
}

void reader_set_polled(struct reader *reader)
{
    lock_acquire(&receive_lock);
    if (!reader->polled && reader->source.fd >= 0) {
        list_remove(&reader->node);
        list_push_back(&polled, &reader->node);
        reader->polled = true;
        if (reader->armed)
            set_armed(reader); /* so that udp_disarm() looks at it */
        atomic_store_explicit(&udp_has_sockets, true, memory_order_release);
    }
    lock_release(&receive_lock);
}

void receive_lock_acquire(void)
{
    lock_acquire(&receive_lock);
}

void receive_lock_release(void)
{
    lock_release(&receive_lock);
}

void receive_after_fork_in_child(void)
{
    lock_init(&receive_lock);
    list_init(&polled);
    list_init(&others);
    buffers = NULL; /* leaked: another thread may have been receiving at the fork */
    atomic_store_explicit(&udp_has_sockets, false, memory_order_relaxed);
    atomic_store_explicit(&any_armed, false, memory_order_relaxed);
    atomic_store_explicit(&all_armed, false, memory_order_relaxed);
    atomic_store_explicit(&idle_polls, 0, memory_order_relaxed);
}
