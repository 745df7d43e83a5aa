/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The words of fault specifications. Each enumeration has a table of names; the last value is the number of them. */
#ifndef INJECT_NAMES_H
#define INJECT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum inject_kind {
    INJECT_CALL,
    INJECT_LIMIT,
    INJECT_COMPLETION,
    INJECT_EVENT,
    INJECT_PACKET,
    INJECT_CM,
    INJECT_KINDS
};

enum inject_call {
    CALL_OPEN_DEVICE,
    CALL_ALLOC_PD,
    CALL_ALLOC_MW,
    CALL_ALLOC_DM,
    CALL_REG_MR,
    CALL_REREG_MR,
    CALL_CREATE_COMP_CHANNEL,
    CALL_CREATE_CQ,
    CALL_RESIZE_CQ,
    CALL_REQ_NOTIFY_CQ,
    CALL_CREATE_SRQ,
    CALL_MODIFY_SRQ,
    CALL_CREATE_QP,
    CALL_MODIFY_QP,
    CALL_CREATE_AH,
    CALL_CREATE_WQ,
    CALL_MODIFY_WQ,
    CALL_CREATE_FLOW,
    CALL_ATTACH_MCAST,
    CALL_BIND_MW,
    CALL_POST_SEND,
    CALL_POST_RECV,
    CALL_POST_SRQ_RECV,
    INJECT_CALLS
};

enum inject_limit {
    INJECT_MAX_QP,
    INJECT_MAX_QP_WR,
    INJECT_MAX_SGE,
    INJECT_MAX_INLINE,
    INJECT_MAX_CQ,
    INJECT_MAX_CQE,
    INJECT_MAX_MR,
    INJECT_MAX_MR_SIZE,
    INJECT_MAX_PD,
    INJECT_MAX_SRQ,
    INJECT_MAX_SRQ_WR,
    INJECT_LIMITS
};

/* What becomes of a completion. */
enum inject_outcome {
    OUTCOME_LOC_LEN_ERR,
    OUTCOME_LOC_QP_OP_ERR,
    OUTCOME_LOC_PROT_ERR,
    OUTCOME_MW_BIND_ERR,
    OUTCOME_BAD_RESP_ERR,
    OUTCOME_REM_INV_REQ_ERR,
    OUTCOME_REM_ACCESS_ERR,
    OUTCOME_REM_OP_ERR,
    OUTCOME_RETRY_EXC_ERR,
    OUTCOME_RNR_RETRY_EXC_ERR,
    OUTCOME_DELAYED, /* as it would be, after a time */
    OUTCOME_NEVER,   /* none, of a request that succeeds */
    INJECT_OUTCOMES
};

enum inject_packet {
    INJECT_DROP,
    INJECT_DUPLICATE,
    INJECT_CORRUPT,
    INJECT_DELAY,
    INJECT_REORDER,
    INJECT_RATE,
    INJECT_MARK,
    INJECT_PACKETS
};
/* Of packets: both, or one. */
enum inject_class { INJECT_ALL_PACKETS, INJECT_REQUESTS, INJECT_RESPONSES, INJECT_CLASSES };

/* What becomes of a connection of rdma_cm: the event (enum rdma_cm_event_type) that the program gets. */
enum inject_cm {
    INJECT_ADDR_ERROR,
    INJECT_ROUTE_ERROR,
    INJECT_REJECTED,
    INJECT_UNREACHABLE,
    INJECT_DISCONNECTED,
    INJECT_CMS
};
enum inject_end { INJECT_ACTIVE, INJECT_PASSIVE, INJECT_ENDS };
/* Reasons of a REJ (IBA table 106), by number from 1; NULL: none has it. */
#define INJECT_REASONS  36
#define INJECT_CONSUMER 28

enum inject_event {
    INJECT_DEVICE_FATAL,
    INJECT_QP_FATAL,
    INJECT_CQ_ERR,
    INJECT_SRQ_LIMIT,
    INJECT_PATH_MIG_ERR,
    INJECT_GID_CHANGE,
    INJECT_CLIENT_REREGISTER,
    INJECT_PORT_DOWN,
    INJECT_PORT_UP,
    INJECT_EVENTS
};

extern const char *const inject_kind_names[INJECT_KINDS];
extern const char *const inject_call_names[INJECT_CALLS];
extern const char *const inject_limit_names[INJECT_LIMITS];
extern const char *const inject_outcome_names[INJECT_OUTCOMES];
extern const char *const inject_event_names[INJECT_EVENTS];
extern const char *const inject_cm_names[INJECT_CMS];
extern const char *const inject_packet_names[INJECT_PACKETS];

/* outcome.c: the table of status, opcode and side. */
struct inject_outcome_row {
    uint8_t verdict;     /* enum verdict, of a send that fails on its own side */
    uint32_t sends;      /* opcodes of sends that may end so, by bit; 0: none */
    bool receives;       /* a receive may end so */
    bool needs_peer;     /* of QPs with acknowledgements only: RC, XRC */
    const char *instead; /* what makes it arise, if nothing on this side does */
};
extern const struct inject_outcome_row inject_outcomes_table[INJECT_OUTCOMES];

#define INJECT_TIME_MAX 3600000000000u /* an hour, in ns */
#define INJECT_RATE_MAX 1000000000000u /* bit/s */

/* Is the word that name, without case? */
bool inject_is_word(const char *name, const char *word, size_t length);
/* units.c: reads digits from the beginning of the word, and returns how many; 0: none, or the number is above
 * `most`. */
size_t inject_digits(const char *word, size_t length, uint64_t most, uint64_t *ret);
/* "250us", "2s"; "64kbit", "10Mbit" for bits in a second. False: none, 0, or more than the above. */
bool inject_duration(const char *word, size_t length, uint64_t *ret_ns);
bool inject_bit_rate(const char *word, size_t length, uint64_t *ret_bits);
/* Index of the word, or -1. */
int inject_find(const char *const *names, size_t count, const char *word, size_t length);
/* The word that takes the fewest changes of a letter to become this one. */
const char *inject_nearest(const char *const *names, size_t count, const char *word, size_t length);
/* errno by name or number; 0: neither. *ret_nearest: of the names. */
int inject_errno(const char *word, size_t length, const char **ret_nearest);
/* "ENOMEM"; of a number without a name: strerror()'s text. */
const char *inject_errno_name(int error);
/* Reason of a REJ by name or number; 0: neither. *ret_nearest: of the names. */
uint16_t inject_reason(const char *word, size_t length, const char **ret_nearest);
/* "CONSUMER_DEFINED"; NULL: the number has no name. */
const char *inject_reason_name(uint64_t reason);
/* Bits of enum ibv_wr_opcode that the word names, without case; 0: none. SEND, RDMA_WRITE and ATOMIC are all of their
 * kind. */
uint32_t inject_opcodes(const char *word, size_t length, const char **ret_nearest);

#endif
