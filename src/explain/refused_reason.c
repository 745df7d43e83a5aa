/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why a call was refused, in words: each form of a refusal (base/refusal.h). */
#include <string.h>

#include "base/refusal.h"
#include "explain/explain.h"
#include "explain/names.h"
#include "explain/refused.h"

static void add_mask(struct words *words, const struct refused_record *record)
{
    words_add(words, "%s to %s of a QP of type %s ", name_qp_state((uint32_t)record->value & 255),
              name_qp_state((uint32_t)(record->value >> 8) & 255),
              name_qp_type((uint32_t)(record->value >> 16) & 65535));
    if (record->low) {
        words_add(words, "needs ");
        words_add_bits(words, BITS_QP_MASK, record->low);
        words_add(words, ", which attr_mask lacks");
    }
    if (record->high) {
        words_add(words, "%s", record->low ? "; it does not permit " : "does not permit ");
        words_add_bits(words, BITS_QP_MASK, record->high);
        words_add(words, ", which attr_mask has");
    }
}

static void add_page(struct words *words, const struct refused_record *record, const char *what)
{
    unsigned long long page = (unsigned long long)record->value, begin = record->low;

    words_add(words, "the page at 0x%llx %s (%llu bytes into the range of %llu bytes)", page, what,
              page > begin ? page - begin : 0, (unsigned long long)record->high);
}

/* As the program gave the length. */
static const char *length_of(const char *queue)
{
    return strcmp(queue, "send queue") == 0      ? "cap.max_send_wr"
           : strcmp(queue, "receive queue") == 0 ? "cap.max_recv_wr"
                                                 : "max_wr";
}

static void add_queue(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long slots = (unsigned long long)record->value;

    if (record->form == REFUSAL_SILENT)
        words_add(
            words,
            "the send queue is full, and stays so unless a work request fails: all %llu slots hold work "
            "requests without IBV_SEND_SIGNALED",
            slots);
    else if (!slots)
        words_add(words, "the %s has no slots: it was created with %s 0", argument, length_of(argument));
    else if (strcmp(argument, "send queue") != 0)
        words_add(words,
                  "the %s is full: all %llu slots (%s) hold receives that %s fewer, or create it with "
                  "more",
                  argument, slots, length_of(argument),
                  record->high ? "have no polled completion; poll more often, post"
                               : "no message has used yet; post");
    else if (record->low == slots)
        words_add(
            words,
            "the %s is full: all %llu slots (%s) hold outstanding work requests; poll their completions, "
            "or create it with more",
            argument, slots, length_of(argument));
    else
        words_add(words,
                  "the %s is full: of %llu slots (%s) %llu hold outstanding work requests, the others "
                  "become free once the completion of a later, signaled work request is polled",
                  argument, slots, length_of(argument), (unsigned long long)record->low);
}

static const char *name_wq_state(uint32_t state)
{
    static const char *const names[] = {"IBV_WQS_RESET", "IBV_WQS_RDY", "IBV_WQS_ERR"};

    return state < array_size(names) ? names[state] : "?";
}

static void add_wrong_bits(struct words *words, enum refusal_bits names, uint64_t bits, uint64_t allowed,
                           const char *argument)
{
    if (!bits && allowed) {
        words_add(words, "%s is 0, but needs at least one of ", argument);
        words_add_bits(words, names, allowed);
        return;
    }
    words_add(words, "%s has ", argument);
    words_add_bits(words, names, bits & ~allowed);
    words_add(words, allowed ? ", but may only have " : ", but has to be 0");
    if (allowed)
        words_add_bits(words, names, allowed);
}

