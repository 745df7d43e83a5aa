/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Options of rsockets (verbs.md §11.12, rsocket(7)). Options without a meaning here are stored, so that getsockopt()
 * returns the value that was set. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>

#include "front/rsockets/rsocket.h"

#define TCP_KEEPALIVE_TIME "/proc/sys/net/ipv4/tcp_keepalive_time"
#define CONGESTION         "rsocket"
#define MAXSEG_UNKNOWN     2048
#define ROUTE_BYTES_MAX    (64 * sizeof(struct ibv_path_data))

/* --- values --------------------------------------------------------------------------------------------- */

static int get_int(const void *value, socklen_t length, int *ret_value)
{
    if (!value)
        return -EFAULT;
    if (length < sizeof(*ret_value))
        return -EINVAL;
    memcpy(ret_value, value, sizeof(*ret_value));
    return 0;
}

static int get_flag(const void *value, socklen_t length, bool *ret_flag)
{
    int number, error = get_int(value, length, &number);

    if (!error)
        *ret_flag = number != 0;
    return error;
}

static int give(const void *from, size_t bytes, void *to, socklen_t *length)
{
    if (!to || !length)
        return -EFAULT;
    if (*length < bytes)
        return -EINVAL;
    memcpy(to, from, bytes);
    *length = (socklen_t)bytes;
    return 0;
}

static int give_int(int value, void *to, socklen_t *length)
{
    return give(&value, sizeof(value), to, length);
}

/* --- setting -------------------------------------------------------------------------------------------- */

static bool has_buffers(const struct rsocket *rsocket)
{
    return rsocket->endpoint.memory || (!rsocket_is_stream(rsocket) && rsocket->phase != PHASE_NEW);
}

/* Doubles the value, as Linux does. An existing connection keeps its buffers. */
static int set_buffer(struct rsocket *rsocket, const void *value, socklen_t length, uint32_t *ret_bytes)
{
    int asked, error = get_int(value, length, &asked);
    uint32_t bytes;

    if (error || has_buffers(rsocket))
        return error;
    bytes = min_of((uint32_t)max_of(asked, 0), RSOCKET_BUFFER_MAX / 2) * 2;
    *ret_bytes = max_of(bytes, 2 * STREAM_LOW_WATER);
    return 0;
}

static int set_linger(struct rsocket *rsocket, const void *value, socklen_t length)
{
    if (!value)
        return -EFAULT;
    if (length < sizeof(rsocket->options.linger))
        return -EINVAL;
    memcpy(&rsocket->options.linger, value, sizeof(rsocket->options.linger));
    return 0;
}

static int restart_keepalive(struct rsocket *rsocket)
{
    struct rsocket_options *options = &rsocket->options;

    if (!options->keepalive_idle)
        options->keepalive_idle = max_of(rsocket_number_in(TCP_KEEPALIVE_TIME, 7200), 1u);
    if (rsocket->phase == PHASE_LISTENING)
        return 0; /* applies to the connections that a listener accepts */
    return service_keepalive(rsocket, options->keepalive ? options->keepalive_idle : 0);
}

static int set_keepalive(struct rsocket *rsocket, const void *value, socklen_t length)
{
    bool was = rsocket->options.keepalive;
    int error = get_flag(value, length, &rsocket->options.keepalive);

    return error || was == rsocket->options.keepalive ? error : restart_keepalive(rsocket);
}

static int set_positive(uint32_t *ret_number, const void *value, socklen_t length)
{
    int number, error = get_int(value, length, &number);

    if (error)
        return error;
    if (number <= 0 || number > 32767) /* limits of tcp(7) */
        return -EINVAL;
    *ret_number = (uint32_t)number;
    return 0;
}

static int set_id_option(struct rsocket *rsocket, int option, int value)
{
    uint8_t byte = (uint8_t)value;
    bool small = option == RDMA_OPTION_ID_TOS;

    return rdma_set_option(rsocket->id, RDMA_OPTION_ID, option, small ? (void *)&byte : (void *)&value,
                           small ? sizeof(byte) : sizeof(value))
               ? -errno
               : 0;
}

static int set_reuse_address(struct rsocket *rsocket, const void *value, socklen_t length)
{
    int error = get_flag(value, length, &rsocket->options.reuse_address);

    if (error)
        return error;
    /* Without effect after the connection is made; no error, because programs do not expect one. */
    return rsocket->phase == PHASE_NEW
               ? set_id_option(rsocket, RDMA_OPTION_ID_REUSEADDR, rsocket->options.reuse_address)
               : 0;
}

