/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Adapters, links and a clock in memory: transport under loss, reordering, duplication, delay and silence,
 * deterministic for a given seed. owner.c is a minimal substitute for the owner of the QPs (object/, engine/). */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "../unit/unit.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "judge.h"
#include "transport/qp.h"
#include "wire/opcode.h"

enum {
    SIM_NODES = 8,
    SIM_QPS = 128,
    SIM_DEPTH = 64,
    SIM_SGE = 8,
    SIM_INLINE = 256,
    SIM_LOG = 8192,
    SIM_RESOURCES = 16,
    SIM_PD = 7,
    SIM_OTHER_SRQ = 0x10, /* in the number of the second SRQ of a process */
    SIM_SRQN = 0xabcd00   /* the SRQ of an XRC QP; those of its delegates have the next numbers */
};

struct sim_link {
    const char *name;
    struct link_properties properties;
    uint32_t capacity;     /* packets in flight per QP and direction, 0: no limit; more: -EAGAIN */
    ns_t delay, jitter;    /* jitter reorders on links that are not reliable */
    uint64_t loss_mask;    /* bit i: the i-th packet is lost */
    unsigned void_percent; /* RC references that another QP has revoked */
    unsigned loss_percent, duplicate_percent, corrupt_percent, reorder_percent;
    /* How many of these may hit one sender before it makes progress; fewer than retry_count do not fail it. 0: any. */
    unsigned patience;
    bool blackhole;
    bool encoded, ipv6; /* packets travel as bytes with an ICRC, over IPv4 or IPv6 */
    /* Into each adapter: bytes per microsecond (0: no limit); length of the queue in bytes (0: no limit), and from
     * which length packets are marked with ECN (0: never). */
    uint32_t rate, queue, mark;
};

/* Predefined links. */
extern const struct sim_link sim_ring, sim_ring_cma, sim_wire;

struct sim_completion {
    uint64_t wr_id;
    enum verdict verdict;
    enum ibv_wc_opcode opcode;
    uint32_t byte_len, wc_flags, imm_or_rkey, src_qpn;
    uint8_t service_level;
    bool solicited;
    uint32_t app_ctx;
    uint64_t tag;
};

struct sim_receives {
    uint32_t posted, taken;
    uint32_t pd;
    char *slots;
};

struct sim_qp {
    struct transport_qp transport;
    struct qp_record record;
    struct qp_rare rare;
    struct sim_node *node;
    struct sim_receives *receives; /* own, or shared */
    struct sim_receives own;
    const struct recv_wqe *taken;
    uint64_t taken_id;
    uint32_t taken_srqn;
    struct sim_completion *sent, *received;
    unsigned sent_count, received_count;
    uint32_t sent_before; /* initial value of the counters */
    unsigned comm_est, access_errors, request_errors, drained_count, sender_failures, responder_failures;
    ns_t failed_at;
    uint64_t timer_generation, timer_changes;
    bool timer_runs;
    uint32_t in_flight; /* packets of this QP on the link */
    bool blocked;       /* send() returned -EAGAIN: run when there is room */
    bool kicked;
    bool loses, peer_loses, recovers; /* as qp.by_packets says it: sim_lose() */
    uint32_t held_at;                 /* while it recovers: sender.begun */
    bool lazy_ack;                    /* delays acknowledgements, as the engine does */
    struct responder_resource resources[SIM_RESOURCES];
    unsigned hits; /* since unacked_psn moved last */
    psn_t hits_at;
    ns_t congestion_at; /* earliest time of the next congestion notification */
    unsigned congestions;
    struct judge judge;
    struct tag_list *tags;           /* with transport.tag_matching */
    uint32_t srqn;                   /* XRC_RECV: the SRQ with its receives */
    uint32_t places;                 /* copies of waiting datagrams, a power of two; 0: no memory */
    struct sim_delegates *delegates; /* sim_delegate() */
    void *user;
};

struct sim_node {
    struct sim *sim;
    unsigned number;
    uint16_t reference_epoch; /* of the node's packets */
    struct key_table *keys;
    uint32_t next_slot;
    struct sim_buffer *buffers;
    ns_t free_at; /* time when the queue in front of the adapter is empty */
};

/* Registered memory between guards. */
struct sim_buffer {
    struct sim_buffer *next;
    unsigned char *bytes; /* page of guards, the memory, guards */
    size_t length;
    uint64_t address;
    uint32_t lkey, rkey, slot;
};

struct sim {
    ns_t now;
    uint64_t random;
    struct sim_link link;
    uint64_t packets, lost, overflowed, duplicated, reordered, corrupted, pulled, voided, silenced;
    uint32_t next_qpn;
    struct sim_node node[SIM_NODES];
    const struct sim_node *arrives_from; /* the packet that is being received */
    struct sim_qp *qps[SIM_QPS];
    unsigned qp_count;
    struct sim_event *heap;
    size_t events, capacity;
    uint64_t sequence;
    bool refuse_pull;    /* references are unreadable */
    bool made_up_memory; /* references name no registered memory, but can be read and written */
    bool unjudged;       /* forged packets: the judge does not check what is sent */
    bool trace;
    void (*on_packet)(struct sim *sim, struct packet *packet);   /* may change a packet before delivery */
    bool (*loses)(struct sim *sim, const struct packet *packet); /* true: a lossy link loses the packet */
    void (*on_take)(struct sim_qp *qp);
    void (*on_sent)(struct sim_qp *qp, const struct sim_completion *completion);
    void (*on_received)(struct sim_qp *qp, const struct sim_completion *completion);
    unsigned delivered[32]; /* packets by operation */
    unsigned piggybacked;
    unsigned plain;       /* requests that transport/sender_plain.c has sent */
    unsigned plain_asked; /* how often it asked for the link */
};

