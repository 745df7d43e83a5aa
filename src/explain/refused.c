/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls that were refused (segment/refused.h): which argument, its value, what is allowed. */
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "explain/explain.h"
#include "explain/names.h"

#define STACK_LINES 12u
#define PRESENT_MS  100u /* what is told as it happens has no age */

/* The attribute that limits an argument, for one kind of object and one call only, where they are given. */
struct named_limit {
    const char *argument;
    uint32_t kind;
    const char *call, *name;
};
#define DEVICE(attribute) attribute " of ibv_query_device()"

static const char *const qp_mask_names[] = {
    "IBV_QP_STATE",
    "IBV_QP_CUR_STATE",
    "IBV_QP_EN_SQD_ASYNC_NOTIFY",
    "IBV_QP_ACCESS_FLAGS",
    "IBV_QP_PKEY_INDEX",
    "IBV_QP_PORT",
    "IBV_QP_QKEY",
    "IBV_QP_AV",
    "IBV_QP_PATH_MTU",
    "IBV_QP_TIMEOUT",
    "IBV_QP_RETRY_CNT",
    "IBV_QP_RNR_RETRY",
    "IBV_QP_RQ_PSN",
    "IBV_QP_MAX_QP_RD_ATOMIC",
    "IBV_QP_ALT_PATH",
    "IBV_QP_MIN_RNR_TIMER",
    "IBV_QP_SQ_PSN",
    "IBV_QP_MAX_DEST_RD_ATOMIC",
    "IBV_QP_PATH_MIG_STATE",
    "IBV_QP_CAP",
    "IBV_QP_DEST_QPN",
    NULL,
    NULL,
    NULL,
    NULL,
    "IBV_QP_RATE_LIMIT",
};
static const char *const access_bit_names[] = {
    "IBV_ACCESS_LOCAL_WRITE",      "IBV_ACCESS_REMOTE_WRITE", "IBV_ACCESS_REMOTE_READ",
    "IBV_ACCESS_REMOTE_ATOMIC",    "IBV_ACCESS_MW_BIND",      "IBV_ACCESS_ZERO_BASED",
    "IBV_ACCESS_ON_DEMAND",        "IBV_ACCESS_HUGETLB",      "IBV_ACCESS_FLUSH_GLOBAL",
    "IBV_ACCESS_FLUSH_PERSISTENT",
};
static const char *const send_flag_names[] = {
    "IBV_SEND_FENCE", "IBV_SEND_SIGNALED", "IBV_SEND_SOLICITED", "IBV_SEND_INLINE", "IBV_SEND_IP_CSUM",
};

/* "IBV_QP_AV and IBV_QP_PATH_MTU", and bits without a name as a number. */
static void add_bits(struct words *words, enum refusal_bits names, uint64_t bits)
{
    static const struct {
        const char *const *names;
        unsigned count;
    } tables[] = {
        [BITS_PLAIN] = {NULL, 0},
        [BITS_QP_MASK] = {qp_mask_names, array_size(qp_mask_names)},
        [BITS_ACCESS] = {access_bit_names, array_size(access_bit_names)},
        [BITS_SEND_FLAGS] = {send_flag_names, array_size(send_flag_names)},
    };
    uint64_t rest = bits, named = 0;

    if ((unsigned)names >= array_size(tables))
        names = BITS_PLAIN;
    for (unsigned i = 0; i < tables[names].count; i++)
        named |= tables[names].names[i] ? 1ull << i : 0;
    for (unsigned i = 0; i < tables[names].count; i++) {
        if (!(rest & named & 1ull << i))
            continue;
        rest &= ~(1ull << i);
        words_add(words, "%s%s", tables[names].names[i], !rest ? "" : rest & (rest - 1) ? ", " : " and ");
    }
    if (rest)
        words_add(words, "0x%llx", (unsigned long long)rest);
    if (!bits)
        words_add(words, "none");
}

/* Names of the numbers that are set in a mask: "RTS, SQD or ERR". */
static void add_choice(struct words *words, uint64_t mask, const char *(*name)(uint32_t value))
{
    for (uint32_t i = 0; i < 32 && mask; i++) {
        if (!(mask & 1ull << i))
            continue;
        mask &= ~(1ull << i);
        words_add(words, "%s%s", name(i), !mask ? "" : mask & (mask - 1) ? ", " : " or ");
    }
}

