/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Address handles (verbs.md §8.1, §8.2). */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/device/device.h"
#include "object/pd/pd.h"

#define GRH_BYTES      40u
#define IPV4_OFFSET    20u
#define IPV4_BYTES     20u
#define NO_VLAN        0xffffu
#define ROCE_V1_HEADER 0x1bu /* next header value of the InfiniBand transport */

VERBS_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attributes)
{
    struct ah *ah;
    int result = injected(CALL_CREATE_AH, pd->context);

    if (result)
        return null_with(result);
    result = ah_create(pd_of(pd), attributes, &ah);

    return result < 0 ? null_with(result) : &ah->ibv;
}

VERBS_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
    return positive(ah_destroy(ah_of(ah)));
}

/* --- from a receive ------------------------------------------------------------------------------------- */

static bool ipv4_checksum_is_right(const uint8_t header[IPV4_BYTES])
{
    uint32_t sum = 0;

    for (unsigned i = 0; i < IPV4_BYTES; i += 2)
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return ((sum & 0xffff) + (sum >> 16)) == 0xffff;
}

static void map_ipv4(uint8_t gid[16], const uint8_t address[4])
{
    memset(gid, 0, 10);
    gid[10] = gid[11] = 0xff;
    memcpy(gid + 12, address, 4);
}

/* Reads the path of a received message from its GRH. 0 or -errno. */
static int parse_header(const uint8_t header[GRH_BYTES], uint8_t ret_destination[16],
                        struct ibv_global_route *route)
{
    const uint8_t *ipv4 = header + IPV4_OFFSET;

    /* An IPv4 header lies in bytes 20-39; bytes 0-19 hold what the buffer held before. */
    if (ipv4[0] == 0x45 && ipv4_checksum_is_right(ipv4)) {
        if (ipv4[9] != IPPROTO_UDP)
            return -EPROTONOSUPPORT;
        map_ipv4(route->dgid.raw, ipv4 + 12);
        map_ipv4(ret_destination, ipv4 + 16);
        route->traffic_class = ipv4[1];
        return 0;
    }
    if (header[0] >> 4 != 6 || (header[6] != IPPROTO_UDP && header[6] != ROCE_V1_HEADER))
        return -EPROTONOSUPPORT;
    memcpy(route->dgid.raw, header + 8, 16);
    memcpy(ret_destination, header + 24, 16);
    route->traffic_class = (uint8_t)(header[0] << 4 | header[1] >> 4);
    route->flow_label = (uint32_t)(header[1] & 0xf) << 16 | (uint32_t)header[2] << 8 | header[3];
    return 0;
}

VERBS_EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
                                     struct ibv_grh *grh, struct ibv_ah_attr *attributes)
{
    uint8_t header[GRH_BYTES], destination[16];
    int result;

    memset(attributes, 0, sizeof(*attributes));
    attributes->dlid = wc->slid;
    attributes->sl = wc->sl;
    attributes->src_path_bits = wc->dlid_path_bits;
    attributes->port_num = port;
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0; /* grh may be NULL and is not read */

    memcpy(header, grh, sizeof(header));
    attributes->is_global = 1;
    attributes->grh.hop_limit = 0xff;
    result = parse_header(header, destination, &attributes->grh);
    if (result == 0 && gid_is_multicast(destination))
        result = -EINVAL;
    if (result == 0) {
        result = device_find_gid(&host_devices, context_of(context)->device, destination);
        attributes->grh.sgid_index = (uint8_t)result;
    }
    return minus_one(result);
}

VERBS_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                                  uint8_t port)
{
    struct ibv_ah_attr attributes;

    if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attributes) != 0)
        return NULL;
    return ibv_create_ah(pd, &attributes);
}

/* --- layer 2 -------------------------------------------------------------------------------------------- */

static bool multicast_mac(const uint8_t gid[16], uint8_t mac[ETHERNET_LL_SIZE])
{
    if (!gid_is_multicast(gid))
        return false;
    if (gid_is_ipv4_mapped(gid))
        memcpy(mac, (uint8_t[]){0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]}, ETHERNET_LL_SIZE);
    else
        memcpy(mac, (uint8_t[]){0x33, 0x33, gid[12], gid[13], gid[14], gid[15]}, ETHERNET_LL_SIZE);
    return true;
}

static bool eui64_mac(const uint8_t gid[16], uint8_t mac[ETHERNET_LL_SIZE])
{
    if (!gid_is_link_local(gid) || gid[11] != 0xff || gid[12] != 0xfe)
        return false;
    memcpy(mac, (uint8_t[]){gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]}, ETHERNET_LL_SIZE);
    return true;
}

/* Does not query the kernel's neighbour table: derives the MAC from the address, or from the interfaces of this host.
 */
VERBS_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attributes,
                                             uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
    const uint8_t *gid = attributes->grh.dgid.raw;
    uint32_t ifindex;
    bool found;

    if (!attributes->is_global || attributes->port_num != 1) {
        errno = EINVAL;
        return -EINVAL;
    }
    found = multicast_mac(gid, mac) ||
            (device_table_is_local(&host_devices, gid, &ifindex) &&
             device_table_mac(&host_devices, ifindex, mac)) ||
            eui64_mac(gid, mac);
    if (!found) {
        errno = EHOSTUNREACH;
        return -EHOSTUNREACH;
    }
    if (vid)
        *vid = NO_VLAN;
    return 0;
}
