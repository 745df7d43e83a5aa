/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connections by IP address (IBA annex A11): service ids made of port space and port, and the header with both IP
 * addresses that precedes the private data of REQ and SIDR_REQ. */
#ifndef WIRE_CMA_HEADER_H
#define WIRE_CMA_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMA_HEADER_LENGTH 36

/* enum rdma_port_space */
enum cma_port_space {
    CMA_PS_IPOIB = 0x0002,
    CMA_PS_TCP = 0x0106,
    CMA_PS_UDP = 0x0111,
    CMA_PS_IB = 0x013f,
};

static inline uint64_t cma_service_id(uint16_t port_space, uint16_t port)
{
    return (uint64_t)port_space << 16 | port;
}

/* false: the service id has none of these port spaces (a service id of AF_IB). Port in host byte order. */
bool cma_service_decode(uint64_t service_id, uint16_t *ret_port_space, uint16_t *ret_port);

struct cma_header {
    uint8_t ip_version;                  /* 4 or 6 */
    uint16_t source_port;                /* host byte order */
    uint8_t source[16], destination[16]; /* IPv4: the last four bytes; the others are 0 */
};

/* 0, or -EPROTO: too short, another version, not an IP version. */
int cma_header_decode(const void *private_data, size_t length, struct cma_header *ret_header);
void cma_header_encode(const struct cma_header *header, uint8_t ret_bytes[CMA_HEADER_LENGTH]);

#endif
