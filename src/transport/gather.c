/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "transport/machine.h"
#include "transport/ordered_copy.h"

/* What is read from a null MR comes from the source, which stays zero; what is written to one goes to the sink. All
 * threads share both. */
static char null_source[GATHER_NULL_CHUNK];
static char null_sink[GATHER_NULL_CHUNK];

static bool add_null(struct gather *gather, uint32_t length, bool write)
{
    while (length) {
        uint32_t chunk = min_of(length, GATHER_NULL_CHUNK);

        if (gather->count == GATHER_MAX)
            return false;
        gather->vector[gather->count++] =
            (struct iovec){.iov_base = write ? null_sink : null_source, .iov_len = chunk};
        length -= chunk;
    }
    return true;
}

enum verdict gather_range(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, uint32_t offset, uint32_t length, bool write,
                          struct gather *ret_gather)
{
    ret_gather->count = 0;
    for (; length; sge++, num_sge--) {
        struct memory_range range;
        enum verdict verdict;
        uint32_t part, from;

        if (unlikely(!num_sge))
            return VERDICT_LOCAL_LENGTH;
        if (offset >= sge->length) {
            offset -= sge->length;
            continue;
        }
        part = min_of(sge->length - offset, length);
        from = write ? offset : 0;
        verdict = keys_check_local(qp->keys, pd, sge->lkey, sge->address + from, write ? part : sge->length,
                                   write, &range);
        if (unlikely(verdict != VERDICT_OK))
            return verdict;
        range.address += offset - from;
        if (unlikely(range.kind == KEY_REGION_NULL)) {
            if (!add_null(ret_gather, part, write))
                return VERDICT_LOCAL_LENGTH;
        } else {
            if (unlikely(ret_gather->count == GATHER_MAX))
                return VERDICT_LOCAL_LENGTH;
            if (unlikely(!is_resident(qp, &range, 0, part, write)))
                return VERDICT_LOCAL_PROTECTION;
            ret_gather->slot[ret_gather->count] = range.slot;
            ret_gather->vector[ret_gather->count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)range.address, .iov_len = part};
        }
        offset = 0;
        length -= part;
    }
    return VERDICT_OK;
}

uint32_t gather_length(const struct wqe_sge *sge, uint32_t num_sge)
{
    uint64_t length = 0;

    for (uint32_t i = 0; i < num_sge; i++)
        length += sge[i].length;
    return (uint32_t)min_of(length, (uint64_t)UINT32_MAX);
}

enum verdict gather_check(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, bool write, unsigned *ret_references)
{
    unsigned count = 0;
    bool unnamed = false;

    for (uint32_t i = 0; i < num_sge; i++) {
        struct memory_range range;
        enum verdict verdict;

        if (!sge[i].length)
            continue;
        verdict = keys_check_local(qp->keys, pd, sge[i].lkey, sge[i].address, sge[i].length, write, &range);
        if (verdict != VERDICT_OK)
            return verdict;
        unnamed |= range.kind == KEY_REGION_NULL || (sge[i].lkey & KEY_COPIED);
        count++;
    }
    *ret_references = unnamed ? 0 : count;
    return VERDICT_OK;
}

uint32_t gather_referenced(const struct packet *packet)
{
    uint64_t length = 0;

    if (packet->reference_count > PACKET_REFERENCES)
        return UINT32_MAX;
    for (uint32_t i = 0; i < packet->reference_count; i++)
        length += packet->reference[i].length;
    return (uint32_t)min_of(length, (uint64_t)UINT32_MAX);
}

void gather_place(const struct gather *gather, const void *payload)
{
    const char *from = payload;

    for (unsigned i = 0; i < gather->count; i++) {
        if (gather->vector[i].iov_base != null_sink)
            place(gather->vector[i].iov_base, from, gather->vector[i].iov_len);
        from += gather->vector[i].iov_len;
    }
}
