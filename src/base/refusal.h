/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why a call of the program fails. The rule that refuses it notes the reason here, for its thread; the front of the
 * library, which knows the call and returns the error, has it recorded (segment/refused.h). Nothing is written where
 * nothing is refused. */
#ifndef BASE_REFUSAL_H
#define BASE_REFUSAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

/* What is wrong with the argument, and what value, low and high are. The numbers are in published segments: new ones
 * go to the end. explain/refused.c has the words. */
enum refusal_form {
    REFUSAL_UNSAID,      /* no rule has said */
    REFUSAL_TOLD,        /* explained otherwise: the object is destroyed */
    REFUSAL_RANGE,       /* value is not one of low to high */
    REFUSAL_TRIED,       /* the same, of what programs find out by trying */
    REFUSAL_BITS,        /* value has bits that are not in high; low: enum refusal_bits */
    REFUSAL_NULL,        /* it is NULL */
    REFUSAL_ELSEWHERE,   /* an object of another device context */
    REFUSAL_OTHER_PD,    /* value: its PD; low: that of the QP */
    REFUSAL_UNSUPPORTED, /* value is possible on other adapters */
    REFUSAL_INVALID,     /* value is nothing that exists */
    REFUSAL_UNALIGNED,   /* value is no multiple of low */
    REFUSAL_WRAPS,       /* a range of low bytes at value goes past the end of the address space */
    REFUSAL_COUNT,       /* there are value of them, as many as may be */
    REFUSAL_MEMORY,      /* the system has no memory */
    /* modify */
    REFUSAL_TRANSITION, /* value: from and, times 256, to; low: states that are possible, as bits */
    REFUSAL_MASK, /* as above, and times 65536 the type; low: bits that are missing; high: that are not taken */
    REFUSAL_CURRENT,       /* value: cur_qp_state; low: the state */
    REFUSAL_DRAINING,      /* in SQD with sends under way */
    REFUSAL_QKEY,          /* value: a Q_Key with the top bit set */
    REFUSAL_MIGRATION,     /* alternate paths */
    REFUSAL_MTU,           /* value, and low, the largest: enum ibv_mtu */
    REFUSAL_WQ_TRANSITION, /* value, low: to, from: enum ibv_wq_state; high: states that are possible, as bits */
    /* paths */
    REFUSAL_NO_GRH,    /* is_global is 0 */
    REFUSAL_NO_GID,    /* value: sgid_index without a GID; low: mask of those that there are */
    REFUSAL_ZERO,      /* it is all zero */
    REFUSAL_MULTICAST, /* of a connected QP: a group */
    REFUSAL_UNICAST,   /* it is no group */
    /* An IPv4 and an IPv6 address. value: sgid_index; low: grh.dgid is 1: IPv4, 2: IPv6, 0: not known; high: 1 + an
     * sgid_index that fits it, 0: none. */
    REFUSAL_FAMILIES,
    /* posts */
    REFUSAL_STATE,   /* value: the state; low: states in which it is possible, as bits; high: 1: a receive */
    REFUSAL_TYPE,    /* value: type of the QP; low: types that can, as bits */
    REFUSAL_OPCODE,  /* value: opcode; low: type of the QP */
    REFUSAL_HAS_SRQ, /* the QP receives by an SRQ */
    /* value: slots; low: of them under way; high: 1: receives of a watched process, which count until their
     * completion is polled */
    REFUSAL_FULL,
    REFUSAL_SILENT,     /* value: slots of a send queue, none signaled */
    REFUSAL_INLINE,     /* value: opcode that cannot be inline */
    REFUSAL_NO_ADDRESS, /* extended post without ibv_wr_set_ud_addr() or _set_xrc_srqn() */
    /* memory */
    REFUSAL_NEEDS_LOCAL_WRITE, /* value: access flags */
    REFUSAL_UNMAPPED,          /* value: address of the page; low, high: address and length of the range */
    REFUSAL_UNREADABLE,
    REFUSAL_UNWRITABLE,
    /* librdmacm */
    REFUSAL_ID_STATE, /* value: enum id_state; low: states in which it is possible, as bits */
    REFUSAL_NO_DEVICE,
    REFUSAL_UNCONNECTED, /* value: enum id_state; low: 1: datagrams, which have no connection */
    REFUSAL_HAS_ONE,     /* the id has one already */
    REFUSAL_NOT_OF_ID,   /* an object of another device context than the id's */
    REFUSAL_SENTENCE,    /* argument is the whole reason */
    REFUSAL_PORT_TAKEN,  /* value: port, which another id of the host has */
    REFUSAL_PRIVILEGED,  /* value: port, which takes CAP_NET_BIND_SERVICE; low: the first one that does not */
    REFUSAL_NO_ADAPTER,  /* low, high: bytes of a GID, which no device has */
    REFUSAL_HOLDS,       /* value is less than low, as many as the CQ or SRQ holds */
    REFUSAL_WQ_CURRENT,  /* value: curr_wq_state; low: the state; both enum ibv_wq_state */
    REFUSAL_SPECS, /* value: size of a flow attribute, which its specs do not fit; low: how many they are */
};

