/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A process with a device and an XRC domain, for targets whose links are simulated: real objects, over an engine that
 * has no helper thread, no clock and no network. */
#ifndef TESTS_FUZZ_XRC_PROCESS_H
#define TESTS_FUZZ_XRC_PROCESS_H

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "object/device/context.h"
#include "object/device/device.h"
#include "object/memory/share.h"
#include "object/ports.h"
#include "object/qp/qp.h"
#include "object/xrc/xrc.h"
#include "object/xrc/xrc_domain.h"

#define DEVICE_IFINDEX 7u

static struct context *context;
static struct xrcd *xrcd;
static struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                                           .oflags = O_CREAT};
static uint64_t device, inode; /* of the domain's file */

static void ignore(struct qp *qp)
{
}

static void prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
}

static void take_arrived(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network)
{
}

static void unlock(struct qp *qp, bool more)
{
    lock_release(&qp->lock);
}

static int allocate_number(uint32_t *ret_qpn)
{
    *ret_qpn = 0x4000;
    return 0;
}

static void release_number(uint32_t qpn)
{
}

static void send_notice(struct transport_qp *transport, const struct packet *packet)
{
}

static ns_t now(struct transport_qp *transport)
{
    return 1;
}

static void set_timer(struct transport_qp *transport, ns_t deadline)
{
}

static bool settle(enum object_kind kind, uint32_t slot, enum settle how)
{
    return false;
}

static void open_domain(void)
{
    require(xrcd_open(context, &domain, &xrcd) == 0);
}

static const struct qp_ports idle_engine = {
    .init_private = ignore,
    .transport = {.now = now, .set_timer = set_timer, .send_notice = send_notice},
    .prepare = prepare,
    .flush_before_end = ignore,
    .take_arrived = take_arrived,
    .connect = ignore,
    .disconnect = ignore,
    .unlock = unlock,
    .end_relay = ignore,
    .forget = ignore,
    .allocate_number = allocate_number,
    .release_number = release_number,
};

/* The domain is its user's alone. `ports` stay. */
static void open_process(const struct qp_ports *ports)
{
    static const struct object_ports object = {.settle = settle};
    static const struct netdev netdevs[] = {
        {.ifindex = DEVICE_IFINDEX, .mtu = 1500, .name = "eth0", .running = true}};
    struct netdev_address address = {
        .gid = {[10] = 0xff, 0xff, 192, 0, 2, 1}, .ifindex = DEVICE_IFINDEX, .prefix_length = 128};
    const struct netdev_snapshot snapshot = {
        .netdevs = netdevs, .netdev_count = 1, .addresses = &address, .address_count = 1};
    struct device_change changes[DEVICE_CHANGES_MAX];

    object_ports = &object;
    qp_ports_install(ports);
    device_table_init(&host_devices, &(struct device_options){0});
    require(device_table_apply(&host_devices, &snapshot, changes) >= 0);
    require(context_open(&host_devices.devices[0], &context) == 0);
    domain.fd = memfd_create("domain", MFD_CLOEXEC);
    require(domain.fd >= 0 && fchmod(domain.fd, 0600) == 0);
    open_domain();
    device = xrcd->domain->device;
    inode = xrcd->domain->inode;
}

#endif
