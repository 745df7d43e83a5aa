/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that a user asks for (softhca-fault(7)): one rule per specification. No I/O, clock, lock or allocation: the
 * tool and the adapter read the same specification by the same code. */
#ifndef INJECT_RULE_H
#define INJECT_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/verbs.h"
#include "inject/names.h"

#define INJECT_TEXT_MAX  192u /* bytes of a specification, with its terminating zero */
#define INJECT_RULES_MAX 32u
#define INJECT_NAME_MAX  64u

enum inject_side { INJECT_SEND, INJECT_RECEIVE };

struct inject_rule {
    uint8_t kind;     /* enum inject_kind */
    uint8_t what;     /* enum inject_call, _limit, _event, _outcome, ...: as the kind says */
    uint8_t side;     /* completion: enum inject_side; cm: enum inject_end */
    uint8_t of;       /* packet: enum inject_class */
    uint8_t at;       /* event, cm=DISCONNECTED without a time: enum inject_call that is counted */
    int32_t error;    /* call, cm=ADDR_ERROR and ROUTE_ERROR: positive errno */
    int32_t pid;      /* 0: any */
    uint32_t qp;      /* QP of the process by its order of creation, from 1; 0: any */
    uint32_t opcodes; /* by bit of enum ibv_wr_opcode; 0: any */
    /* Among what matches: the first that is met, how many (0: all from there on), and each how manieth. */
    uint32_t first, count, every;
    uint32_t parts; /* of INJECT_WHOLE, by chance; 0: counted */
    uint64_t seed;
    uint64_t value; /* limit: the limit; packet=rate: bits in a second; packet=reorder: later packets;
                     * cm=REJECTED: the reason */
    uint64_t time;  /* ns: how long a packet or completion is held, a port is down, a connection lasts; 0: not
                     * said */
    char exe[INJECT_NAME_MAX], device[INJECT_NAME_MAX];
    char text[INJECT_TEXT_MAX]; /* as it was given */
};

#define INJECT_WHOLE 1000000u

/* Reads one specification. false: ret_why says what is wrong with it, and which word is the nearest. */
bool inject_parse(const char *text, struct inject_rule *ret_rule, char *ret_why, size_t why_size);
/* Splits a list at ';' and line ends; '#' begins a comment. Returns the length of the next specification, which begins
 * at *text; 0: none is left. *text + length is where to go on. */
size_t inject_next(const char **text);

/* What a decision is about. */
struct inject_point {
    uint32_t qp;           /* by its order of creation */
    uint32_t direction;    /* completion: enum inject_side; packet: enum inject_class */
    uint32_t index;        /* PSN, or number of the request */
    uint32_t transmission; /* 0: the first */
};
/* Does the rule strike? A function of its arguments. match: the how manieth this is of what the rule selects, from
 * 1. */
bool inject_strikes(const struct inject_rule *rule, uint32_t match, const struct inject_point *point);

/* Are the program and the process those that the rule selects? exe: without folder. */
bool inject_is_for_process(const struct inject_rule *rule, const char *exe, int32_t pid);
static inline bool inject_is_for_opcode(const struct inject_rule *rule, unsigned opcode)
{
    return !rule->opcodes || (opcode < 32 && rule->opcodes >> opcode & 1);
}

#endif
