/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"
#include "front/rsockets/datagram.h"

#define RESOLVE_MS 2000

/* --- paths ---------------------------------------------------------------------------------------------- */

static int open_id(struct path *path)
{
    struct sockaddr_storage local = path->local;
    struct sockaddr *address = (struct sockaddr *)&local;

    /* The port is the UDP socket's; the CM's port space needs none. */
    address_set_port(address, 0);
    if (rdma_create_id(NULL, &path->id, NULL, RDMA_PS_UDP) || rdma_bind_addr(path->id, address))
        return -errno;
    return bind_to_device(id_of(path->id), address); /* also for a loopback address */
}

static int measure(struct path *path)
{
    struct ibv_port_attr port;
    int error = ibv_query_port(path->id->verbs, path->id->port_num, &port);

    path->message_bytes = min_of(128u << port.active_mtu, DATAGRAM_BYTES);
    return -error;
}

static int open_memory(struct path *path, const struct datagram *datagram)
{
    size_t bytes = GRH_BYTES + (size_t)datagram->receive_requests * DATAGRAM_BYTES;
    int error;

    path->arrivals = calloc(datagram->receive_requests, sizeof(*path->arrivals));
    if (!path->arrivals)
        return -ENOMEM;
    path->memory = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (!path->memory)
        return error;
    path->memory_bytes = bytes;
    path->receive_mr = ibv_reg_mr(path->id->pd, path->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (path->receive_mr)
        path->send_mr = ibv_reg_mr(path->id->pd, datagram->send_memory, datagram->send_bytes, 0);
    return path->send_mr ? 0 : -errno;
}

static int open_qp(struct rsocket *rsocket, struct path *path)
{
    const struct datagram *datagram = rsocket->datagram;
    struct ibv_context *verbs = path->id->verbs;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = path};
    int error;

    path->channel = ibv_create_comp_channel(verbs);
    if (!path->channel)
        return -errno;
    path->cq = ibv_create_cq(verbs, (int)(datagram->send_requests + datagram->receive_requests), path,
                             path->channel, 0);
    if (!path->cq)
        return -errno;
    error = sys_epoll_ctl(datagram->epoll_fd, EPOLL_CTL_ADD, path->channel->fd, &event);
    if (error)
        return error;
    return rdma_create_qp(path->id, NULL,
                          &(struct ibv_qp_init_attr){
                              .qp_context = path,
                              .send_cq = path->cq,
                              .recv_cq = path->cq,
                              .qp_type = IBV_QPT_UD,
                              .cap = {.max_send_wr = datagram->send_requests,
                                      .max_recv_wr = datagram->receive_requests,
                                      .max_send_sge = 1,
                                      .max_recv_sge = 2,
                                      .max_inline_data = rsocket->options.inline_bytes},
                              .sq_sig_all = 1,
                          })
               ? -errno
               : 0;
}

int path_repost(struct path *path, struct arrival *arrival)
{
    struct ibv_sge pieces[2] = {
        {(uintptr_t)path->memory, GRH_BYTES, path->receive_mr->lkey},
        {(uintptr_t)path->memory + GRH_BYTES + (size_t)(arrival - path->arrivals) * DATAGRAM_BYTES,
         DATAGRAM_BYTES, path->receive_mr->lkey},
    };
    struct ibv_recv_wr *bad, request = {.wr_id = (uintptr_t)arrival, .sg_list = pieces, .num_sge = 2};

    arrival->path = path;
    arrival->data = (const uint8_t *)(uintptr_t)pieces[1].addr;
    return -ibv_post_recv(path->id->qp, &request, &bad);
}

static int open_path(struct rsocket *rsocket, struct path *path)
{
    int error = open_id(path);

    if (!error)
        error = measure(path);
    if (!error)
        error = open_qp(rsocket, path);
    if (!error)
        error = open_memory(path, rsocket->datagram);
    for (uint32_t i = 0; !error && i < rsocket->datagram->receive_requests; i++) {
        list_init(&path->arrivals[i].node);
        error = path_repost(path, &path->arrivals[i]);
    }
    return error;
}

void path_close(struct rsocket *rsocket, struct path *path)
{
    list_remove(&path->node);
    if (path->id)
        rdma_destroy_qp(path->id);
    if (path->channel)
        sys_epoll_ctl(rsocket->datagram->epoll_fd, EPOLL_CTL_DEL, path->channel->fd, NULL);
    if (path->cq)
        ibv_destroy_cq(path->cq);
    if (path->channel)
        ibv_destroy_comp_channel(path->channel);
    if (path->send_mr)
        ibv_dereg_mr(path->send_mr);
    if (path->receive_mr)
        ibv_dereg_mr(path->receive_mr);
    if (path->memory)
        sys_munmap(path->memory, path->memory_bytes);
    if (path->id)
        rdma_destroy_id(path->id);
    free(path->arrivals);
    free(path);
}

int path_find(struct rsocket *rsocket, const struct sockaddr_storage *local, struct path **ret_path)
{
    struct path *path;
    int error;

    list_for_each (node, &rsocket->datagram->paths) {
        path = list_entry(node, struct path, node);
        if (addresses_equal((struct sockaddr *)&path->local, (const struct sockaddr *)local)) {
            *ret_path = path;
            return 0;
        }
    }
    path = calloc(1, sizeof(*path));
    if (!path)
        return -ENOMEM;
    list_init(&path->node);
    path->local = *local;
    error = open_path(rsocket, path);
    if (error) {
        path_close(rsocket, path);
        return error;
    }
    list_push_back(&rsocket->datagram->paths, &path->node);
    *ret_path = path;
    return 0;
}

