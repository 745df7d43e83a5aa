/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that the peer writes directly: riomap(), riounmap(), riowrite(). Each end has a table that its peer fills:
 * the end that maps memory writes an entry into the peer's table before its next message. */
#include <stdlib.h>

#include "front/rsockets/rsocket.h"

struct mapping {
    struct list node;
    struct ibv_mr *mr;
    uint64_t offset;
    int slot; /* entry of the peer's table; -1: for local use only */
};

struct mapping_slot {
    struct mapping *mapping;
    bool said;     /* the peer's entry describes this mapping */
    bool occupied; /* the peer's entry describes this mapping or an earlier one */
};

static bool is_unsaid(const struct mapping_slot *slot)
{
    return slot->mapping ? !slot->said : slot->occupied;
}

/* --- riomap(), riounmap() ------------------------------------------------------------------------------- */

static int make_slots(struct rsocket *rsocket)
{
    uint32_t count = rsocket->stream.peer_mappings.length;

    if (rsocket->mapping_slots || !count)
        return 0;
    rsocket->mapping_slots = calloc(count, sizeof(*rsocket->mapping_slots));
    return rsocket->mapping_slots ? 0 : -ENOMEM;
}

static int free_slot(const struct rsocket *rsocket)
{
    for (uint32_t i = 0; i < rsocket->stream.peer_mappings.length; i++)
        if (!rsocket->mapping_slots[i].mapping)
            return (int)i;
    return -ENOMEM;
}

static int map(struct rsocket *rsocket, void *buffer, size_t length, int protection, int64_t *offset)
{
    unsigned access =
        protection & PROT_WRITE ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;
    struct mapping *mapping;
    int slot = -1, error;

    if (!rsocket_is_stream(rsocket) || rsocket->phase != PHASE_CONNECTED || (protection & ~PROT_WRITE) ||
        length > UINT32_MAX)
        return -EINVAL;
    if (protection & PROT_WRITE) {
        error = make_slots(rsocket);
        if (!error)
            slot = free_slot(rsocket);
        if (error || slot < 0)
            return -ENOMEM;
    }
    mapping = calloc(1, sizeof(*mapping));
    if (!mapping)
        return -ENOMEM;
    mapping->mr = ibv_reg_mr(rsocket->id->pd, buffer, length, access);
    if (!mapping->mr) {
        error = -errno;
        free(mapping);
        return error;
    }
    if (*offset == -1)
        *offset = (int64_t)(uintptr_t)buffer;
    mapping->offset = (uint64_t)*offset;
    mapping->slot = slot;
    list_push_back(&rsocket->mappings, &mapping->node);
    if (slot >= 0) {
        rsocket->mapping_slots[slot].mapping = mapping;
        rsocket->mappings_unsaid = true;
    }
    return 0;
}

RDMACM_EXPORT off_t riomap(int fd, void *buffer, size_t length, int protection, int flags, off_t offset)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);
    int64_t result = offset;

    if (error)
        return conclude(error);
    error = map(rsocket, buffer, length, protection, &result);
    rsocket_leave(rsocket);
    return error ? conclude(error) : result;
}

static void unmap(struct rsocket *rsocket, struct mapping *mapping)
{
    list_remove(&mapping->node);
    if (mapping->slot >= 0) {
        struct mapping_slot *slot = &rsocket->mapping_slots[mapping->slot];

        slot->mapping = NULL;
        slot->said = false;
        rsocket->mappings_unsaid |= is_unsaid(slot);
    }
    ibv_dereg_mr(mapping->mr);
    free(mapping);
}

RDMACM_EXPORT int riounmap(int fd, void *buffer, size_t length)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = -EINVAL;
    list_for_each_safe (node, following, &rsocket->mappings) {
        struct mapping *mapping = list_entry(node, struct mapping, node);

        if (mapping->mr->addr != buffer || mapping->mr->length != length)
            continue;
        unmap(rsocket, mapping);
        error = 0;
        break;
    }
    rsocket_leave(rsocket);
    return conclude(error);
}

void mappings_close(struct rsocket *rsocket)
{
    list_for_each_safe (node, following, &rsocket->mappings)
        unmap(rsocket, list_entry(node, struct mapping, node));
    free(rsocket->mapping_slots);
}

/* --- telling the peer ----------------------------------------------------------------------------------- */

static int wait_for_room(struct rsocket *rsocket, bool (*can_send)(const struct stream *),
                         struct rsocket_patience *patience)
{
    int error = 0;

    while (!can_send(&rsocket->stream) && !error) {
        if (!rsocket->stream.writable || rsocket->closing)
            return transfer_send_error(rsocket);
        error = rsocket_wait(rsocket, patience);
    }
    return error;
}

