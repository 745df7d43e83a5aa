/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/rsockets/protocol.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#define VERSION            1
#define FLAG_BIG_ENDIAN    1u
#define FLAG_HAS_MAPPINGS  2u
#define UDP_TAG            0x55555555u
#define UDP_OPERATION_ASK  0
#define UDP_OPERATION_TELL 7

static void put16(uint8_t *to, uint16_t value)
{
    value = htobe16(value);
    memcpy(to, &value, sizeof(value));
}

static void put32(uint8_t *to, uint32_t value)
{
    value = htobe32(value);
    memcpy(to, &value, sizeof(value));
}

static void put64(uint8_t *to, uint64_t value)
{
    value = htobe64(value);
    memcpy(to, &value, sizeof(value));
}

static uint16_t get16(const uint8_t *from)
{
    uint16_t value;

    memcpy(&value, from, sizeof(value));
    return be16toh(value);
}

static uint32_t get32(const uint8_t *from)
{
    uint32_t value;

    memcpy(&value, from, sizeof(value));
    return be32toh(value);
}

static uint64_t get64(const uint8_t *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof(value));
    return be64toh(value);
}

/* --- private data --------------------------------------------------------------------------------------- */

/* Eight bits: values up to 128 as they are, larger ones in units of 256. */
static uint8_t scale(uint32_t count)
{
    return (uint8_t)(count <= 128 ? count : 128 | min_of(count >> 8, 127u));
}

static uint32_t unscale(uint8_t scaled)
{
    return scaled <= 128 ? scaled : (uint32_t)(scaled & 127) << 8;
}

uint32_t rsocket_round_mappings(uint32_t count)
{
    return unscale(scale(count));
}

static void put_window(uint8_t *to, const struct rsocket_window *window)
{
    put64(to, window->address);
    put32(to + 8, window->key);
    put32(to + 12, window->length);
}

static void get_window(const uint8_t *from, struct rsocket_window *ret_window)
{
    *ret_window = (struct rsocket_window){get64(from), get32(from + 8), get32(from + 12)};
}

void rsocket_offer_encode(const struct rsocket_offer *offer, uint8_t ret_bytes[RSOCKET_OFFER_BYTES])
{
    memset(ret_bytes, 0, RSOCKET_OFFER_BYTES);
    ret_bytes[0] = VERSION;
    ret_bytes[1] = FLAG_HAS_MAPPINGS | (offer->big_endian ? FLAG_BIG_ENDIAN : 0);
    put16(ret_bytes + 2, offer->credits);
    ret_bytes[7] = scale(offer->mappings);
    put_window(ret_bytes + 8, &offer->table);
    put_window(ret_bytes + 24, &offer->first);
}

int rsocket_offer_decode(const void *bytes, size_t length, struct rsocket_offer *ret_offer)
{
    const uint8_t *from = bytes;
    struct rsocket_offer offer;

    if (length < RSOCKET_OFFER_BYTES)
        return -EPROTO;
    if (from[0] != VERSION)
        return -EPROTONOSUPPORT;
    offer.big_endian = from[1] & FLAG_BIG_ENDIAN;
    offer.credits = get16(from + 2);
    offer.mappings = from[1] & FLAG_HAS_MAPPINGS ? unscale(from[7]) : 0;
    get_window(from + 8, &offer.table);
    get_window(from + 24, &offer.first);
    if (!offer.table.length)
        return -EPROTO;
    *ret_offer = offer;
    return 0;
}

/* --- tables --------------------------------------------------------------------------------------------- */

static void swap_window(struct rsocket_window *window)
{
    window->address = __builtin_bswap64(window->address);
    window->key = __builtin_bswap32(window->key);
    window->length = __builtin_bswap32(window->length);
}

_Static_assert(sizeof(struct rsocket_window) == RSOCKET_WINDOW_BYTES, "an entry is the struct");
_Static_assert(sizeof(struct rsocket_mapping) == RSOCKET_MAPPING_BYTES, "an entry is the struct");

void rsocket_window_encode(const struct rsocket_window *window, bool swap,
                           uint8_t ret_bytes[RSOCKET_WINDOW_BYTES])
{
    struct rsocket_window entry = *window;

    if (swap)
        swap_window(&entry);
    memcpy(ret_bytes, &entry, sizeof(entry));
}

/* The last eight bytes, which include the length, arrive last and together (partner: transport/ordered_copy.h). */
void rsocket_window_load(const void *entry, struct rsocket_window *ret_window)
{
    const uint64_t *words = entry;
    uint64_t last = __atomic_load_n(words + 1, __ATOMIC_ACQUIRE);

    ret_window->address = __atomic_load_n(words, __ATOMIC_RELAXED);
    memcpy(&ret_window->key, &last, sizeof(last));
}

void rsocket_mapping_encode(const struct rsocket_mapping *mapping, bool swap,
                            uint8_t ret_bytes[RSOCKET_MAPPING_BYTES])
{
    struct rsocket_mapping entry = *mapping;

    if (swap) {
        entry.offset = __builtin_bswap64(entry.offset);
        swap_window(&entry.window);
    }
    memcpy(ret_bytes, &entry, sizeof(entry));
}

void rsocket_mapping_load(const void *entry, struct rsocket_mapping *ret_mapping)
{
    const uint64_t *words = entry;

    rsocket_window_load(words + 1, &ret_mapping->window);
    ret_mapping->offset = __atomic_load_n(words, __ATOMIC_RELAXED);
}

/* --- datagrams ------------------------------------------------------------------------------------------ */

