/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What rsockets read of a peer (front/rsockets/protocol.c): offers in private data, entries of tables that the peer
 * writes, headers of datagrams. Decoding reads nothing behind the bytes (a sanitizer sees that), gives values in their
 * range, and changes nothing when it fails; encoding what was decoded gives the same bytes, but for reserved ones.
 *
 * Input: one byte selects the format, the rest is the message. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "front/rsockets/protocol.h"
#include "fuzz.h"

enum format { OFFER, WINDOW, MAPPING, DATAGRAM, UDP_IPV4, UDP_IPV6, FORMATS };

static void take_offer(const uint8_t *bytes, size_t length)
{
    struct rsocket_offer offer, untouched, again;
    uint8_t encoded[RSOCKET_OFFER_BYTES];
    int error;

    memset(&offer, 0xa5, sizeof(offer));
    untouched = offer;
    error = rsocket_offer_decode(bytes, length, &offer);
    if (error) {
        require(error == -EPROTO || error == -EPROTONOSUPPORT);
        require(memcmp(&offer, &untouched, sizeof(offer)) == 0);
        return;
    }
    require(length >= RSOCKET_OFFER_BYTES && bytes[0] == 1 && offer.table.length);
    require(offer.mappings <= RSOCKET_MAPPINGS_MAX &&
            rsocket_round_mappings(offer.mappings) == offer.mappings);
    rsocket_offer_encode(&offer, encoded);
    require(rsocket_offer_decode(encoded, sizeof(encoded), &again) == 0);
    require(again.big_endian == offer.big_endian && again.credits == offer.credits &&
            again.mappings == offer.mappings);
    require(memcmp(encoded + 8, bytes + 8, 32) == 0);
}

/* Entries are aligned, and in memory that the peer writes. */
static void take_window(const uint8_t *bytes, size_t length)
{
    uint64_t entry[2] = {0};
    uint8_t encoded[RSOCKET_WINDOW_BYTES];
    struct rsocket_window window;

    memcpy(entry, bytes, length < sizeof(entry) ? length : sizeof(entry));
    rsocket_window_load(entry, &window);
    rsocket_window_encode(&window, false, encoded);
    require(memcmp(encoded, entry, sizeof(entry)) == 0);
    rsocket_window_encode(&window, true, encoded);
    for (unsigned i = 0; i < 8; i++)
        require(encoded[i] == ((const uint8_t *)entry)[7 - i]);
    for (unsigned i = 0; i < 4; i++)
        require(encoded[12 + i] == ((const uint8_t *)entry)[15 - i]);
}

static void take_mapping(const uint8_t *bytes, size_t length)
{
    uint64_t entry[3] = {0};
    uint8_t encoded[RSOCKET_MAPPING_BYTES];
    struct rsocket_mapping mapping;

    memcpy(entry, bytes, length < sizeof(entry) ? length : sizeof(entry));
    rsocket_mapping_load(entry, &mapping);
    rsocket_mapping_encode(&mapping, false, encoded);
    require(memcmp(encoded, entry, sizeof(entry)) == 0);
    rsocket_mapping_encode(&mapping, true, encoded);
    for (unsigned i = 0; i < 8; i++)
        require(encoded[i] == ((const uint8_t *)entry)[7 - i]);
}

static void take_datagram(const uint8_t *bytes, size_t length)
{
    uint8_t encoded[RSOCKET_DATAGRAM_HEADER_MAX];
    struct sockaddr_storage from, mapped;
    int header;

    memset(&from, 0, sizeof(from));
    header = rsocket_datagram_decode(bytes, length, &from);
    if (header < 0) {
        require(header == -EPROTO && from.ss_family == 0);
        return;
    }
    require((size_t)header <= length && header == bytes[1]);
    require(from.ss_family == (header == RSOCKET_DATAGRAM_HEADER_IPV4 ? AF_INET : AF_INET6));
    /* A mapped address in a header of IPv6 is sent as IPv4. */
    if (from.ss_family == AF_INET || !rsocket_address_is_ipv4((struct sockaddr *)&from)) {
        require(rsocket_datagram_encode((struct sockaddr *)&from, encoded) == (size_t)header);
        require(memcmp(encoded, bytes, (size_t)header) == 0);
    } else {
        require(rsocket_datagram_encode((struct sockaddr *)&from, encoded) == RSOCKET_DATAGRAM_HEADER_IPV4);
        require(memcmp(encoded + 4, bytes + 20, 4) == 0);
    }
    mapped = from;
    rsocket_address_map(&mapped, AF_INET6);
    require(mapped.ss_family == AF_INET6);
    require(rsocket_address_is_ipv4((struct sockaddr *)&mapped) ==
            rsocket_address_is_ipv4((struct sockaddr *)&from));
}