/* --- destinations --------------------------------------------------------------------------------------- */

static struct list *bucket_of(struct datagram *datagram, const struct sockaddr_storage *address)
{
    union ibv_gid gid = address_gid((const struct sockaddr *)address);
    uint32_t hash = address_port((const struct sockaddr *)address);

    for (unsigned i = 0; i < sizeof(gid.raw); i++)
        hash = hash * 31 + gid.raw[i];
    return &datagram->buckets[hash % DESTINATION_BUCKETS];
}

static bool same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return addresses_equal((const struct sockaddr *)a, (const struct sockaddr *)b) &&
           address_port((const struct sockaddr *)a) == address_port((const struct sockaddr *)b);
}

static struct destination *look_up(struct datagram *datagram, const struct sockaddr_storage *address)
{
    struct list *bucket = bucket_of(datagram, address);

    list_for_each (node, bucket) {
        struct destination *destination = list_entry(node, struct destination, node);

        if (same(&destination->address, address))
            return destination;
    }
    return NULL;
}

static void forget(struct datagram *datagram, struct destination *destination)
{
    list_remove(&destination->node);
    list_remove(&destination->recent);
    datagram->destination_count--;
    if (destination->ah)
        ibv_destroy_ah(destination->ah);
    free(destination);
}

void destinations_close(struct rsocket *rsocket)
{
    struct datagram *datagram = rsocket->datagram;

    while (!list_empty(&datagram->recent))
        forget(datagram, list_entry(datagram->recent.next, struct destination, recent));
}

/* Source address of datagrams to an address: the UDP socket's, or from the kernel's routes. */
static int local_of(const struct datagram *datagram, const struct sockaddr_storage *to,
                    struct sockaddr_storage *ret_local)
{
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    int error;

    if (syscall(SYS_getsockname, datagram->udp, &bound, &length) < 0)
        return -errno;
    if (!address_is_any((struct sockaddr *)&bound)) {
        *ret_local = bound;
        return 0;
    }
    error = address_source((const struct sockaddr *)to, NULL, ret_local);
    if (!error)
        address_set_port((struct sockaddr *)ret_local, address_port((struct sockaddr *)&bound));
    return error;
}

struct destination *destination_find(struct rsocket *rsocket, const struct sockaddr_storage *address,
                                     int *ret_error)
{
    struct datagram *datagram = rsocket->datagram;
    struct destination *destination = look_up(datagram, address);
    struct sockaddr_storage local;

    if (destination) {
        list_remove(&destination->recent);
        list_push_back(&datagram->recent, &destination->recent);
        return destination;
    }
    if (datagram->destination_count == DESTINATIONS_MAX)
        forget(datagram, list_entry(datagram->recent.next, struct destination, recent));
    destination = calloc(1, sizeof(*destination));
    if (!destination) {
        *ret_error = -ENOMEM;
        return NULL;
    }
    *ret_error = local_of(datagram, address, &local);
    if (!*ret_error)
        *ret_error = path_find(rsocket, &local, &destination->path);
    if (*ret_error) {
        free(destination);
        return NULL;
    }
    destination->address = *address;
    list_push_back(bucket_of(datagram, address), &destination->node);
    list_push_back(&datagram->recent, &destination->recent);
    datagram->destination_count++;
    return destination;
}

/* --- what a destination's answer says ------------------------------------------------------------------- */

static int index_of(struct rdma_cm_id *id, const union ibv_gid *gid)
{
    union ibv_gid other;

    for (int i = 0; ibv_query_gid(id->verbs, id->port_num, i, &other) == 0; i++)
        if (memcmp(&other, gid, sizeof(other)) == 0)
            return i;
    return 0;
}

/* Resolves a path through the CM, as for a connection. */
static int find_way(const struct sockaddr_storage *local, const struct sockaddr_storage *to,
                    struct ibv_ah_attr *ret_attributes)
{
    struct sockaddr_storage from = *local, destination = *to;
    struct rdma_cm_id *id;
    struct ibv_sa_path_rec *path;
    int error = 0;

    address_set_port((struct sockaddr *)&from, 0);
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP))
        return -errno;
    if (rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&destination, RESOLVE_MS) ||
        rdma_resolve_route(id, RESOLVE_MS) || !id->route.num_paths) {
        error = errno ? -errno : -EHOSTUNREACH;
    } else {
        path = id->route.path_rec;
        *ret_attributes = (struct ibv_ah_attr){
            .grh = {.dgid = path->dgid,
                    .flow_label = be32toh(path->flow_label),
                    .sgid_index = (uint8_t)index_of(id, &path->sgid),
                    .hop_limit = path->hop_limit,
                    .traffic_class = path->traffic_class},
            .dlid = be16toh(path->dlid),
            .sl = path->sl,
            .static_rate = path->rate,
            .is_global = 1,
            .port_num = id->port_num,
        };
    }
    rdma_destroy_id(id);
    return error;
}

void destination_learn(struct rsocket *rsocket, const struct sockaddr_storage *address, uint32_t qpn)
{
    struct destination *destination = look_up(rsocket->datagram, address);
    struct ibv_ah_attr attributes;
    struct sockaddr_storage local;
    int error;

    if (!destination || (destination->ah && destination->qpn == qpn))
        return;
    local = destination->path->local;
    lock_release(&rsocket->lock);
    error = find_way(&local, address, &attributes);
    lock_acquire(&rsocket->lock);
    /* The destination may have been removed while the lock was dropped. */
    destination = look_up(rsocket->datagram, address);
    if (error || !destination)
        return;
    if (!destination->ah)
        destination->ah = ibv_create_ah(destination->path->id->pd, &attributes);
    destination->qpn = qpn;
}
