/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Devices of rdma_cm: each is opened once and stays open as long as the process lives, because programs keep
 * id->verbs longer than the id (compatibility.md §6). */
#include <fcntl.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/log.h"
#include "front/rdmacm/front.h"
#include "rules/limits.h"

/* Guards the list of adapters, which only grows, and their PDs. */
static struct lock adapters_lock = LOCK_INIT;
static struct adapter adapters[ADAPTERS_MAX];
static unsigned adapter_count;
/* What the last search found: of many connections, most have one address. */
static struct {
    struct adapter *adapter; /* NULL: nothing */
    union ibv_gid gid, entry;
    uint8_t index;
} last;

/* The parent's contexts are void in the child; their memory stays and must not be touched. */
void adapters_forget(void)
{
    lock_init(&adapters_lock);
    memset(adapters, 0, sizeof(adapters));
    memset(&last, 0, sizeof(last));
    adapter_count = 0;
}

static struct adapter *adapter_of(const struct ibv_device *device)
{
    for (unsigned i = 0; i < adapter_count; i++) {
        if (adapters[i].verbs->device == device)
            return &adapters[i];
    }
    return NULL;
}

static int open_adapter(struct ibv_device *device)
{
    struct adapter *adapter = &adapters[adapter_count];
    struct ibv_device_attr attributes;
    int error;

    if (adapter_count == ADAPTERS_MAX)
        return -ENFILE;
    adapter->verbs = ibv_open_device(device);
    if (!adapter->verbs)
        return -errno;
    error = -ibv_query_device(adapter->verbs, &attributes);
    if (error) {
        ibv_close_device(adapter->verbs);
        return error;
    }
    calls->keep_open(adapter->verbs);
    adapter->guid = be64toh(ibv_get_device_guid(device));
    adapter->responder_resources = (uint8_t)min_of(attributes.max_qp_rd_atom, UINT8_MAX);
    adapter->initiator_depth = (uint8_t)min_of(attributes.max_qp_init_rd_atom, UINT8_MAX);
    adapter_count++;
    return 0;
}

/* Opens new devices, after reading the interfaces again. Caller holds adapters_lock. */
static int refresh(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    int error = 0;

    if (!list)
        return errno == ENOSYS ? -ENODEV : -errno;
    for (unsigned i = 0; list[i] && !error; i++) {
        if (!adapter_of(list[i]))
            error = open_adapter(list[i]);
    }
    ibv_free_device_list(list);
    return error;
}

int adapters_list(struct ibv_context *ret_verbs[ADAPTERS_MAX], unsigned *ret_count)
{
    int error;

    lock_acquire(&adapters_lock);
    error = refresh();
    for (unsigned i = 0; i < adapter_count; i++)
        ret_verbs[i] = adapters[i].verbs;
    *ret_count = adapter_count;
    lock_release(&adapters_lock);
    return error;
}