static int set_one_family(struct rsocket *rsocket, const void *value, socklen_t length)
{
    int error = get_flag(value, length, &rsocket->options.one_family);

    if (error)
        return error;
    rsocket->options.one_family_set = true;
    return set_id_option(rsocket, RDMA_OPTION_ID_AFONLY, rsocket->options.one_family);
}

static int set_tos(struct rsocket *rsocket, const void *value, socklen_t length)
{
    int tos, error = get_int(value, length, &tos);

    if (error)
        return error;
    rsocket->options.tos = (uint8_t)tos;
    return set_id_option(rsocket, RDMA_OPTION_ID_TOS, tos);
}

int options_apply(struct rsocket *rsocket)
{
    const struct rsocket_options *options = &rsocket->options;
    int error = 0;

    if (options->reuse_address)
        error = set_id_option(rsocket, RDMA_OPTION_ID_REUSEADDR, 1);
    if (!error && options->one_family_set)
        error = set_id_option(rsocket, RDMA_OPTION_ID_AFONLY, options->one_family);
    if (!error && options->tos)
        error = set_id_option(rsocket, RDMA_OPTION_ID_TOS, options->tos);
    return error;
}

static int set_socket_level(struct rsocket *rsocket, int option, const void *value, socklen_t length)
{
    struct rsocket_options *options = &rsocket->options;

    switch (option) {
    case SO_REUSEADDR:
        return set_reuse_address(rsocket, value, length);
    case SO_RCVBUF:
        return set_buffer(rsocket, value, length, &options->receive_bytes);
    case SO_SNDBUF:
        return set_buffer(rsocket, value, length, &options->send_bytes);
    case SO_LINGER:
        return set_linger(rsocket, value, length);
    case SO_KEEPALIVE:
        return set_keepalive(rsocket, value, length);
    case SO_OOBINLINE:
        return get_flag(value, length, &options->out_of_band_inline);
    default:
        return -ENOTSUP;
    }
}

static int set_tcp_level(struct rsocket *rsocket, int option, const void *value, socklen_t length)
{
    struct rsocket_options *options = &rsocket->options;
    int ignored, error;

    switch (option) {
    case TCP_KEEPIDLE:
        error = set_positive(&options->keepalive_idle, value, length);
        return error || !options->keepalive ? error : restart_keepalive(rsocket);
    case TCP_KEEPINTVL:
        return set_positive(&options->keepalive_interval, value, length);
    case TCP_KEEPCNT:
        return set_positive(&options->keepalive_count, value, length);
    case TCP_NODELAY:
        return get_flag(value, length, &options->no_delay);
    case TCP_MAXSEG:
        return get_int(value, length, &ignored);
    case TCP_CONGESTION:
        return value ? 0 : -EFAULT;
    default:
        return -ENOTSUP;
    }
}

static int set_route(struct rsocket *rsocket, const void *value, socklen_t length)
{
    void *copy;

    if (!value)
        return -EFAULT;
    if (!length || length > ROUTE_BYTES_MAX)
        return -EINVAL;
    copy = malloc(length);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, value, length);
    free(rsocket->options.route);
    rsocket->options.route = copy;
    rsocket->options.route_bytes = length;
    return 0;
}

static int set_rdma_level(struct rsocket *rsocket, int option, const void *value, socklen_t length)
{
    struct rsocket_options *options = &rsocket->options;
    int number, error;

    if (rsocket->phase >= PHASE_CONNECTING)
        return -EINVAL;
    if (option == RDMA_ROUTE)
        return set_route(rsocket, value, length);
    if (option < RDMA_SQSIZE || option > RDMA_IOMAPSIZE)
        return -ENOTSUP;
    error = get_int(value, length, &number);
    if (error)
        return error;
    if (number < 0)
        return -EINVAL;
    if (option == RDMA_SQSIZE)
        options->send_requests = min_of((uint32_t)number, RSOCKET_REQUESTS_MAX);
    else if (option == RDMA_RQSIZE)
        options->receive_requests = min_of((uint32_t)number, RSOCKET_REQUESTS_MAX);
    else if (option == RDMA_INLINE)
        options->inline_bytes = min_of((uint32_t)number, endpoint_inline_limit());
    else
        options->mappings = rsocket_round_mappings((uint32_t)number);
    return 0;
}