/* What an argument is, and may be. */
static bool add_value_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low, high = record->high, bits = (unsigned long long)record->value;

    switch (record->form) {
    case REFUSAL_RANGE:
    case REFUSAL_TRIED:
        words_add_range(words, record, argument);
        return true;
    case REFUSAL_BITS:
        add_wrong_bits(words, (enum refusal_bits)low, bits, high, argument);
        return true;
    case REFUSAL_NULL:
        words_add(words, "%s is NULL", argument);
        return true;
    case REFUSAL_ELSEWHERE:
        words_add(
            words,
            "%s belongs to another struct ibv_context (ibv_open_device) than the other objects of the call",
            argument);
        return true;
    case REFUSAL_HOLDS:
        words_add(words, "%s is %llu, but the ", argument, bits);
        if (record->kind == OBJECT_CQ)
            words_add(words, "CQ holds %llu unpolled completion%s", low, low == 1 ? "" : "s");
        else
            words_add(words, "SRQ has %llu receive%s posted", low, low == 1 ? "" : "s");
        return true;
    case REFUSAL_OTHER_PD:
        words_add(words, "%s belongs to PD %llu, but the QP belongs to PD %llu", argument, bits, low);
        return true;
    case REFUSAL_UNSUPPORTED:
        words_add_unsupported(words, record, argument);
        return true;
    case REFUSAL_INVALID:
        words_add_invalid(words, record, argument);
        return true;
    case REFUSAL_UNALIGNED:
        words_add(words, "%s is 0x%llx, but has to be a multiple of %llu", argument, bits, low);
        return true;
    case REFUSAL_WRAPS:
        words_add(words, "%llu bytes at 0x%llx (%s) go past the end of the address space", low, bits,
                  argument);
        return true;
    case REFUSAL_ZERO:
        words_add(words, "%s is all zero", argument);
        return true;
    case REFUSAL_COUNT:
        words_add_count(words, record, argument);
        return true;
    case REFUSAL_MEMORY:
        words_add(words, "out of memory");
        return true;
    case REFUSAL_SPECS:
        words_add(
            words,
            "size is %llu, but num_of_specs is %llu: size has to be that of struct ibv_flow_attr and of "
            "all specs behind it",
            bits, low);
        return true;
    case REFUSAL_HAS_ONE:
        words_add(words, "the cm_id already has %s", argument);
        return true;
    case REFUSAL_SENTENCE:
        words_add(words, "%s", argument);
        return true;
    default:
        return false;
    }
}

/* What the state or the type of the QP or WQ does not permit. */
static bool add_state_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low, high = record->high, bits = (unsigned long long)record->value;
    long long value = record->value;

    switch (record->form) {
    case REFUSAL_TRANSITION:
        words_add(words, "%s to %s is not a transition of a QP of this type (from %s: to ",
                  name_qp_state((uint32_t)value & 255), name_qp_state((uint32_t)(value >> 8) & 255),
                  name_qp_state((uint32_t)value & 255));
        words_add_choice(words, low, name_qp_state);
        words_add(words, ")");
        return true;
    case REFUSAL_MASK:
        add_mask(words, record);
        return true;
    case REFUSAL_CURRENT:
        words_add(words, "cur_qp_state is %s, but the QP is in %s", name_qp_state((uint32_t)value),
                  name_qp_state((uint32_t)low));
        return true;
    case REFUSAL_DRAINING:
        words_add(
            words,
            "the QP is in SQD and has outstanding sends: wait until sq_draining of ibv_query_qp() is 0, or "
            "for IBV_EVENT_SQ_DRAINED if it was moved to SQD with en_sqd_async_notify");
        return true;
    case REFUSAL_WQ_TRANSITION:
        words_add(words, "%s to %s is not a transition of a WQ (from %s: to ", name_wq_state((uint32_t)low),
                  name_wq_state((uint32_t)value), name_wq_state((uint32_t)low));
        words_add_choice(words, high, name_wq_state);
        words_add(words, ")");
        return true;
    case REFUSAL_WQ_CURRENT:
        words_add(words, "curr_wq_state is %s, but the WQ is in %s", name_wq_state((uint32_t)value),
                  name_wq_state((uint32_t)low));
        return true;
    case REFUSAL_STATE:
        words_add(words, "the QP is in %s, but %s %s", name_qp_state((uint32_t)value), argument, "needs ");
        words_add_choice(words, low, name_qp_state);
        if (high)
            words_add(words, " or a later state");
        return true;
    case REFUSAL_TYPE:
        words_add(words, "the QP is of type %s, but %s needs ", name_qp_type((uint32_t)value), argument);
        words_add_choice(words, low, name_qp_type);
        return true;
    case REFUSAL_QKEY:
        words_add(words, "qkey 0x%08llx has its top bit set, which needs CAP_NET_RAW", bits);
        return true;
    case REFUSAL_MIGRATION:
        words_add(words, "%s: SoftHCA has no automatic path migration", argument);
        return true;
    default:
        return false;
    }
}