static void add_mask(struct words *words, const struct refused_record *record)
{
    words_add(words, "%s to %s of a QP of type %s ", name_qp_state((uint32_t)record->value & 255),
              name_qp_state((uint32_t)(record->value >> 8) & 255),
              name_qp_type((uint32_t)(record->value >> 16) & 65535));
    if (record->low) {
        words_add(words, "needs ");
        add_bits(words, BITS_QP_MASK, record->low);
        words_add(words, ", which attr_mask lacks");
    }
    if (record->high) {
        words_add(words, "%s", record->low ? "; it does not permit " : "does not permit ");
        add_bits(words, BITS_QP_MASK, record->high);
        words_add(words, ", which attr_mask has");
    }
}

static void add_page(struct words *words, const struct refused_record *record, const char *what)
{
    unsigned long long page = (unsigned long long)record->value, begin = record->low;

    words_add(words, "the page at 0x%llx %s (%llu bytes into the range of %llu bytes)", page, what,
              page > begin ? page - begin : 0, (unsigned long long)record->high);
}

/* Where the name of an attribute depends on the object or the call: call is how the call's name begins. */
static const char *find_limit(const struct named_limit *limits, size_t count,
                              const struct refused_record *record, const char *argument)
{
    for (size_t i = 0; i < count; i++) {
        const struct named_limit *limit = &limits[i];

        if (strcmp(limit->argument, argument) == 0 && (!limit->kind || limit->kind == record->kind) &&
            (!limit->call || strncmp(record->call, limit->call, strlen(limit->call)) == 0))
            return limit->name;
    }
    return NULL;
}

