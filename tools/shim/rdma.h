/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the kernel's RDMA netlink (rdma(8), NETLINK_RDMA) would say of the adapters in the tree. */
#ifndef SHIM_RDMA_H
#define SHIM_RDMA_H

#include "netlink.h"

/* Appends the answers to all requests in data. root: redirect_root(); port: the netlink port of who asks. */
void rdma_answer(const char *root, const void *data, size_t length, uint32_t port, struct datagrams *to);

#endif