/* What a program meant that gave bytes. */
static const char *mtu_advice(int64_t bytes)
{
    static const char *const values[] = {"IBV_MTU_256 is 1", "IBV_MTU_512 is 2", "IBV_MTU_1024 is 3",
                                         "IBV_MTU_2048 is 4", "IBV_MTU_4096 is 5"};

    for (unsigned i = 0; i < array_size(values); i++) {
        if (bytes == 256ll << i)
            return values[i];
    }
    return "IBV_MTU_256 is 1, IBV_MTU_4096 is 5";
}

static void add_families(struct words *words, const struct refused_record *record)
{
    bool ipv4 = record->low == 1;

    if (record->low)
        words_add(words, "grh.dgid is an %s address, and the GID at sgid_index %lld an %s address: ",
                  ipv4 ? "IPv4" : "IPv6", (long long)record->value, ipv4 ? "IPv6" : "IPv4");
    else
        words_add(words, "grh.dgid and the GID at sgid_index %lld are an IPv4 and an IPv6 address: ",
                  (long long)record->value);
    if (record->high)
        words_add(words, "use sgid_index %llu", (unsigned long long)record->high - 1);
    else
        words_add(words, "choose the sgid_index of the other family (ibv_query_gid_table)");
}

/* Path MTU, GIDs, and the GRH. */
static bool add_path_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low;
    long long value = record->value;

    switch (record->form) {
    case REFUSAL_MTU:
        if (value < IBV_MTU_256 || value > IBV_MTU_4096)
            words_add(words, "%s is %lld, which is not a value of enum ibv_mtu (%s)", argument, value,
                      mtu_advice(value));
        else
            words_add(words, "%s is IBV_MTU_%u, but may be at most the port's active_mtu, IBV_MTU_%u",
                      argument, 128u << value, 128u << (low & 7));
        return true;
    case REFUSAL_NO_GRH:
        words_add(words, "%s is 0: RoCE needs a GRH, so set is_global to 1 and grh.dgid to the peer's GID",
                  argument);
        return true;
    case REFUSAL_NO_GID:
        words_add(words, "%s is %lld, where the port has no GID; it has ", argument, value);
        for (uint32_t i = 0; i < 32; i++) {
            if (low & 1ull << i)
                words_add(words, "%s%u", low & ((1ull << i) - 1) ? ", " : "", i);
        }
        if (!low)
            words_add(words, "others (ibv_query_gid_table)");
        return true;
    case REFUSAL_MULTICAST:
        words_add(words, "%s is a multicast GID, to which only a UD QP can send", argument);
        return true;
    case REFUSAL_UNICAST:
        words_add(words, "%s is not a multicast GID (ff00::/8, or 224.0.0.0/4 as ::ffff:a.b.c.d)", argument);
        return true;
    case REFUSAL_FAMILIES:
        add_families(words, record);
        return true;
    default:
        return false;
    }
}

