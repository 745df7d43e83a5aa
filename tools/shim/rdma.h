/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the kernel's RDMA netlink (rdma(8), NETLINK_RDMA) would say of the adapters in the tree. */
#ifndef SHIM_RDMA_H
#define SHIM_RDMA_H

#include <linux/netlink.h>
#include <stddef.h>

/* Sends the answers to all requests in data from `from` to the socket `to`, as datagrams of that size at
 * most. What finds no room there is lost, as in the kernel. root: redirect_root(). */
#define RDMA_DATAGRAM 4096
void rdma_answer(const char *root, const void *data, size_t length, int from, const struct sockaddr_nl *to);

#endif