struct sim *sim_new(const struct sim_link *link, uint64_t seed);
/* Checks every guard and frees. */
void sim_free(struct sim *sim);
uint64_t sim_random(struct sim *sim);
static inline uint32_t sim_below(struct sim *sim, uint32_t limit)
{
    return (uint32_t)(sim_random(sim) % limit);
}

struct sim_buffer *sim_buffer(struct sim_node *node, size_t length, uint32_t access);
struct sim_buffer *sim_null_region(struct sim_node *node);
/* Publishes an MW in a free slot; returns its rkey. */
uint32_t sim_window(struct sim_node *node, enum key_kind kind);
void sim_pattern(void *bytes, size_t length, uint64_t seed);
bool sim_is_pattern(const void *bytes, size_t length, uint64_t seed);

struct sim_qp *sim_qp(struct sim_node *node, enum ibv_qp_type type);
/* State changes for tests that set attributes before they connect. */
void sim_to_init(struct sim_qp *qp);
void sim_to_rtr(struct sim_qp *qp, struct sim_qp *peer, uint32_t rq_psn);
void sim_to_rts(struct sim_qp *qp, uint32_t sq_psn);
void sim_to_error(struct sim_qp *qp);
void sim_set_state(struct sim_qp *qp, enum ibv_qp_state state);
void sim_connect(struct sim_qp *a, struct sim_qp *b);
void sim_pair(struct sim *sim, enum ibv_qp_type type, struct sim_qp **ret_a, struct sim_qp **ret_b);

/* The QP of a link that loses nothing loses packets that it sends, by the percentages of the link, or does no longer.
 * Its peer hears of it by the next packet. */
void sim_lose(struct sim_qp *qp, bool loses);

/* From now on another process (with its own adapter) executes the requests of a connected XRC_RECV QP for this SRQ,
 * as object/xrc/delegate.h does; the QP that is returned has the SRQ's receives. The rings between processes lose
 * nothing but have little room. */
struct sim_qp *sim_delegate(struct sim_qp *qp, uint32_t srqn);

struct sim_wr {
    uint64_t wr_id;
    enum ibv_wr_opcode opcode;
    unsigned flags; /* enum send_wqe_flags */
    unsigned num_sge;
    struct wqe_sge sge[SIM_SGE];
    const void *inline_data;
    uint32_t inline_length;
    uint32_t imm_or_rkey, rkey;
    uint64_t remote_address, compare_add, swap;
    struct mw_bind bind;
    uint32_t remote_qpn, remote_qkey;
    uint32_t srqn; /* XRC; 0: SIM_SRQN */
    struct path_address to;
};
/* Does not transmit. */
void sim_queue_send(struct sim_qp *qp, const struct sim_wr *wr);
void sim_post_send(struct sim_qp *qp, const struct sim_wr *wr);
bool sim_send_queue_is_full(const struct sim_qp *qp);
void sim_post_recv(struct sim_qp *qp, uint64_t wr_id, const struct wqe_sge *sge, unsigned num_sge);
void sim_share_receives(struct sim_qp *qp, struct sim_qp *with);

#define SGE(buffer, offset, size)                                                                            \
    ((struct wqe_sge){.address = (buffer)->address + (offset), .length = (size), .lkey = (buffer)->lkey})

/* Runs until no event is left, or so much time has passed. */
void sim_run_for(struct sim *sim, ns_t duration);
void sim_run(struct sim *sim);
/* Calls back after a delay. */
void sim_at(struct sim *sim, ns_t delay, void (*call)(struct sim *sim, void *argument), void *argument);
/* Runs the sender and the responder of a QP, as its owner does. */
void sim_kick(struct sim_qp *qp);
/* Drops all packets in flight and all timers; frees a pair of QPs that the test has taken out of qps[]. */
void sim_drop_packets(struct sim *sim);
void sim_drop_pair(struct sim_qp *a, struct sim_qp *b);
/* Delivers a forged packet to a QP. */
void sim_inject(struct sim_qp *qp, const struct packet *packet);

#define assert_sent(qp, index, id, what)                                                                     \
    do {                                                                                                     \
        assert_true((index) < (qp)->sent_count);                                                             \
        assert_int_equal((qp)->sent[index].wr_id, (id));                                                     \
        assert_string_equal(verdict_name((qp)->sent[index].verdict), verdict_name(what));                    \
    } while (0)
#define assert_received(qp, index, id, what)                                                                 \
    do {                                                                                                     \
        assert_true((index) < (qp)->received_count);                                                         \
        assert_int_equal((qp)->received[index].wr_id, (id));                                                 \
        assert_string_equal(verdict_name((qp)->received[index].verdict), verdict_name(what));                \
    } while (0)

#endif
