/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Hash tables of ids. The hash has a secret key because peers choose most of the numbers. */
#include "cm/machine.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static unsigned bucket_of(const struct cm *cm, const uint8_t gid[16], uint32_t number)
{
    uint64_t half[2];

    memcpy(half, gid, sizeof(half));
    return (unsigned)(mix(mix(mix(number ^ cm->hash_key[0]) + half[0]) ^ (half[1] + cm->hash_key[1])) %
                      CM_BUCKETS);
}

/* Local comm ids are consecutive numbers of ours and need no hash. */
static unsigned bucket_of_local(uint32_t comm_id)
{
    return (comm_id ^ comm_id >> 16) % CM_BUCKETS;
}

static void add(struct cm_link **bucket, struct cm_link *link)
{
    table_remove(link);
    link->next = *bucket;
    link->to_this = bucket;
    if (*bucket)
        (*bucket)->to_this = &link->next;
    *bucket = link;
}

void table_remove(struct cm_link *link)
{
    if (!link->to_this)
        return;
    *link->to_this = link->next;
    if (link->next)
        link->next->to_this = link->to_this;
    *link = (struct cm_link){0};
}

struct cm_id *table_local(struct cm *cm, uint32_t local_comm_id)
{
    for (struct cm_link *link = cm->by_local[bucket_of_local(local_comm_id)]; link; link = link->next) {
        struct cm_id *id = container_of(link, struct cm_id, by_local);

        if (id->local_comm_id == local_comm_id)
            return id;
    }
    return NULL;
}

struct cm_id *table_remote(struct cm *cm, const uint8_t gid[16], uint32_t comm_id, bool datagram)
{
    for (struct cm_link *link = cm->by_remote[bucket_of(cm, gid, comm_id)]; link; link = link->next) {
        struct cm_id *id = container_of(link, struct cm_id, by_remote);

        if (id->remote_comm_id == comm_id && id->datagram == datagram &&
            !memcmp(id->path.remote_gid, gid, sizeof(id->path.remote_gid)))
            return id;
    }
    return NULL;
}

struct cm_id *table_qpn(struct cm *cm, const struct cm_path *from, uint32_t qpn)
{
    for (struct cm_link *link = cm->by_qpn[bucket_of(cm, from->remote_gid, qpn)]; link; link = link->next) {
        struct cm_id *id = container_of(link, struct cm_id, by_qpn);

        if (id->remote_qpn == qpn && id->path.peer == from->peer && from_peer(id, from))
            return id;
    }
    return NULL;
}

void table_add_local(struct cm *cm, struct cm_id *id)
{
    add(&cm->by_local[bucket_of_local(id->local_comm_id)], &id->by_local);
}

void table_add_remote(struct cm *cm, struct cm_id *id)
{
    add(&cm->by_remote[bucket_of(cm, id->path.remote_gid, id->remote_comm_id)], &id->by_remote);
}

void table_add_qpn(struct cm *cm, struct cm_id *id)
{
    add(&cm->by_qpn[bucket_of(cm, id->path.remote_gid, id->remote_qpn)], &id->by_qpn);
}