static int set_option(struct rsocket *rsocket, int level, int option, const void *value, socklen_t length)
{
    if (level == SOL_RDMA)
        return set_rdma_level(rsocket, option, value, length);
    if (!rsocket_is_stream(rsocket)) {
        if (level == SOL_SOCKET && option == SO_RCVBUF)
            return set_buffer(rsocket, value, length, &rsocket->options.receive_bytes);
        if (level == SOL_SOCKET && option == SO_SNDBUF)
            return set_buffer(rsocket, value, length, &rsocket->options.send_bytes);
        return datagram_set_option(rsocket, level, option, value, length);
    }
    if (level == SOL_SOCKET)
        return set_socket_level(rsocket, option, value, length);
    if (level == IPPROTO_TCP)
        return set_tcp_level(rsocket, option, value, length);
    if (level == IPPROTO_IPV6 && option == IPV6_V6ONLY)
        return set_one_family(rsocket, value, length);
    if (level == IPPROTO_IP && option == IP_TOS)
        return set_tos(rsocket, value, length);
    return -ENOTSUP;
}

RDMACM_EXPORT int rsetsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = set_option(rsocket, level, option, value, length);
    rsocket_leave(rsocket);
    return conclude(error);
}

/* --- getting -------------------------------------------------------------------------------------------- */

static int get_socket_level(struct rsocket *rsocket, int option, void *value, socklen_t *length)
{
    const struct rsocket_options *options = &rsocket->options;
    int error;

    switch (option) {
    case SO_REUSEADDR:
        return give_int(options->reuse_address, value, length);
    case SO_KEEPALIVE:
        return give_int(options->keepalive, value, length);
    case SO_OOBINLINE:
        return give_int(options->out_of_band_inline, value, length);
    case SO_RCVBUF:
        return give_int((int)options->receive_bytes, value, length);
    case SO_SNDBUF:
        return give_int((int)options->send_bytes, value, length);
    case SO_LINGER:
        return give(&options->linger, sizeof(options->linger), value, length);
    case SO_TYPE:
        return give_int(rsocket->type, value, length);
    case SO_DOMAIN:
        return give_int(rsocket->domain, value, length);
    case SO_ACCEPTCONN:
        return give_int(rsocket->phase == PHASE_LISTENING, value, length);
    case SO_ERROR:
        error = give_int(rsocket->error, value, length);
        if (!error)
            rsocket->error = 0;
        return error;
    default:
        return -ENOTSUP;
    }
}

static int maxseg(const struct rsocket *rsocket)
{
    const struct rdma_route *route = rsocket->id ? &rsocket->id->route : NULL;

    return route && route->num_paths ? 1 << (7 + route->path_rec->mtu) : MAXSEG_UNKNOWN;
}

static int get_info(const struct rsocket *rsocket, void *value, socklen_t *length)
{
    struct tcp_info info = {
        .tcpi_state = rsocket->phase == PHASE_LISTENING                                ? TCP_LISTEN
                      : rsocket->phase == PHASE_CONNECTED && rsocket->stream.connected ? TCP_ESTABLISHED
                                                                                       : TCP_CLOSE,
        .tcpi_snd_mss = (uint32_t)maxseg(rsocket),
        .tcpi_rcv_mss = (uint32_t)maxseg(rsocket),
        .tcpi_snd_cwnd = rsocket->options.send_requests,
    };

    if (!value || !length)
        return -EFAULT;
    *length = min_of(*length, (socklen_t)sizeof(info)); /* struct tcp_info has grown over the years */
    memcpy(value, &info, *length);
    return 0;
}

static int get_tcp_level(struct rsocket *rsocket, int option, void *value, socklen_t *length)
{
    const struct rsocket_options *options = &rsocket->options;

    switch (option) {
    case TCP_KEEPIDLE:
        return give_int((int)(options->keepalive_idle ? options->keepalive_idle
                                                      : rsocket_number_in(TCP_KEEPALIVE_TIME, 7200)),
                        value, length);
    case TCP_KEEPINTVL:
        return give_int((int)options->keepalive_interval, value, length);
    case TCP_KEEPCNT:
        return give_int((int)options->keepalive_count, value, length);
    case TCP_NODELAY:
        return give_int(options->no_delay, value, length);
    case TCP_MAXSEG:
        return give_int(maxseg(rsocket), value, length);
    case TCP_CONGESTION:
        return give(CONGESTION, sizeof(CONGESTION), value, length);
    case TCP_INFO:
        return get_info(rsocket, value, length);
    default:
        return -ENOTSUP;
    }
}

