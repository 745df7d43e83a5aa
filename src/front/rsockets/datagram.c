/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/rsockets/datagram.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"

/* Unread datagrams that arrived by UDP; more are dropped. */
#define UDP_ARRIVALS_MAX 256
/* Completions per ibv_poll_cq() call. */
#define BATCH 16
/* Set in the wr_id of sends, which is the number of a slot; the wr_id of a receive is an address. */
#define WR_SEND (1ull << 63)

/* Raw system calls, because in a program under librspreload libc's socket() may call this library again. */
static int result_of(long returned)
{
    return returned < 0 ? -errno : (int)returned;
}

/* --- opening and closing -------------------------------------------------------------------------------- */

static void close_descriptors(struct datagram *datagram)
{
    if (datagram->epoll_fd >= 0)
        sys_close(datagram->epoll_fd);
    if (datagram->poke_fd >= 0)
        sys_close(datagram->poke_fd);
    if (datagram->udp >= 0)
        sys_close(datagram->udp);
}

static int open_descriptors(struct datagram *datagram, int domain)
{
    struct epoll_event event = {.events = EPOLLIN};

    datagram->epoll_fd = datagram->poke_fd = -1;
    datagram->udp = sys_socket(domain, SOCK_DGRAM | SOCK_CLOEXEC);
    if (datagram->udp < 0)
        return datagram->udp;
    datagram->epoll_fd = sys_epoll_create();
    datagram->poke_fd = result_of(fd_lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (datagram->epoll_fd < 0 || datagram->poke_fd < 0)
        return datagram->epoll_fd < 0 ? datagram->epoll_fd : datagram->poke_fd;
    return sys_epoll_ctl(datagram->epoll_fd, EPOLL_CTL_ADD, datagram->poke_fd, &event);
}

int datagram_open(struct rsocket *rsocket)
{
    struct datagram *datagram = calloc(1, sizeof(*datagram));
    int error;

    if (!datagram)
        return -ENOMEM;
    list_init(&datagram->paths);
    list_init(&datagram->recent);
    list_init(&datagram->arrivals);
    for (unsigned i = 0; i < DESTINATION_BUCKETS; i++)
        list_init(&datagram->buckets[i]);
    rsocket->datagram = datagram;
    error = open_descriptors(datagram, rsocket->domain);
    if (!error)
        error = rsocket_publish(rsocket, datagram->udp);
    if (!error)
        return datagram->udp;
    close_descriptors(datagram);
    free(datagram);
    return error;
}

/* The number of whole datagrams that the buffer holds. */
static uint32_t requests_of(uint32_t wanted, uint32_t *bytes)
{
    uint32_t most = min_of(*bytes / DATAGRAM_BYTES, 16384u), requests = max_of(min_of(wanted, most), 1u);

    *bytes = requests * DATAGRAM_BYTES;
    return requests;
}

static int open_send_memory(struct rsocket *rsocket)
{
    struct datagram *datagram = rsocket->datagram;
    int error;

    datagram->free_slots = calloc(datagram->send_requests, sizeof(*datagram->free_slots));
    if (!datagram->free_slots)
        return -ENOMEM;
    datagram->send_memory = sys_mmap(NULL, rsocket->options.send_bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (!datagram->send_memory)
        return error;
    datagram->send_bytes = rsocket->options.send_bytes;
    for (uint32_t i = 0; i < datagram->send_requests; i++)
        datagram->free_slots[datagram->free_count++] = i;
    return 0;
}

/* Allocates the port and memory, and starts the service thread, with the first call that needs an address. */
static int begin(struct rsocket *rsocket, const struct sockaddr_storage *local)
{
    struct datagram *datagram = rsocket->datagram;
    struct rsocket_options *options = &rsocket->options;
    const struct sockaddr_storage any = {.ss_family = (sa_family_t)rsocket->domain};
    socklen_t length;
    int error;

    if (datagram->started && local)
        return -EINVAL;
    if (datagram->started)
        return 0;
    if (!local)
        local = &any;
    length = (socklen_t)address_length((const struct sockaddr *)local);
    error = result_of(syscall(SYS_bind, datagram->udp, local, length));
    if (error)
        return error;
    datagram->send_requests = requests_of(options->send_requests, &options->send_bytes);
    datagram->receive_requests = requests_of(options->receive_requests, &options->receive_bytes);
    if (!datagram->send_memory)
        error = open_send_memory(rsocket);
    if (!error)
        error = service_watch_datagrams(rsocket, datagram->udp);
    if (error)
        return error;
    datagram->started = true;
    rsocket->phase = PHASE_BOUND;
    return 0;
}

static void drop_arrival(struct datagram *datagram, struct arrival *arrival)
{
    list_remove(&arrival->node);
    if (arrival->path) {
        path_repost(arrival->path, arrival);
    } else {
        datagram->udp_arrivals--;
        free(arrival);
    }
}

/* Waits for posted sends before the QP is destroyed: datagrams may be lost in the network, but not here. */
static void flush(struct rsocket *rsocket)
{
    struct rsocket_patience patience = {.deadline = sys_now() + NS_PER_S};

    while (rsocket->datagram->free_count < rsocket->datagram->send_requests)
        if (rsocket_wait(rsocket, &patience) == -ETIMEDOUT)
            return;
}

void datagram_close(struct rsocket *rsocket)
{
    struct datagram *datagram = rsocket->datagram;

    if (datagram->started)
        service_unwatch_datagrams(rsocket, datagram->udp);
    lock_acquire(&rsocket->lock);
    flush(rsocket);
    lock_release(&rsocket->lock);
    while (!list_empty(&datagram->arrivals))
        drop_arrival(datagram, list_entry(datagram->arrivals.next, struct arrival, node));
    destinations_close(rsocket);
    while (!list_empty(&datagram->paths))
        path_close(rsocket, list_entry(datagram->paths.next, struct path, node));
    if (datagram->send_memory)
        sys_munmap(datagram->send_memory, datagram->send_bytes);
    free(datagram->free_slots);
    sys_close(datagram->epoll_fd);
    sys_close(datagram->poke_fd); /* the UDP socket is the rsocket's own descriptor */
    free(datagram);
    rsocket->datagram = NULL;
}

int datagram_bind(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage copy;
    int error = rsocket_copy_address(rsocket, address, length, &copy);

    return error ? error : begin(rsocket, &copy);
}

int datagram_connect(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length)
{
    struct datagram *datagram = rsocket->datagram;
    struct sockaddr_storage to;
    int error;

    if (address && length >= sizeof(address->sa_family) && address->sa_family == AF_UNSPEC) {
        datagram->connected = false;
        return result_of(syscall(SYS_connect, datagram->udp, address, length));
    }
    error = rsocket_copy_address(rsocket, address, length, &to);
    if (!error)
        error = begin(rsocket, NULL);
    if (!error)
        error = result_of(syscall(SYS_connect, datagram->udp, &to, length));
    if (error || !destination_find(rsocket, &to, &error))
        return error;
    datagram->peer = to;
    datagram->connected = true;
    return 0;
}

int datagram_name(struct rsocket *rsocket, struct sockaddr *address, socklen_t *length, bool peer)
{
    return result_of(
        syscall(peer ? SYS_getpeername : SYS_getsockname, rsocket->datagram->udp, address, length));
}

int datagram_set_option(struct rsocket *rsocket, int level, int option, const void *value, socklen_t length)
{
    return result_of(syscall(SYS_setsockopt, rsocket->datagram->udp, level, option, value, length));
}

int datagram_get_option(struct rsocket *rsocket, int level, int option, void *value, socklen_t *length)
{
    return result_of(syscall(SYS_getsockopt, rsocket->datagram->udp, level, option, value, length));
}

/* --- completions ---------------------------------------------------------------------------------------- */

static bool is_wanted(const struct datagram *datagram, const struct sockaddr_storage *from)
{
    const struct sockaddr *peer = (const struct sockaddr *)&datagram->peer;

    return !datagram->connected || (addresses_equal(peer, (const struct sockaddr *)from) &&
                                    address_port(peer) == address_port((const struct sockaddr *)from));
}

static void take_receive(struct rsocket *rsocket, const struct ibv_wc *completion)
{
    struct datagram *datagram = rsocket->datagram;
    struct arrival *arrival = (struct arrival *)(uintptr_t)completion->wr_id;
    int header = -EPROTO;

    if (completion->status == IBV_WC_SUCCESS && completion->byte_len >= GRH_BYTES)
        header = rsocket_datagram_decode(arrival->data, completion->byte_len - GRH_BYTES, &arrival->from);
    if (header > 0)
        rsocket_address_map(&arrival->from, rsocket->domain);
    if (header < 0 || !is_wanted(datagram, &arrival->from)) {
        if (completion->status != IBV_WC_WR_FLUSH_ERR)
            path_repost(arrival->path, arrival);
        return;
    }
    arrival->data += header;
    arrival->length = completion->byte_len - GRH_BYTES - (uint32_t)header;
    list_push_back(&datagram->arrivals, &arrival->node);
}

static unsigned poll_path(struct rsocket *rsocket, struct path *path)
{
    struct datagram *datagram = rsocket->datagram;
    struct ibv_wc completions[BATCH];
    int count = ibv_poll_cq(path->cq, BATCH, completions);

    for (int i = 0; i < count; i++) {
        if (completions[i].wr_id & WR_SEND)
            datagram->free_slots[datagram->free_count++] = (uint32_t)completions[i].wr_id;
        else
            take_receive(rsocket, &completions[i]);
    }
    return count > 0 ? (unsigned)count : 0;
}

void datagram_progress(struct rsocket *rsocket)
{
    unsigned taken = 0;

    list_for_each (node, &rsocket->datagram->paths)
        taken += poll_path(rsocket, list_entry(node, struct path, node));
    if (taken)
        rsocket_changed(rsocket);
}

void datagram_arm(struct rsocket *rsocket)
{
    list_for_each (node, &rsocket->datagram->paths) {
        struct path *path = list_entry(node, struct path, node);

        if (path->armed)
            continue;
        path->armed = true;
        ibv_req_notify_cq(path->cq, 0);
    }
}

bool datagram_drain(struct rsocket *rsocket)
{
    struct epoll_event ready;
    bool something = false;
    struct ibv_cq *cq;
    void *context;
    uint64_t count;

    while (sys_epoll_wait(rsocket->datagram->epoll_fd, &ready, 1, 0) == 1) {
        struct path *path = ready.data.ptr;

        something = true;
        if (!path) {
            sys_read(rsocket->datagram->poke_fd, &count, sizeof(count));
        } else if (!ibv_get_cq_event(path->channel, &cq, &context)) {
            ibv_ack_cq_events(cq, 1);
            path->armed = false;
        }
    }
    return something;
}

int datagram_event_fd(const struct rsocket *rsocket)
{
    return rsocket->datagram->epoll_fd;
}

void datagram_wake(const struct rsocket *rsocket)
{
    const uint64_t one = 1;

    sys_write(rsocket->datagram->poke_fd, &one, sizeof(one));
}

short datagram_events(struct rsocket *rsocket, short events)
{
    const struct datagram *datagram = rsocket->datagram;
    short ready = 0;

    if (!list_empty(&datagram->arrivals))
        ready |= POLLIN | POLLRDNORM;
    if (!datagram->started || datagram->free_count)
        ready |= POLLOUT | POLLWRNORM;
    return ready & events;
}

/* --- sending -------------------------------------------------------------------------------------------- */

#define PARTS_MAX 1024 /* IOV_MAX */

/* asks: data, and a request for the peer's QPN; otherwise the answer to such a request. */
static ssize_t send_by_udp(struct datagram *datagram, const struct destination *to, const struct iovec *parts,
                           size_t count, bool asks)
{
    const struct rsocket_udp header = {.asks = asks, .qpn = to->path->id->qp->qp_num};
    uint8_t bytes[RSOCKET_UDP_HEADER_MAX];
    struct iovec all[PARTS_MAX + 1];
    struct msghdr message = {
        .msg_name = (void *)(uintptr_t)&to->address,
        .msg_namelen = (socklen_t)address_length((const struct sockaddr *)&to->address),
        .msg_iov = all,
        .msg_iovlen = count + 1,
    };
    ssize_t sent;

    all[0].iov_base = bytes;
    all[0].iov_len = rsocket_udp_encode(&header, (const struct sockaddr *)&to->path->local, bytes);
    if (count)
        memcpy(&all[1], parts, count * sizeof(*parts));
    sent = syscall(SYS_sendmsg, datagram->udp, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent - (ssize_t)all[0].iov_len;
}

static size_t compose(const struct path *path, const struct iovec *parts, size_t count, uint8_t *to)
{
    size_t length = rsocket_datagram_encode((const struct sockaddr *)&path->local, to);

    for (size_t i = 0; i < count; i++) {
        if (parts[i].iov_len)
            memcpy(to + length, parts[i].iov_base, parts[i].iov_len);
        length += parts[i].iov_len;
    }
    return length;
}

static int send_by_qp(struct rsocket *rsocket, const struct destination *to, const struct iovec *parts,
                      size_t count)
{
    struct datagram *datagram = rsocket->datagram;
    struct path *path = to->path;
    uint32_t slot = datagram->free_slots[--datagram->free_count];
    uint8_t *message = datagram->send_memory + (size_t)slot * DATAGRAM_BYTES;
    struct ibv_sge piece = {(uintptr_t)message, (uint32_t)compose(path, parts, count, message),
                            path->send_mr->lkey};
    struct ibv_send_wr *bad,
        request = {
            .wr_id = WR_SEND | slot,
            .sg_list = &piece,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = piece.length <= rsocket->options.inline_bytes ? IBV_SEND_INLINE : 0,
            .wr.ud = {.ah = to->ah, .remote_qpn = to->qpn, .remote_qkey = RDMA_UDP_QKEY},
        };
    int error = ibv_post_send(path->id->qp, &request, &bad);

    if (error)
        datagram->free_slots[datagram->free_count++] = slot;
    return -error;
}

static int check_length(const struct destination *to, size_t total)
{
    bool ipv4 = rsocket_address_is_ipv4((const struct sockaddr *)&to->path->local);
    size_t by_qp =
        to->path->message_bytes - (ipv4 ? RSOCKET_DATAGRAM_HEADER_IPV4 : RSOCKET_DATAGRAM_HEADER_IPV6);
    size_t by_udp = DATAGRAM_BYTES - (ipv4 ? RSOCKET_UDP_HEADER_IPV4 : RSOCKET_UDP_HEADER_IPV6);

    return total > min_of(by_qp, by_udp) ? -EMSGSIZE : 0;
}

static int choose_peer(struct rsocket *rsocket, const struct sockaddr *to, socklen_t length,
                       struct sockaddr_storage *ret_peer)
{
    if (to)
        return rsocket_copy_address(rsocket, to, length, ret_peer);
    if (!rsocket->datagram->connected)
        return -EDESTADDRREQ;
    *ret_peer = rsocket->datagram->peer;
    return 0;
}

ssize_t datagram_send(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags,
                      const struct sockaddr *to, socklen_t length)
{
    struct rsocket_patience patience = {.nonblocking = rsocket_must_not_wait(rsocket, flags)};
    struct destination *destination;
    struct sockaddr_storage peer;
    size_t total = 0;
    int error = choose_peer(rsocket, to, length, &peer);

    if (!error)
        error = begin(rsocket, NULL);
    if (error)
        return error;
    for (size_t i = 0; i < count; i++)
        total += parts[i].iov_len;
    for (;;) {
        destination = destination_find(rsocket, &peer, &error);
        if (!destination)
            return error;
        error = check_length(destination, total);
        if (error)
            return error;
        if (!destination->ah)
            return send_by_udp(rsocket->datagram, destination, parts, count, true);
        if (rsocket->datagram->free_count)
            break;
        error = rsocket->closing ? -EBADF : rsocket_wait(rsocket, &patience);
        if (error)
            return error;
    }
    error = send_by_qp(rsocket, destination, parts, count);
    return error ? error : (ssize_t)total;
}

/* --- receiving ------------------------------------------------------------------------------------------ */

static size_t copy_to(const struct arrival *arrival, const struct iovec *parts, size_t count)
{
    size_t done = 0;

    for (size_t i = 0; i < count && done < arrival->length; i++) {
        size_t length = min_of(parts[i].iov_len, arrival->length - done);

        memcpy(parts[i].iov_base, arrival->data + done, length);
        done += length;
    }
    return done;
}

ssize_t datagram_receive(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags,
                         struct sockaddr *from, socklen_t *from_bytes, int *ret_flags)
{
    struct rsocket_patience patience = {.nonblocking = rsocket_must_not_wait(rsocket, flags)};
    struct datagram *datagram = rsocket->datagram;
    struct arrival *arrival;
    size_t length;

    while (list_empty(&datagram->arrivals)) {
        int error = rsocket->closing ? -EBADF : rsocket_wait(rsocket, &patience);

        if (error)
            return error;
    }
    arrival = list_entry(datagram->arrivals.next, struct arrival, node);
    length = copy_to(arrival, parts, count);
    if (length < arrival->length) {
        *ret_flags = MSG_TRUNC;
        if (flags & MSG_TRUNC)
            length = arrival->length;
    }
    if (from && from_bytes)
        rsocket_give_address(&arrival->from, from, from_bytes);
    if (!(flags & MSG_PEEK))
        drop_arrival(datagram, arrival);
    return (ssize_t)length;
}

/* --- what comes by UDP ---------------------------------------------------------------------------------- */

static void keep(struct rsocket *rsocket, const uint8_t *data, size_t length,
                 const struct sockaddr_storage *from)
{
    struct datagram *datagram = rsocket->datagram;
    struct arrival *arrival;

    if (datagram->udp_arrivals == UDP_ARRIVALS_MAX || !is_wanted(datagram, from))
        return;
    arrival = malloc(sizeof(*arrival) + length);
    if (!arrival)
        return;
    memcpy(arrival + 1, data, length);
    *arrival = (struct arrival){.data = (uint8_t *)(arrival + 1), .length = (uint32_t)length, .from = *from};
    list_push_back(&datagram->arrivals, &arrival->node);
    datagram->udp_arrivals++;
    datagram_wake(rsocket);
    rsocket_changed(rsocket);
}

static void take_packet(struct rsocket *rsocket, const uint8_t *packet, size_t length,
                        const struct sockaddr_storage *from)
{
    struct rsocket_udp header;
    struct destination *destination;
    int error, header_bytes = rsocket_udp_decode(packet, length, (const struct sockaddr *)from, &header);

    if (header_bytes < 0)
        return;
    destination = destination_find(rsocket, from, &error);
    if (!destination) {
        log_warn("rsocket: no route to the sender of a datagram (%s): datagram dropped", strerror(-error));
        return;
    }
    if (header.asks) {
        send_by_udp(rsocket->datagram, destination, NULL, 0, false);
        keep(rsocket, packet + header_bytes, length - (size_t)header_bytes, from);
    }
    destination_learn(rsocket, from, header.qpn);
}

void datagram_udp_ready(struct rsocket *rsocket)
{
    uint8_t packet[DATAGRAM_BYTES];
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof(from);
    long received =
        syscall(SYS_recvfrom, rsocket->datagram->udp, packet, sizeof(packet), MSG_DONTWAIT, &from, &length);

    if (received < 0)
        return; /* also ICMP errors, which are ignored */
    lock_acquire(&rsocket->lock);
    if (!rsocket->closing)
        take_packet(rsocket, packet, (size_t)received, &from);
    lock_release(&rsocket->lock);
}
