/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the ends of a connection have to agree on, with the values of both, and how long one waits for the other. */
#include "explain/explain.h"
#include "rules/timing.h"

void words_add_too_many_reads(struct words *words, const struct object *requester,
                              const struct object *responder)
{
    unsigned long long limit = responder->rare.fault.wanted;

    words_add(words,
              "more RDMA READs and atomics at once than max_dest_rd_atomic of QP 0x%06x permits (%llu): ",
              object_qpn(responder), limit);
    if (requester)
        words_add(words, "max_rd_atomic of QP 0x%06x is %u, but may be at most %llu", object_qpn(requester),
                  requester->qp.attributes.max_rd_atomic, limit);
    else
        words_add(words, "max_rd_atomic of QP 0x%06x may be at most %llu", responder->qp.attributes.dest_qpn,
                  limit);
}

uint32_t qp_mtu_bytes(const struct object *qp)
{
    return 128u << (qp->qp.attributes.path_mtu & 7);
}

void words_add_packet_length(struct words *words, const struct object *requester,
                             const struct object *responder)
{
    const struct fault_record *fault = &responder->rare.fault;
    uint32_t theirs = qp_mtu_bytes(responder);

    words_add(words, "path_mtu of the two ends %s: it is %u bytes at QP 0x%06x, and ",
              requester || fault->wanted < UINT32_MAX ? "differs" : "probably differs", theirs,
              object_qpn(responder));
    if (requester)
        words_add(words, "%u at QP 0x%06x", qp_mtu_bytes(requester), object_qpn(requester));
    else if (fault->wanted < UINT32_MAX) /* the smaller one of the two */
        words_add(words, "%s at QP 0x%06x", fault->wanted < theirs ? "less" : "more",
                  responder->qp.attributes.dest_qpn);
    else
        words_add(words, "a packet with %llu bytes of payload came from QP 0x%06x",
                  (unsigned long long)fault->value, responder->qp.attributes.dest_qpn);
}

/* The tries in count and time: the attributes have exponents. Each retry on the network waits longer
 * (transport/retry.c). */
void words_add_tries(struct words *words, const struct qp_attributes *attributes)
{
    static const struct {
        ns_t ns;
        const char *name;
    } units[] = {{NS_PER_S, "s"}, {NS_PER_MS, "ms"}, {NS_PER_US, "us"}};
    ns_t timeout = timing_ack_timeout(attributes->timeout), tenths;
    unsigned tries = attributes->retry_count + 1u, unit = 0;

    words_add(words, "%u %s", tries, tries == 1 ? "try" : "tries");
    if (timeout != NS_NEVER) {
        while (timeout < units[unit].ns && unit + 1 < array_size(units))
            unit++;
        tenths = (timeout + units[unit].ns / 20) / (units[unit].ns / 10);
        words_add(words, ", each of at least %llu.%llu %s", (unsigned long long)(tenths / 10),
                  (unsigned long long)(tenths % 10), units[unit].name);
    }
    words_add(words, " (timeout code %u, retry_cnt %u)", attributes->timeout, attributes->retry_count);
}
