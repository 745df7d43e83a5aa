/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Causes of a fault that are in a key or the memory that it names: requesters, responders and receives have them in
 * common. */
#include "explain/explain.h"

static const struct {
    uint32_t flag;
    const char *name;
} access_names[] = {
    {IBV_ACCESS_LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"},
    {IBV_ACCESS_REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"},
    {IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_REMOTE_READ"},
    {IBV_ACCESS_REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"},
    {IBV_ACCESS_MW_BIND, "IBV_ACCESS_MW_BIND"},
    {ACCESS_FLUSH_GLOBAL, "IBV_ACCESS_FLUSH_GLOBAL"},
    {ACCESS_FLUSH_PERSISTENT, "IBV_ACCESS_FLUSH_PERSISTENT"},
};

void words_add_access(struct words *words, uint64_t flags)
{
    bool any = false;

    for (unsigned i = 0; i < array_size(access_names); i++) {
        if (!(flags & access_names[i].flag))
            continue;
        words_add(words, "%s%s", any ? " | " : "", access_names[i].name);
        any = true;
    }
    if (!any)
        words_add(words, "no access flags");
}

/* By the key that its access has. */
static void add_region(struct words *words, const struct fault_record *fault)
{
    bool by_rkey = fault->side == FAULT_OF_RESPONDER && fault->region_rkey;

    if (fault->window)
        words_add(words, "the MW with rkey 0x%08x", fault->region_rkey);
    else
        words_add(words, "the MR with %s 0x%08x (%llu bytes at 0x%llx)", by_rkey ? "rkey" : "lkey",
                  by_rkey ? fault->region_rkey : fault->region_lkey, (unsigned long long)fault->region_length,
                  (unsigned long long)fault->region_address);
}

static void add_withdrawn(const struct view *view, struct words *words, const struct fault_record *fault)
{
    words_add(words, "the MR of this %s was deregistered",
              fault->side == FAULT_OF_RESPONDER ? "rkey" : "lkey");
    if (!fault->withdrawn_ns)
        return;
    words_add(words, " ");
    words_add_age(words, view_age(view, fault->withdrawn_ns));
    words_add(words, " by ");
    words_add_thread(view, words, fault->withdrawn_by);
}

/* The key is right, and the range is not. */
static bool add_range_reason(struct words *words, const struct fault_record *fault)
{
    unsigned long long value = fault->value;

    switch (fault->cause) {
    case FAULT_ADDRESS_SWAPPED:
        words_add(words, "the address is byte-swapped: 0x%016llx is in ",
                  (unsigned long long)__builtin_bswap64(fault->address));
        add_region(words, fault);
        return true;
    case FAULT_ADDRESS_TRUNCATED:
        words_add(words, "the address has lost its upper 32 bits: 0x%llx is in ", value);
        add_region(words, fault);
        return true;
    case FAULT_RANGE_END:
        words_add(words, "the range ends %llu byte%s past the end of ", value, value == 1 ? "" : "s");
        add_region(words, fault);
        return true;
    case FAULT_RANGE_BEGIN:
        words_add(words, "the range begins %llu byte%s before the start of ", value, value == 1 ? "" : "s");
        add_region(words, fault);
        return true;
    case FAULT_RANGE_OUTSIDE:
        words_add(words, "the range is outside ");
        add_region(words, fault);
        return true;
    case FAULT_PAGES:
        words_add(words, "the program has unmapped or write-protected memory of ");
        add_region(words, fault);
        words_add(words, " since its registration (munmap, mprotect)");
        return true;
    default:
        return false;
    }
}

bool words_add_key_reason(const struct view *view, struct words *words, const struct fault_record *fault)
{
    bool remote = fault->side == FAULT_OF_RESPONDER;
    const char *name = remote ? "rkey" : "lkey";
    unsigned long long value = fault->value;

    switch (fault->cause) {
    case FAULT_KEY_UNKNOWN:
        words_add(words, "no MR%s has this %s", remote ? " or bound MW" : "", name);
        return true;
    case FAULT_KEY_IS_LKEY:
        words_add(
            words,
            "an lkey was given instead of an rkey: it is the lkey of the MR of %llu bytes at 0x%llx, whose "
            "rkey is 0x%08x",
            (unsigned long long)fault->region_length, (unsigned long long)fault->region_address,
            fault->region_rkey);
        return true;
    case FAULT_KEY_IS_RKEY:
        words_add(
            words,
            "an rkey was given instead of an lkey: it is the rkey of the MR of %llu bytes at 0x%llx, whose "
            "lkey is 0x%08x",
            (unsigned long long)fault->region_length, (unsigned long long)fault->region_address,
            fault->region_lkey);
        return true;
    case FAULT_KEY_SWAPPED:
        words_add(words, "the %s is byte-swapped: 0x%08x is the %s of ", name, __builtin_bswap32(fault->key),
                  name);
        add_region(words, fault);
        return true;
    case FAULT_KEY_WITHDRAWN:
        add_withdrawn(view, words, fault);
        return true;
    case FAULT_KEY_REPLACED:
        words_add(
            words,
            "this %s is stale: its MR was deregistered, and its index (the upper 24 bits) now belongs to ",
            name);
        add_region(words, fault);
        return true;
    case FAULT_WINDOW_UNBOUND:
        words_add(
            words,
            fault->region_access & ACCESS_WAS_BOUND
                ? "the MW of this rkey is not bound any more: it was invalidated, or bound with length 0"
                : "the MW of this rkey was never bound (ibv_bind_mw, IBV_WR_BIND_MW)");
        return true;
    case FAULT_WINDOW_REBOUND:
        words_add(words, "the MW was bound again, its rkey is 0x%08x now", fault->region_rkey);
        return true;
    case FAULT_PD:
        add_region(words, fault);
        words_add(words, " belongs to PD %llu, but %s belongs to PD %llu", value,
                  remote ? "the responder's QP" : "the QP", (unsigned long long)fault->wanted);
        return true;
    case FAULT_ACCESS:
        add_region(words, fault);
        words_add(words, " lacks ");
        words_add_access(words, fault->wanted);
        words_add(words, ", it was %s with ", fault->window ? "bound" : "registered");
        words_add_access(words, fault->region_access);
        return true;
    default:
        return add_range_reason(words, fault);
    }
}