/* The resolved path, in the format of RDMA_ROUTE. */
static void describe_path(const struct ibv_sa_path_rec *from, struct ibv_path_data *ret_path)
{
    struct ibv_path_record *path = &ret_path->path;

    memset(ret_path, 0, sizeof(*ret_path));
    path->dgid = from->dgid;
    path->sgid = from->sgid;
    path->dlid = from->dlid;
    path->slid = from->slid;
    path->flowlabel_hoplimit = htobe32(be32toh(from->flow_label) << 8 | from->hop_limit);
    path->tclass = from->traffic_class;
    path->reversible_numpath = (uint8_t)(from->reversible << 7 | 1);
    path->pkey = from->pkey;
    path->qosclass_sl = htobe16(from->sl);
    path->mtu = from->mtu | 2 << 6; /* selector: exactly */
    path->rate = from->rate | 2 << 6;
    path->packetlifetime = from->packet_life_time | 2 << 6;
    ret_path->flags = from->preference;
}

static int get_route(const struct rsocket *rsocket, void *value, socklen_t *length)
{
    const struct rsocket_options *options = &rsocket->options;
    const struct rdma_route *route = rsocket->id ? &rsocket->id->route : NULL;
    struct ibv_path_data path;
    socklen_t room, given = 0;

    if (!value || !length)
        return -EFAULT;
    if (options->route)
        return give(options->route, options->route_bytes, value, length);
    room = *length;
    if (room < sizeof(path))
        return -EINVAL;
    for (int i = 0; route && i < route->num_paths && given + sizeof(path) <= room; i++) {
        describe_path(&route->path_rec[i], &path);
        memcpy((char *)value + given, &path, sizeof(path));
        given += (socklen_t)sizeof(path);
    }
    *length = given;
    return 0;
}

static int get_rdma_level(const struct rsocket *rsocket, int option, void *value, socklen_t *length)
{
    const struct rsocket_options *options = &rsocket->options;

    switch (option) {
    case RDMA_SQSIZE:
        return give_int((int)options->send_requests, value, length);
    case RDMA_RQSIZE:
        return give_int((int)options->receive_requests, value, length);
    case RDMA_INLINE:
        return give_int((int)options->inline_bytes, value, length);
    case RDMA_IOMAPSIZE:
        return give_int((int)options->mappings, value, length);
    case RDMA_ROUTE:
        return get_route(rsocket, value, length);
    default:
        return -ENOTSUP;
    }
}

static int get_option(struct rsocket *rsocket, int level, int option, void *value, socklen_t *length)
{
    const struct rsocket_options *options = &rsocket->options;

    if (level == SOL_RDMA)
        return get_rdma_level(rsocket, option, value, length);
    if (!rsocket_is_stream(rsocket)) {
        if (level == SOL_SOCKET && option == SO_RCVBUF)
            return give_int((int)options->receive_bytes, value, length);
        if (level == SOL_SOCKET && option == SO_SNDBUF)
            return give_int((int)options->send_bytes, value, length);
        return datagram_get_option(rsocket, level, option, value, length);
    }
    if (level == SOL_SOCKET)
        return get_socket_level(rsocket, option, value, length);
    if (level == IPPROTO_TCP)
        return get_tcp_level(rsocket, option, value, length);
    if (level == IPPROTO_IPV6 && option == IPV6_V6ONLY)
        return give_int(options->one_family, value, length);
    if (level == IPPROTO_IP && option == IP_TOS)
        return give_int(options->tos, value, length);
    return -ENOTSUP;
}

RDMACM_EXPORT int rgetsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = get_option(rsocket, level, option, value, length);
    rsocket_leave(rsocket);
    return conclude(error);
}

/* --- rfcntl() ------------------------------------------------------------------------------------------- */

static int control(struct rsocket *rsocket, int command, int argument)
{
    switch (command) {
    case F_GETFL:
        return rsocket->status_flags;
    case F_SETFL:
        rsocket->status_flags = (argument & ~O_ACCMODE) | O_RDWR;
        rsocket->nonblocking = argument & O_NONBLOCK;
        return 0;
    case F_GETFD:
        return rsocket->descriptor_flags;
    case F_SETFD:
        rsocket->descriptor_flags = argument & FD_CLOEXEC;
        return 0;
    default:
        return -ENOTSUP;
    }
}

RDMACM_EXPORT int rfcntl(int fd, int command, ...)
{
    struct rsocket *rsocket;
    int argument = 0, result = rsocket_enter(fd, &rsocket);
    va_list arguments;

    if (result)
        return conclude(result);
    if (command == F_SETFL || command == F_SETFD) {
        va_start(arguments, command);
        argument = va_arg(arguments, int);
        va_end(arguments);
    }
    result = control(rsocket, command, argument);
    rsocket_leave(rsocket);
    return (int)rsocket_conclude(result);
}