static const struct sockaddr_in *as_ipv4(const struct sockaddr *address)
{
    return (const struct sockaddr_in *)(const void *)address;
}

static const struct sockaddr_in6 *as_ipv6(const struct sockaddr *address)
{
    return (const struct sockaddr_in6 *)(const void *)address;
}

bool rsocket_address_is_ipv4(const struct sockaddr *address)
{
    return address->sa_family == AF_INET ||
           (address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&as_ipv6(address)->sin6_addr));
}

void rsocket_address_map(struct sockaddr_storage *address, int domain)
{
    const struct sockaddr_in ipv4 = *as_ipv4((const struct sockaddr *)address);
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = ipv4.sin_port};

    if (domain != AF_INET6 || address->ss_family != AF_INET)
        return;
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&mapped.sin6_addr.s6_addr[12], &ipv4.sin_addr, 4);
    memcpy(address, &mapped, sizeof(mapped));
}

/* The four bytes of an address that is, or maps, an IPv4 address. */
static const void *ipv4_bytes(const struct sockaddr *address)
{
    return address->sa_family == AF_INET ? (const void *)&as_ipv4(address)->sin_addr
                                         : &as_ipv6(address)->sin6_addr.s6_addr[12];
}

/* Both families have the port at the same offset. */
_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port), "");

size_t rsocket_datagram_encode(const struct sockaddr *from, uint8_t ret_bytes[RSOCKET_DATAGRAM_HEADER_MAX])
{
    if (from->sa_family != AF_INET && from->sa_family != AF_INET6)
        return 0;
    memcpy(ret_bytes + 2, &as_ipv4(from)->sin_port, 2);
    if (rsocket_address_is_ipv4(from)) {
        ret_bytes[0] = 4;
        ret_bytes[1] = RSOCKET_DATAGRAM_HEADER_IPV4;
        memcpy(ret_bytes + 4, ipv4_bytes(from), 4);
        return RSOCKET_DATAGRAM_HEADER_IPV4;
    }
    ret_bytes[0] = 6;
    ret_bytes[1] = RSOCKET_DATAGRAM_HEADER_IPV6;
    memcpy(ret_bytes + 4, &as_ipv6(from)->sin6_flowinfo, 4);
    memcpy(ret_bytes + 8, &as_ipv6(from)->sin6_addr, 16);
    return RSOCKET_DATAGRAM_HEADER_IPV6;
}

int rsocket_datagram_decode(const void *bytes, size_t length, struct sockaddr_storage *ret_from)
{
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)ret_from;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)ret_from;
    const uint8_t *from = bytes;

    if (length >= RSOCKET_DATAGRAM_HEADER_IPV4 && from[0] == 4 && from[1] == RSOCKET_DATAGRAM_HEADER_IPV4) {
        memset(ipv4, 0, sizeof(*ipv4));
        ipv4->sin_family = AF_INET;
        memcpy(&ipv4->sin_port, from + 2, 2);
        memcpy(&ipv4->sin_addr, from + 4, 4);
        return RSOCKET_DATAGRAM_HEADER_IPV4;
    }
    if (length >= RSOCKET_DATAGRAM_HEADER_IPV6 && from[0] == 6 && from[1] == RSOCKET_DATAGRAM_HEADER_IPV6) {
        memset(ipv6, 0, sizeof(*ipv6));
        ipv6->sin6_family = AF_INET6;
        memcpy(&ipv6->sin6_port, from + 2, 2);
        memcpy(&ipv6->sin6_flowinfo, from + 4, 4);
        memcpy(&ipv6->sin6_addr, from + 8, 16);
        return RSOCKET_DATAGRAM_HEADER_IPV6;
    }
    return -EPROTO;
}

static size_t udp_length(const struct sockaddr *address)
{
    return rsocket_address_is_ipv4(address) ? RSOCKET_UDP_HEADER_IPV4 : RSOCKET_UDP_HEADER_IPV6;
}

size_t rsocket_udp_encode(const struct rsocket_udp *header, const struct sockaddr *from,
                          uint8_t ret_bytes[RSOCKET_UDP_HEADER_MAX])
{
    bool is_ipv4 = rsocket_address_is_ipv4(from);

    if (from->sa_family != AF_INET && from->sa_family != AF_INET6)
        return 0;
    put32(ret_bytes, UDP_TAG);
    ret_bytes[4] = is_ipv4 ? 4 : 6;
    ret_bytes[5] = header->asks ? UDP_OPERATION_ASK : UDP_OPERATION_TELL;
    ret_bytes[6] = (uint8_t)udp_length(from);
    ret_bytes[7] = 0;
    put32(ret_bytes + 8, header->qpn & 0xffffff);
    memcpy(ret_bytes + 12, is_ipv4 ? ipv4_bytes(from) : &as_ipv6(from)->sin6_addr, is_ipv4 ? 4 : 16);
    return udp_length(from);
}

int rsocket_udp_decode(const void *bytes, size_t length, const struct sockaddr *source,
                       struct rsocket_udp *ret_header)
{
    const uint8_t *from = bytes;

    if (length < udp_length(source) || get32(from) != UDP_TAG ||
        from[4] != (rsocket_address_is_ipv4(source) ? 4 : 6) || from[6] != udp_length(source) ||
        (from[5] != UDP_OPERATION_ASK && from[5] != UDP_OPERATION_TELL))
        return -EPROTO;
    ret_header->asks = from[5] == UDP_OPERATION_ASK;
    ret_header->qpn = get32(from + 8) & 0xffffff;
    return (int)udp_length(source);
}