/* Which attribute says how large the argument may be. NULL: the number is the specification's. */
static const char *limit_of(const struct refused_record *record, const char *argument)
{
    static const struct named_limit limits[] = {
        {"cap.max_send_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"cap.max_recv_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"cap.max_send_sge", 0, NULL, DEVICE("max_sge")},
        {"cap.max_recv_sge", 0, NULL, DEVICE("max_sge")},
        {"cap.max_inline_data", 0, NULL, "SoftHCA's limit, which no attribute of the device tells"},
        {"attr.max_wr", 0, NULL, DEVICE("max_srq_wr")},
        {"attr.max_sge", 0, NULL, DEVICE("max_srq_sge")},
        {"attr.srq_limit", 0, NULL, "attr.max_wr"},
        {"srq_limit", 0, NULL, "max_wr of the SRQ"},
        {"max_wr", OBJECT_SRQ, NULL, DEVICE("max_srq_wr")},
        {"max_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"max_sge", 0, NULL, DEVICE("max_sge")},
        {"num_sge", OBJECT_SRQ, NULL, "max_sge of the SRQ"},
        {"num_sge", OBJECT_WQ, NULL, "max_sge of the WQ"},
        {"num_sge", 0, "ibv_post_recv", "max_recv_sge of the QP"},
        {"num_sge", 0, NULL, "max_send_sge of the QP"},
        {"length of the inline data", 0, NULL, "max_inline_data of the QP"},
        {"cqe", 0, NULL, DEVICE("max_cqe")},
        {"comp_vector", 0, NULL, "num_comp_vectors of struct ibv_context, less 1"},
        {"max_rd_atomic", 0, NULL, DEVICE("max_qp_init_rd_atom")},
        {"initiator_depth", 0, NULL, DEVICE("max_qp_init_rd_atom")},
        {"max_dest_rd_atomic", 0, NULL, DEVICE("max_qp_rd_atom")},
        {"responder_resources", 0, NULL, DEVICE("max_qp_rd_atom")},
        {"pkey_index", 0, NULL, "pkey_tbl_len of ibv_query_port(), less 1"},
        {"log_ind_tbl_size", 0, NULL,
         "max_rwq_indirection_table_size of ibv_query_device_ex(), as a power of 2"},
        {"length", 0, "ibv_alloc_dm", "max_dm_size of ibv_query_device_ex()"},
        {"private_data_len", 0, NULL, "the room that a message of the connection manager has for it"},
        {"timeout", 0, NULL, "an attribute of 5 bits"},
        {"min_rnr_timer", 0, NULL, "an attribute of 5 bits"},
        {"retry_cnt", 0, NULL, "an attribute of 3 bits"},
        {"rnr_retry", 0, NULL, "an attribute of 3 bits"},
        {"sl", 0, NULL, "an attribute of 4 bits"},
    };

    return find_limit(limits, array_size(limits), record, argument);
}

static void add_range(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low, high = record->high;
    const char *limit = limit_of(record, argument);

    words_add(words, "%s is %lld, but ", argument, (long long)record->value);
    if (low == high)
        words_add(words, "has to be %llu", low);
    else if (high == UINT64_MAX)
        words_add(words, "has to be at least %llu", low);
    else if (low == 0)
        words_add(words, "may be at most %llu", high);
    else
        words_add(words, "has to be %llu to %llu", low, high);
    if (limit && record->value > 0 && (uint64_t)record->value > record->high)
        words_add(words, " (%s)", limit);
}

/* Objects of which the process has as many as may be. */
static void add_count(struct words *words, const struct refused_record *record, const char *what)
{
    static const struct named_limit limits[] = {
        {"CQs", 0, NULL, DEVICE("max_cq")}, {"MRs", 0, NULL, DEVICE("max_mr")},
        {"MWs", 0, NULL, DEVICE("max_mw")}, {"MRs and MWs together", 0, NULL, DEVICE("max_mr and max_mw")},
        {"PDs", 0, NULL, DEVICE("max_pd")}, {"AHs", 0, NULL, DEVICE("max_ah")},
    };
    const char *limit = find_limit(limits, array_size(limits), record, what);

    words_add(words, "this process has %lld %s, and may have no more", (long long)record->value, what);
    if (limit)
        words_add(words, " (%s)", limit);
}

/* What an argument may be of which no number is the limit. */
static const char *valid_values(const char *argument)
{
    static const struct {
        const char *argument, *values;
    } all[] = {
        {"qp_type",
         "IBV_QPT_RC (2), IBV_QPT_UC (3), IBV_QPT_UD (4), IBV_QPT_RAW_PACKET (8), IBV_QPT_XRC_SEND "
         "(9) and IBV_QPT_XRC_RECV (10)"},
        {"qp_state", "IBV_QPS_RESET (0) to IBV_QPS_ERR (6)"},
        {"srq_type", "IBV_SRQT_BASIC (0), IBV_SRQT_XRC (1) and IBV_SRQT_TM (2)"},
        {"srq_type of srq", "IBV_SRQT_BASIC (0), and IBV_SRQT_TM (2) of a QP of type RC"},
        {"sa_family", "AF_INET (2), AF_INET6 (10) and AF_IB (27)"},
        {"ps", "RDMA_PS_IPOIB (2), RDMA_PS_TCP (262), RDMA_PS_UDP (273) and RDMA_PS_IB (319)"},
        {"size of a spec", "the size of the struct of its type"},
        {"type", "IBV_FLOW_ATTR_NORMAL (0), IBV_FLOW_ATTR_ALL_DEFAULT (1), IBV_FLOW_ATTR_MC_DEFAULT (2) and "
                 "IBV_FLOW_ATTR_SNIFFER (3)"},
    };

    for (size_t i = 0; i < array_size(all); i++) {
        if (strcmp(all[i].argument, argument) == 0)
            return all[i].values;
    }
    return NULL;
}

static void add_invalid(struct words *words, const struct refused_record *record, const char *argument)
{
    const char *values = valid_values(argument);

    words_add(words, "%s is %lld, but %s", argument, (long long)record->value,
              values ? "may only be " : "no such value is defined");
    if (values)
        words_add(words, "%s", values);
}

static void add_unsupported(struct words *words, const struct refused_record *record, const char *argument)
{
    words_add(words, "SoftHCA does not support %s", argument);
    if (record->value)
        words_add(words, " (0x%llx)", (unsigned long long)record->value);
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
        words_add(words,
                  "the send queue is permanently full: all %llu slots hold work requests that have ended, "
                  "and none of them was posted with IBV_SEND_SIGNALED",
                  slots);
    else if (!slots)
        words_add(words, "the %s has no slots: it was created with %s 0", argument, length_of(argument));
    else if (record->low == slots)
        words_add(
            words,
            "the %s is full: all %llu slots (%s) hold outstanding work requests; poll their completions, "
            "or create it with more",
            argument, slots, length_of(argument));
    else
        words_add(words,
                  "the %s is full: of %llu slots (%s) %llu hold outstanding work requests, the others are "
                  "free once "
                  "the completion of a later one is polled",
                  argument, slots, length_of(argument), (unsigned long long)record->low);
}

static const char *name_wq_state(uint32_t state)
{
    static const char *const names[] = {"IBV_WQS_RESET", "IBV_WQS_RDY", "IBV_WQS_ERR"};

    return state < array_size(names) ? names[state] : "?";
}

/* In words what the form says; false: there is nothing to say. */
static bool add_reason(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low, high = record->high, bits = (unsigned long long)record->value;
    long long value = record->value;
    uint8_t gid[16];

    switch ((enum refusal_form)record->form) {
    case REFUSAL_UNSAID:
    case REFUSAL_TOLD:
        return false;
    case REFUSAL_RANGE:
    case REFUSAL_TRIED:
        add_range(words, record, argument);
        break;
    case REFUSAL_BITS:
        words_add(words, "%s has ", argument);
        add_bits(words, (enum refusal_bits)low, bits & ~high);
        words_add(words, ", but may only have ");
        add_bits(words, (enum refusal_bits)low, high);
        break;
    case REFUSAL_NULL:
        words_add(words, "%s is NULL", argument);
        break;
    case REFUSAL_ELSEWHERE:
        words_add(
            words,
            "%s belongs to another struct ibv_context (ibv_open_device) than the other objects of the call",
            argument);
        break;
    case REFUSAL_OTHER_PD:
        words_add(words, "%s belongs to PD %llu, but the QP to PD %llu", argument, bits, low);
        break;
    case REFUSAL_UNSUPPORTED:
        add_unsupported(words, record, argument);
        break;
    case REFUSAL_INVALID:
        add_invalid(words, record, argument);
        break;
    case REFUSAL_UNALIGNED:
        words_add(words, "%s is 0x%llx, but has to be a multiple of %llu", argument, bits, low);
        break;
    case REFUSAL_WRAPS:
        words_add(words, "%llu bytes at 0x%llx (%s) go past the end of the address space", low, bits,
                  argument);
        break;
    case REFUSAL_COUNT:
        add_count(words, record, argument);
        break;
    case REFUSAL_MEMORY:
        words_add(words, "out of memory");
        break;
    case REFUSAL_TRANSITION:
        words_add(words, "%s to %s is not a transition of a QP of this type (from %s: to ",
                  name_qp_state((uint32_t)value & 255), name_qp_state((uint32_t)(value >> 8) & 255),
                  name_qp_state((uint32_t)value & 255));
        add_choice(words, low, name_qp_state);
        words_add(words, ")");
        break;
    case REFUSAL_MASK:
        add_mask(words, record);
        break;
    case REFUSAL_CURRENT:
        words_add(words, "cur_qp_state says %s, but the QP is in %s", name_qp_state((uint32_t)value),
                  name_qp_state((uint32_t)low));
        break;
    case REFUSAL_DRAINING:
        words_add(words, "the QP is in SQD and has outstanding sends (wait for IBV_EVENT_SQ_DRAINED)");
        break;
    case REFUSAL_QKEY:
        words_add(words, "qkey 0x%08llx has its top bit set, which needs CAP_NET_RAW", bits);
        break;
    case REFUSAL_MIGRATION:
        words_add(words, "%s: SoftHCA has no automatic path migration", argument);
        break;
    case REFUSAL_WQ_TRANSITION:
        words_add(words, "%s to %s is not a transition of a WQ (from %s: to ", name_wq_state((uint32_t)low),
                  name_wq_state((uint32_t)value), name_wq_state((uint32_t)low));
        add_choice(words, high, name_wq_state);
        words_add(words, ")");
        break;
    case REFUSAL_MTU:
        if (value < IBV_MTU_256 || value > IBV_MTU_4096)
            words_add(words, "%s is %lld, which is no enum ibv_mtu (IBV_MTU_256 is 1, IBV_MTU_4096 is 5)",
                      argument, value);
        else
            words_add(words, "%s is IBV_MTU_%u, but may be at most the port's active_mtu, IBV_MTU_%u",
                      argument, 128u << value, 128u << (low & 7));
        break;
    case REFUSAL_NO_GRH:
        words_add(words, "%s is 0: RoCE needs a GRH, so set is_global to 1 and grh.dgid to the peer's GID",
                  argument);
        break;
    case REFUSAL_NO_GID:
        words_add(words, "%s is %lld, where the port has no GID; it has ", argument, value);
        for (uint32_t i = 0; i < 32; i++) {
            if (low & 1ull << i)
                words_add(words, "%s%u", low & ((1ull << i) - 1) ? ", " : "", i);
        }
        if (!low)
            words_add(words, "others (ibv_query_gid_table)");
        break;
    case REFUSAL_ZERO:
        words_add(words, "%s is all zero", argument);
        break;
    case REFUSAL_MULTICAST:
        words_add(words, "%s is a multicast GID, to which only a UD QP can send", argument);
        break;
    case REFUSAL_UNICAST:
        words_add(words, "%s is not a multicast GID (ff00::/8, or ::ffff:224.0.0.0 and above)", argument);
        break;
    case REFUSAL_FAMILIES:
        words_add(words,
                  "grh.dgid and the GID at sgid_index %lld are an IPv4 and an IPv6 address: choose the "
                  "sgid_index of the "
                  "other family (ibv_query_gid_table)",
                  value);
        break;
    case REFUSAL_STATE:
        words_add(words, "the QP is in %s, but %s %s", name_qp_state((uint32_t)value), argument, "needs ");
        add_choice(words, low, name_qp_state);
        if (high)
            words_add(words, " or a later state");
        break;
    case REFUSAL_TYPE:
        words_add(words, "the QP is of type %s, but %s needs ", name_qp_type((uint32_t)value), argument);
        add_choice(words, low, name_qp_type);
        break;
    case REFUSAL_OPCODE:
        words_add(words, "opcode %s (%lld) is not possible on a QP of type %s",
                  name_send_opcode((uint32_t)value), value, name_qp_type((uint32_t)low));
        break;
    case REFUSAL_HAS_SRQ:
        words_add(words, "the QP receives from its SRQ: post there (ibv_post_srq_recv)");
        break;
    case REFUSAL_FULL:
    case REFUSAL_SILENT:
        add_queue(words, record, argument);
        break;
    case REFUSAL_INLINE:
        words_add(words, "IBV_SEND_INLINE is not possible with opcode %s", name_send_opcode((uint32_t)value));
        break;
    case REFUSAL_NO_ADDRESS:
        words_add(words, "a work request has no destination: %s is missing", argument);
        break;
    case REFUSAL_NEEDS_LOCAL_WRITE:
        words_add(words, "%s has ", argument);
        add_bits(words, BITS_ACCESS, bits & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
        words_add(words, ", which needs IBV_ACCESS_LOCAL_WRITE, too");
        break;
    case REFUSAL_UNMAPPED:
        add_page(words, record, "is not mapped");
        break;
    case REFUSAL_UNREADABLE:
        add_page(words, record, "is not readable");
        break;
    case REFUSAL_UNWRITABLE:
        add_page(words, record, "is not writable, and IBV_ACCESS_LOCAL_WRITE was requested");
        break;
    case REFUSAL_ID_STATE:
        words_add(words, "the id is in state \"%s\", but has to be \"", name_id_state((uint32_t)value));
        add_choice(words, low, name_id_state);
        words_add(words, "\"");
        break;
    case REFUSAL_UNCONNECTED:
        if (low)
            words_add(words, "the id is of RDMA_PS_UDP, which has no connections");
        else
            words_add(words, "the id is not connected (state \"%s\")", name_id_state((uint32_t)value));
        break;
    case REFUSAL_NO_DEVICE:
        words_add(words, "the id has no device yet: rdma_resolve_addr() and its event, or rdma_bind_addr() "
                         "to an address of one "
                         "device, come first");
        break;
    case REFUSAL_HAS_ONE:
        words_add(words, "the id already has %s", argument);
        break;
    case REFUSAL_NOT_OF_ID:
        words_add(words, "%s belongs to another struct ibv_context than id->verbs", argument);
        break;
    case REFUSAL_SENTENCE:
        words_add(words, "%s", argument);
        break;
    case REFUSAL_PORT_TAKEN:
        words_add(words, "port %lld is taken: another rdma_cm_id of this host is bound to it (softhca ps)",
                  value);
        break;
    case REFUSAL_PRIVILEGED:
        words_add(words,
                  "port %lld is below %llu (net.ipv4.ip_unprivileged_port_start), which needs "
                  "CAP_NET_BIND_SERVICE",
                  value, low);
        break;
    case REFUSAL_NO_ADAPTER:
        memcpy(gid, &record->low, sizeof(record->low));
        memcpy(gid + sizeof(record->low), &record->high, sizeof(record->high));
        words_add_gid(words, gid);
        words_add(words, " is the address of no RDMA device of this host (ibv_devinfo -v lists their GIDs)");
        break;
    default:
        return false;
    }
    return true;
}

/* What programs try in order to learn whether it is possible, or until it is, and the disconnect of what is not connected, at
 * the end: counted, and told by default only if the program fails. */
static bool may_be_meant(const struct refused_record *record)
{
    return record->error == EOPNOTSUPP || record->form == REFUSAL_UNSAID || record->form == REFUSAL_TRIED ||
           record->form == REFUSAL_UNSUPPORTED || record->form == REFUSAL_UNCONNECTED ||
           record->form == REFUSAL_NO_ADAPTER || (record->form == REFUSAL_FULL && record->value);
}

static void add_object(struct words *words, const struct refused_record *record)
{
    uint32_t number = record->number;

    switch (record->kind) {
    case OBJECT_QP:
        words_add(words, "QP 0x%06x", number);
        break;
    case OBJECT_MR:
        words_add(words, "MR with lkey 0x%08x", number);
        break;
    case OBJECT_WQ:
        words_add(words, "WQ 0x%06x", number);
        break;
    case 0:
        break;
    default:
        words_add(words, "%s %u", object_kind_name((enum object_kind)record->kind, 1), number);
        break;
    }
}

/* "ibv_post_send(QP 0x000012) fails with EINVAL: num_sge is 4, but may be at most 2" */
static void add_cause(struct words *words, const struct refused_record *record, const char *call,
                      const char *object, const char *argument)
{
    struct words reason = {.length = 0};

    words_add(words, "%s(%s) fails with %s", call, object, name_errno(record->error));
    if (add_reason(&reason, record, argument))
        words_add(words, ": %s", reason.text);
}

static bool describe(const struct view *view, struct out *out, const struct refused_record *record)
{
    struct words cause = {.length = 0}, reason = {.length = 0}, object = {.length = 0};
    char call[sizeof(record->call)], argument[sizeof(record->argument)];

    printable(call, record->call, sizeof(call) - 1);
    printable(argument, record->argument, sizeof(argument) - 1);
    if (record->kind < OBJECT_KINDS)
        add_object(&object, record);
    add_cause(&cause, record, call, object.text, argument);
    out->wrong = !may_be_meant(record);
    out->remarks[REMARK_REFUSED] = 1;
    explanation_begin(view, out, "refused", cause.text);
    out_string(out, "call", call);
    out_string(out, "errno", name_errno(record->error));
    out_string(out, "label", object.text);
    out_string(out, "argument", argument);
    out_number(out, "form", record->form);
    out_signed(out, "value", record->value);
    out_number(out, "low", record->low);
    out_number(out, "high", record->high);
    out_number(out, "times", record->count);
    out_number(out, "ms_ago", view_age(view, record->last_ns));
    words_add(&reason, "called by ");
    words_add_thread(view, &reason, record->called_by);
    if (record->count > 1)
        words_add(&reason, ", %u times from there", record->count);
    if (view_age(view, record->first_ns) > PRESENT_MS) {
        words_add(&reason, record->count > 1 ? ", the first time " : ", ");
        words_add_age(&reason, view_age(view, record->first_ns));
    }
    out_line(out, 1, "%s", reason.text);
    stack_describe(view, out, "stack", 2, record->called_stack, STACK_LINES);
    if (record->form == REFUSAL_SILENT)
        out_line(out, 1,
                 "slots are free once the completion of a later, signaled one is polled: signal at least one "
                 "of each %llu "
                 "requests",
                 (unsigned long long)record->value);
    explanation_end(out);
    return true;
}

bool explain_refusal(const struct view *view, struct out *out, uint32_t number)
{
    struct refused_record record;

    return view_record(view, &view->header.refusals, number, &record) && record.state == 1 &&
           describe(view, out, &record);
}

void refusals_describe(const struct view *view, struct out *out, unsigned level, enum object_kind kind,
                       uint32_t number)
{
    out_begin_array(out, "refused");
    for (uint32_t i = 0; i < SEGMENT_REFUSALS; i++) {
        struct words cause = {.length = 0}, object = {.length = 0};
        struct refused_record record;
        char call[sizeof(record.call)], argument[sizeof(record.argument)];

        if (!view_record(view, &view->header.refusals, i, &record) || record.state != 1 ||
            record.kind != (uint32_t)kind || record.number != number)
            continue;
        printable(call, record.call, sizeof(call) - 1);
        printable(argument, record.argument, sizeof(argument) - 1);
        add_object(&object, &record);
        add_cause(&cause, &record, call, object.text, argument);
        out_string(out, NULL, cause.text);
        out_line(out, level, "%s, %u time%s", cause.text, record.count, record.count == 1 ? "" : "s");
    }
    out_end_array(out);
}

unsigned explain_refusals(const struct view *view, struct out *out)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < SEGMENT_REFUSALS; i++)
        count += explain_refusal(view, out, i);
    return count;
}