/* Of an argument, and of a sentence, with its end: more is not recorded. */
#define REFUSAL_TEXT 96

/* What the bits of REFUSAL_BITS are. */
enum refusal_bits {
    BITS_PLAIN,
    BITS_QP_MASK,
    BITS_ACCESS,
    BITS_SEND_FLAGS,
    BITS_CREATE_FLAGS,
    BITS_WC_FLAGS,
    BITS_FLOW_FLAGS,
    BITS_FLUSH_TYPES,
};

struct refusal {
    enum refusal_form form;
    int error;            /* negative; the reason is void for another one */
    const char *argument; /* in static memory, as the program calls it: "cap.max_send_wr" */
    int64_t value;
    uint64_t low, high;
    uint32_t kind;   /* of the object: enum object_kind; 0: none */
    uint32_t number; /* by which programs know it */
};

/* Each notes the reason, and returns the error. */
int refuse(int error, enum refusal_form form, const char *argument, int64_t value, uint64_t low,
           uint64_t high);
int refuse_range(const char *argument, int64_t value, uint64_t low, uint64_t high); /* -EINVAL */
int refuse_bits(int error, const char *argument, enum refusal_bits names, uint64_t value, uint64_t allowed);
int refuse_null(const char *argument); /* -EINVAL */
/* The same of what comp_mask tells of: its bit is missing, or the argument is NULL. -EINVAL */
#define refuse_missing(comp_mask, bit, argument)                                                             \
    ((comp_mask) & (bit) ? refuse_null(argument) : refuse_because(-EINVAL, "comp_mask lacks " #bit))
int refuse_elsewhere(const char *argument); /* -EINVAL */
int refuse_unsupported(const char *argument, int64_t value);
int refuse_invalid(const char *argument, int64_t value); /* -EINVAL */
int refuse_count(const char *of_what, uint64_t count);   /* -ENOMEM */
int refuse_memory(void);                                 /* -ENOMEM */
/* Where neither a value nor a limit says it. */
#define refuse_because(error, sentence)                                                                      \
    ({                                                                                                       \
        _Static_assert(sizeof(sentence) <= REFUSAL_TEXT, "the record has room for it");                      \
        refuse((error), REFUSAL_SENTENCE, (sentence), 0, 0, 0);                                              \
    })
/* Names the object that the call is about. error: 0, or what the call returns. */
void refusal_name_object(int error, uint32_t kind, uint32_t number);
static inline int refused_of(int error, uint32_t kind, uint32_t number)
{
    if (unlikely(error != 0))
        refusal_name_object(error, kind, number);
    return error;
}
/* Takes the reason for that error; false: nothing was noted for it. */
bool refusal_take(int error, struct refusal *ret);

#endif