static void take_udp(const uint8_t *bytes, size_t length, bool is_ipv6)
{
    struct sockaddr_storage source = {.ss_family = is_ipv6 ? AF_INET6 : AF_INET};
    uint8_t encoded[RSOCKET_UDP_HEADER_MAX];
    struct rsocket_udp header = {.qpn = 0x77777777};
    size_t expected;
    int got;

    if (is_ipv6)
        ((struct sockaddr_in6 *)&source)->sin6_addr.s6_addr[0] = 0xfd;
    got = rsocket_udp_decode(bytes, length, (struct sockaddr *)&source, &header);
    if (got < 0) {
        require(got == -EPROTO && header.qpn == 0x77777777);
        return;
    }
    require((size_t)got <= length &&
            (size_t)got == (is_ipv6 ? RSOCKET_UDP_HEADER_IPV6 : RSOCKET_UDP_HEADER_IPV4));
    require(header.qpn < 1u << 24);
    expected = rsocket_udp_encode(&header, (struct sockaddr *)&source, encoded);
    require(expected == (size_t)got && memcmp(encoded, bytes, 7) == 0 &&
            memcmp(encoded + 9, bytes + 9, 3) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    switch ((enum format)(data[0] % FORMATS)) {
    case OFFER:
        take_offer(data + 1, size - 1);
        break;
    case WINDOW:
        take_window(data + 1, size - 1);
        break;
    case MAPPING:
        take_mapping(data + 1, size - 1);
        break;
    case DATAGRAM:
        take_datagram(data + 1, size - 1);
        break;
    case UDP_IPV4:
    case UDP_IPV6:
        take_udp(data + 1, size - 1, data[0] % FORMATS == UDP_IPV6);
        break;
    case FORMATS:
        break;
    }
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------------ */

static void add_input(fuzz_add *add, enum format format, const void *bytes, size_t length)
{
    uint8_t all[128] = {(uint8_t)format};

    memcpy(all + 1, bytes, length);
    add(all, 1 + length);
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint32_t mappings[] = {0, 1, 128, 129, 4096, RSOCKET_MAPPINGS_MAX};
    struct sockaddr_storage ipv4 = {.ss_family = AF_INET}, ipv6 = {.ss_family = AF_INET6};
    uint8_t bytes[64];

    ((struct sockaddr_in6 *)&ipv6)->sin6_addr.s6_addr[0] = 0xfd;
    for (size_t i = 0; i < array_size(mappings); i++) {
        const struct rsocket_offer offer = {.big_endian = i & 1,
                                            .credits = (uint16_t)(i * 100),
                                            .mappings = mappings[i],
                                            .table = {0x1000, 7, 2},
                                            .first = {0x2000, 8, 65536}};

        rsocket_offer_encode(&offer, bytes);
        add_input(add, OFFER, bytes, RSOCKET_OFFER_BYTES);
        add_input(add, OFFER, bytes, RSOCKET_OFFER_BYTES - 1);
    }
    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i + 1);
    add_input(add, WINDOW, bytes, RSOCKET_WINDOW_BYTES);
    add_input(add, MAPPING, bytes, RSOCKET_MAPPING_BYTES);
    add_input(add, DATAGRAM, bytes, rsocket_datagram_encode((struct sockaddr *)&ipv4, bytes));
    add_input(add, DATAGRAM, bytes, rsocket_datagram_encode((struct sockaddr *)&ipv6, bytes));
    memset(bytes + 8, 0, 16);
    bytes[18] = bytes[19] = 0xff; /* a mapped address as IPv6 */
    add_input(add, DATAGRAM, bytes, RSOCKET_DATAGRAM_HEADER_IPV6);
    for (unsigned asks = 0; asks < 2; asks++) {
        const struct rsocket_udp header = {.asks = asks, .qpn = 0x123456};

        add_input(add, UDP_IPV4, bytes, rsocket_udp_encode(&header, (struct sockaddr *)&ipv4, bytes));
        add_input(add, UDP_IPV6, bytes, rsocket_udp_encode(&header, (struct sockaddr *)&ipv6, bytes));
    }
}