static bool is_ipv4_loopback(const union ibv_gid *gid)
{
    static const uint8_t prefix[13] = {[10] = 0xff, [11] = 0xff, [12] = 127};

    return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

/* Every address of 127/8 belongs to this host; one of them is a GID. */
static bool serves(const union ibv_gid *entry, const union ibv_gid *gid)
{
    return memcmp(entry, gid, sizeof(*gid)) == 0 || (is_ipv4_loopback(gid) && is_ipv4_loopback(entry));
}

/* Is it still there? */
static bool is_last(const union ibv_gid *gid)
{
    union ibv_gid now;

    return last.adapter && memcmp(&last.gid, gid, sizeof(*gid)) == 0 &&
           ibv_query_gid(last.adapter->verbs, 1, last.index, &now) == 0 &&
           memcmp(&last.entry, &now, sizeof(now)) == 0;
}

/* Caller holds adapters_lock. */
static struct adapter *search(const union ibv_gid *gid, uint32_t ifindex, uint8_t *ret_sgid_index)
{
    struct ibv_gid_entry entries[LIMIT_GIDS];
    struct adapter *found = NULL;

    if (!ifindex && is_last(gid)) {
        *ret_sgid_index = last.index;
        return last.adapter;
    }
    for (unsigned i = 0; i < adapter_count && !found; i++) {
        ssize_t count = ibv_query_gid_table(adapters[i].verbs, entries, LIMIT_GIDS, 0);

        for (ssize_t j = 0; j < count && !found; j++) {
            if (!serves(&entries[j].gid, gid) || (ifindex && entries[j].ndev_ifindex != ifindex))
                continue;
            found = &adapters[i];
            *ret_sgid_index = (uint8_t)entries[j].gid_index;
            if (!ifindex) {
                last.adapter = found;
                last.gid = *gid;
                last.entry = entries[j].gid;
                last.index = *ret_sgid_index;
            }
        }
    }
    return found;
}

int adapter_find(const union ibv_gid *gid, uint32_t ifindex, struct adapter **ret_adapter,
                 uint8_t *ret_sgid_index)
{
    int error = 0;

    lock_acquire(&adapters_lock);
    *ret_adapter = search(gid, ifindex, ret_sgid_index);
    if (!*ret_adapter) {
        error = refresh(); /* the address may have been added since the last look */
        *ret_adapter = search(gid, ifindex, ret_sgid_index);
    }
    lock_release(&adapters_lock);
    if (*ret_adapter)
        return 0;
    return error ? error : -ENODEV;
}

const struct adapter *adapter_known(const union ibv_gid *gid)
{
    const struct adapter *found;
    uint8_t sgid_index;

    lock_acquire(&adapters_lock);
    found = search(gid, 0, &sgid_index);
    lock_release(&adapters_lock);
    return found;
}

int adapter_gid(const struct adapter *adapter, uint8_t sgid_index, union ibv_gid *ret_gid)
{
    return ibv_query_gid(adapter->verbs, 1, sgid_index, ret_gid) == 0 ? 0 : -errno;
}

struct ibv_pd *adapter_get_pd(struct adapter *adapter)
{
    struct ibv_pd *pd;

    lock_acquire(&adapters_lock);
    if (!adapter->pd) {
        adapter->pd = ibv_alloc_pd(adapter->verbs);
        if (adapter->pd)
            calls->keep_pd(adapter->pd);
    }
    pd = adapter->pd;
    if (pd)
        adapter->pd_users++;
    lock_release(&adapters_lock);
    return pd;
}

void adapter_put_pd(struct adapter *adapter)
{
    lock_acquire(&adapters_lock);
    /* If objects of the program still use the PD, it stays for the next id. */
    if (--adapter->pd_users == 0 && ibv_dealloc_pd(adapter->pd) == 0)
        adapter->pd = NULL;
    lock_release(&adapters_lock);
}

struct ibv_xrcd *adapter_get_xrcd(struct adapter *adapter)
{
    struct ibv_xrcd_init_attr attributes = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd;

    lock_acquire(&adapters_lock);
    if (!adapter->xrcd)
        adapter->xrcd = ibv_open_xrcd(adapter->verbs, &attributes);
    xrcd = adapter->xrcd;
    lock_release(&adapters_lock);
    return xrcd;
}

/* --- what programs call --------------------------------------------------------------------------------- */

RDMACM_EXPORT struct ibv_context **rdma_get_devices(int *ret_count)
{
    struct ibv_context *verbs[ADAPTERS_MAX], **list;
    unsigned count = 0;
    int error = start();

    if (ret_count)
        *ret_count = 0;
    if (!error)
        error = adapters_list(verbs, &count);
    if (error) {
        errno = -error;
        return NULL;
    }
    list = calloc(count + 1, sizeof(list[0]));
    if (!list)
        return NULL;
    memcpy(list, verbs, count * sizeof(list[0]));
    if (ret_count)
        *ret_count = (int)count;
    return list;
}

RDMACM_EXPORT void rdma_free_devices(struct ibv_context **list)
{
    free(list);
}