static int write_bytes(struct rsocket *rsocket, const struct stream_write *write, const uint8_t *data)
{
    const uint8_t *from = data;

    for (unsigned i = 0; i < write->piece_count; i++) {
        memcpy(rsocket->endpoint.send_ring + write->pieces[i].at, from, write->pieces[i].length);
        from += write->pieces[i].length;
    }
    return endpoint_write(rsocket, write, data);
}

static int say_slot(struct rsocket *rsocket, uint32_t index)
{
    struct mapping_slot *slot = &rsocket->mapping_slots[index];
    struct rsocket_mapping entry = {0};
    uint8_t bytes[RSOCKET_MAPPING_BYTES];
    struct stream_write write;
    int error;

    if (slot->mapping) {
        entry.offset = slot->mapping->offset;
        entry.window.address = (uintptr_t)slot->mapping->mr->addr;
        entry.window.key = slot->mapping->mr->rkey;
        entry.window.length = (uint32_t)slot->mapping->mr->length;
    }
    rsocket_mapping_encode(&entry, rsocket->stream.swap, bytes);
    stream_send_mapping(&rsocket->stream, index, &write);
    error = write_bytes(rsocket, &write, bytes);
    if (error)
        endpoint_fail(rsocket, error);
    slot->said = slot->occupied = slot->mapping != NULL;
    return error;
}

int mappings_say(struct rsocket *rsocket, struct rsocket_patience *patience)
{
    int error = 0;

    for (uint32_t i = 0; i < rsocket->stream.peer_mappings.length && !error; i++) {
        if (!is_unsaid(&rsocket->mapping_slots[i]))
            continue;
        error = wait_for_room(rsocket, stream_can_send, patience);
        if (!error && is_unsaid(&rsocket->mapping_slots[i])) /* not written in between */
            error = say_slot(rsocket, i);
    }
    if (!error)
        rsocket->mappings_unsaid = false;
    return error;
}

/* --- riowrite() ----------------------------------------------------------------------------------------- */

/* Finds the peer's mapping at the offset. */
static bool find_target(const struct rsocket *rsocket, uint64_t offset, struct rsocket_window *ret_window)
{
    const uint8_t *table = rsocket->endpoint.memory + RSOCKET_WINDOWS * RSOCKET_WINDOW_BYTES;
    struct rsocket_mapping mapping;

    for (uint32_t i = 0; i < rsocket->stream.options.mappings; i++) {
        rsocket_mapping_load(table + (size_t)i * RSOCKET_MAPPING_BYTES, &mapping);
        if (offset < mapping.offset || offset - mapping.offset >= mapping.window.length)
            continue;
        *ret_window = mapping.window;
        ret_window->address += offset - mapping.offset;
        ret_window->length -= (uint32_t)(offset - mapping.offset);
        return true;
    }
    return false;
}

/* The caller is inside of the send direction. Ends early at an offset without a mapping. */
static ssize_t write_direct(struct rsocket *rsocket, const uint8_t *data, size_t count, uint64_t offset,
                            struct rsocket_patience *patience)
{
    struct rsocket_window target;
    size_t done = 0;
    int error = 0;

    while (done < count && find_target(rsocket, offset + done, &target)) {
        struct stream_write write;

        error = wait_for_room(rsocket, stream_can_send_direct, patience);
        if (error)
            break;
        stream_send_direct(&rsocket->stream, &target, count - done, &write);
        lock_release(&rsocket->lock);
        error = write_bytes(rsocket, &write, data + done);
        lock_acquire(&rsocket->lock);
        if (error) {
            endpoint_fail(rsocket, error);
            break;
        }
        done += write.length;
    }
    return done ? (ssize_t)done : error;
}

static ssize_t write_mapped(struct rsocket *rsocket, const void *data, size_t count, off_t offset, int flags)
{
    struct rsocket_patience patience = {.nonblocking = rsocket_must_not_wait(rsocket, flags)};
    ssize_t result;

    if (!rsocket_is_stream(rsocket))
        return -EOPNOTSUPP;
    if (rsocket->phase != PHASE_CONNECTED)
        return -ENOTCONN;
    result = rsocket_enter_direction(rsocket, &rsocket->sending, &patience);
    if (result)
        return result;
    if (rsocket->mappings_unsaid)
        result = mappings_say(rsocket, &patience);
    if (!result)
        result = write_direct(rsocket, data, count, (uint64_t)offset, &patience);
    rsocket_leave_direction(rsocket, &rsocket->sending);
    return result;
}

RDMACM_EXPORT size_t riowrite(int fd, const void *data, size_t count, off_t offset, int flags)
{
    struct rsocket *rsocket;
    ssize_t result;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return (size_t)conclude(error);
    result = write_mapped(rsocket, data, count, offset, flags);
    rsocket_leave(rsocket);
    return (size_t)rsocket_conclude(result);
}