/* A work request that was not posted. */
static bool add_work_request_reason(struct words *words, const struct refused_record *record,
                                    const char *argument)
{
    unsigned long long low = record->low;
    long long value = record->value;

    switch (record->form) {
    case REFUSAL_OPCODE:
        words_add(words, "opcode %s (%lld) is not possible on a QP of type %s",
                  name_send_opcode((uint32_t)value), value, name_qp_type((uint32_t)low));
        return true;
    case REFUSAL_HAS_SRQ:
        words_add(words, "the QP receives from its SRQ: post there (ibv_post_srq_recv)");
        return true;
    case REFUSAL_FULL:
    case REFUSAL_SILENT:
        add_queue(words, record, argument);
        return true;
    case REFUSAL_INLINE:
        words_add(words, "IBV_SEND_INLINE is not possible with opcode %s", name_send_opcode((uint32_t)value));
        return true;
    case REFUSAL_NO_ADDRESS:
        words_add(words, "a work request has no destination: %s is missing", argument);
        return true;
    default:
        return false;
    }
}

/* Memory that cannot be registered. */
static bool add_memory_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long bits = (unsigned long long)record->value;

    switch (record->form) {
    case REFUSAL_NEEDS_LOCAL_WRITE:
        words_add(words, "%s has ", argument);
        words_add_bits(words, BITS_ACCESS, bits & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
        words_add(words, ", which needs IBV_ACCESS_LOCAL_WRITE, too");
        return true;
    case REFUSAL_UNMAPPED:
        add_page(words, record, "is not mapped");
        return true;
    case REFUSAL_UNREADABLE:
        add_page(words, record, "is not readable");
        return true;
    case REFUSAL_UNWRITABLE:
        add_page(words, record,
                 "is not writable, but IBV_ACCESS_LOCAL_WRITE or IBV_ACCESS_MW_BIND asks "
                 "for write access");
        return true;
    default:
        return false;
    }
}

/* What an rdma_cm id does not permit. */
static bool add_id_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low;
    long long value = record->value;
    uint8_t gid[16];

    switch (record->form) {
    case REFUSAL_ID_STATE:
        words_add(words, "the cm_id is in state \"%s\", but has to be \"", name_id_state((uint32_t)value));
        words_add_choice(words, low, name_id_state);
        words_add(words, "\"");
        return true;
    case REFUSAL_UNCONNECTED:
        if (low)
            words_add(words, "the cm_id is of RDMA_PS_UDP, which has no connections");
        else
            words_add(words, "the cm_id is not connected (state \"%s\")", name_id_state((uint32_t)value));
        return true;
    case REFUSAL_NO_DEVICE:
        words_add(words,
                  "the cm_id has no device yet: rdma_resolve_addr() and its event, or rdma_bind_addr() "
                  "to an address of one "
                  "device, come first");
        return true;
    case REFUSAL_NOT_OF_ID:
        words_add(words, "%s belongs to another struct ibv_context than id->verbs", argument);
        return true;
    case REFUSAL_PORT_TAKEN:
        words_add(words, "port %lld is taken: another rdma_cm_id of this host is bound to it (softhca ps)",
                  value);
        return true;
    case REFUSAL_PRIVILEGED:
        words_add(words,
                  "port %lld is below %llu (net.ipv4.ip_unprivileged_port_start), which needs "
                  "CAP_NET_BIND_SERVICE",
                  value, low);
        return true;
    case REFUSAL_NO_ADAPTER:
        memcpy(gid, &record->low, sizeof(record->low));
        memcpy(gid + sizeof(record->low), &record->high, sizeof(record->high));
        words_add_gid(words, gid);
        words_add(words, " is the address of no RDMA device of this host (ibv_devinfo -v lists their GIDs)");
        return true;
    default:
        return false;
    }
}

bool words_add_refused(struct words *words, const struct refused_record *record, const char *argument)
{
    return add_value_reason(words, record, argument) || add_state_reason(words, record, argument) ||
           add_path_reason(words, record, argument) || add_work_request_reason(words, record, argument) ||
           add_memory_reason(words, record, argument) || add_id_reason(words, record, argument);
}
