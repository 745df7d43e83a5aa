/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The grammar of fault specifications (softhca-fault(7)): KIND=WHAT, then KEY=VALUE in any order, between blanks or
 * commas. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"
#include "inject/rule.h"

/* The keys, and the kinds that have them, by bit of enum inject_kind. */
enum key {
    KEY_ERRNO,
    KEY_VALUE,
    KEY_N,
    KEY_COUNT,
    KEY_EVERY,
    KEY_PERCENT,
    KEY_SEED,
    KEY_EXE,
    KEY_PID,
    KEY_DEVICE,
    KEY_QP,
    KEY_OPCODE,
    KEY_SIDE,
    KEY_AT,
    KEY_OF,
    KEY_TIME,
    KEY_BY,
    KEY_LIMIT,
    KEY_REASON,
    KEYS
};

#define OF(kind) (1u << (kind))
#define ALL      (OF(INJECT_KINDS) - 1)
#define COUNTED  (ALL & ~OF(INJECT_LIMIT))

#define REORDER_MAX 1000u
#define REORDER_TIME                                                                                         \
    10000000u /* ns: a packet that is reordered leaves after this at the latest, if nothing else is said */

static const char *const key_names[KEYS] = {
    [KEY_ERRNO] = "errno", [KEY_VALUE] = "value",     [KEY_N] = "n",           [KEY_COUNT] = "count",
    [KEY_EVERY] = "every", [KEY_PERCENT] = "percent", [KEY_SEED] = "seed",     [KEY_EXE] = "exe",
    [KEY_PID] = "pid",     [KEY_DEVICE] = "device",   [KEY_QP] = "qp",         [KEY_OPCODE] = "opcode",
    [KEY_SIDE] = "side",   [KEY_AT] = "at",           [KEY_OF] = "of",         [KEY_TIME] = "time",
    [KEY_BY] = "by",       [KEY_LIMIT] = "limit",     [KEY_REASON] = "reason",
};

static const uint32_t key_kinds[KEYS] = {
    [KEY_ERRNO] = OF(INJECT_CALL) | OF(INJECT_CM),
    [KEY_VALUE] = OF(INJECT_LIMIT),
    [KEY_N] = COUNTED,
    [KEY_COUNT] = COUNTED,
    [KEY_EVERY] = COUNTED,
    [KEY_PERCENT] = COUNTED,
    [KEY_SEED] = COUNTED,
    [KEY_EXE] = ALL,
    [KEY_PID] = ALL,
    [KEY_DEVICE] = ALL & ~OF(INJECT_CM),
    [KEY_QP] = ALL & ~OF(INJECT_LIMIT),
    [KEY_OPCODE] = OF(INJECT_CALL) | OF(INJECT_COMPLETION),
    [KEY_SIDE] = OF(INJECT_COMPLETION) | OF(INJECT_CM),
    [KEY_AT] = OF(INJECT_EVENT) | OF(INJECT_CM),
    [KEY_OF] = OF(INJECT_PACKET),
    [KEY_TIME] = OF(INJECT_COMPLETION) | OF(INJECT_PACKET) | OF(INJECT_EVENT) | OF(INJECT_CM),
    [KEY_BY] = OF(INJECT_PACKET),
    [KEY_LIMIT] = OF(INJECT_PACKET),
    [KEY_REASON] = OF(INJECT_CM),
};

struct word {
    const char *at;
    size_t length;
};

struct parser {
    struct inject_rule *rule;
    uint32_t seen; /* keys, by bit */
    char *why;
    size_t why_size;
};

__attribute__((format(printf, 2, 3))) static bool fail(const struct parser *parser, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(parser->why, parser->why_size, format, arguments);
    va_end(arguments);
    return false;
}

static int shown(struct word word)
{
    return (int)min_of(word.length, (size_t)INJECT_NAME_MAX);
}

static bool unknown(const struct parser *parser, const char *what, struct word word, const char *nearest)
{
    return fail(parser, "'%.*s' is not %s; the nearest is '%s'", shown(word), word.at, what, nearest);
}

static bool read_number(const struct parser *parser, struct word word, const char *key, uint64_t least,
                        uint64_t most, uint64_t *ret)
{
    uint64_t value = 0;

    if (!word.length || inject_digits(word.at, word.length, most, &value) != word.length || value < least)
        return fail(parser, "%s=%.*s: not a number from %llu to %llu", key, shown(word), word.at,
                    (unsigned long long)least, (unsigned long long)most);
    *ret = value;
    return true;
}

static bool read_small(const struct parser *parser, struct word word, const char *key, uint64_t least,
                       uint64_t most, uint32_t *ret)
{
    uint64_t value = 0;

    if (!read_number(parser, word, key, least, most, &value))
        return false;
    *ret = (uint32_t)value;
    return true;
}

/* Up to four decimals: as parts of INJECT_WHOLE. */
static bool read_percent(const struct parser *parser, struct word word, uint32_t *ret)
{
    uint32_t value = 0, unit = INJECT_WHOLE / 100;
    bool fraction = false, any = false;

    for (size_t i = 0; i < word.length; i++) {
        if (word.at[i] == '.' && !fraction) {
            fraction = true;
            continue;
        }
        if (word.at[i] < '0' || word.at[i] > '9' || (fraction && unit == 1) || value > INJECT_WHOLE)
            return fail(parser, "percent=%.*s: not a number above 0, up to 100, with up to four decimals",
                        shown(word), word.at);
        any = true;
        if (fraction)
            value += (uint32_t)(word.at[i] - '0') * (unit /= 10);
        else
            value = value * 10 + (uint32_t)(word.at[i] - '0') * unit;
    }
    if (!any || !value || value > INJECT_WHOLE)
        return fail(parser, "percent=%.*s: not a number above 0, up to 100, with up to four decimals",
                    shown(word), word.at);
    *ret = value;
    return true;
}

static bool read_name(const struct parser *parser, struct word word, const char *key,
                      char ret[INJECT_NAME_MAX])
{
    if (!word.length || word.length >= INJECT_NAME_MAX)
        return fail(parser, "%s=%.*s: a name has 1 to %u characters", key, shown(word), word.at,
                    INJECT_NAME_MAX - 1);
    memcpy(ret, word.at, word.length);
    ret[word.length] = '\0';
    return true;
}

static bool read_errno(const struct parser *parser, struct word word)
{
    const char *nearest;

    parser->rule->error = inject_errno(word.at, word.length, &nearest);
    return parser->rule->error || unknown(parser, "an errno", word, nearest);
}

static bool read_opcodes(const struct parser *parser, struct word word)
{
    const char *nearest;

    parser->rule->opcodes = inject_opcodes(word.at, word.length, &nearest);
    return parser->rule->opcodes || unknown(parser, "an opcode", word, nearest);
}

static bool read_side(const struct parser *parser, struct word word)
{
    static const char *const both[][2] = {{"send", "receive"}, {"active", "passive"}};
    const char *const *sides = both[parser->rule->kind == INJECT_CM];
    int side = inject_find(sides, 2, word.at, word.length);

    if (side < 0)
        return unknown(parser, "a side", word, inject_nearest(sides, 2, word.at, word.length));
    parser->rule->side = (uint8_t)side;
    return true;
}

static bool read_class(const struct parser *parser, struct word word)
{
    static const char *const classes[INJECT_CLASSES] = {"all", "requests", "responses"};
    int found = inject_find(classes, INJECT_CLASSES, word.at, word.length);

    if (found < 0)
        return unknown(parser, "a class of packets", word,
                       inject_nearest(classes, INJECT_CLASSES, word.at, word.length));
    parser->rule->of = (uint8_t)found;
    return true;
}

static bool read_at(const struct parser *parser, struct word word)
{
    int call = inject_find(inject_call_names, INJECT_CALLS, word.at, word.length);

    if (call < 0)
        return unknown(parser, "a call at which an event can happen", word,
                       inject_nearest(inject_call_names, INJECT_CALLS, word.at, word.length));
    parser->rule->at = (uint8_t)call;
    return true;
}

static bool read_time(const struct parser *parser, struct word word)
{
    return inject_duration(word.at, word.length, &parser->rule->time) ||
           fail(parser, "time=%.*s: not a time of up to an hour, such as 250us, 20ms, 2s or 5min",
                shown(word), word.at);
}

static bool read_rate(const struct parser *parser, struct word word)
{
    return inject_bit_rate(word.at, word.length, &parser->rule->value) ||
           fail(parser,
                "limit=%.*s: not a rate per second of up to 1000Gbit, such as 64kbit, 10Mbit or 1Gbit",
                shown(word), word.at);
}

static bool read_reason(const struct parser *parser, struct word word)
{
    const char *nearest;

    parser->rule->value = inject_reason(word.at, word.length, &nearest);
    return parser->rule->value || unknown(parser, "a reason of a REJ", word, nearest);
}

static bool read_value(struct parser *parser, enum key key, struct word word)
{
    struct inject_rule *rule = parser->rule;
    uint32_t number;

    switch (key) {
    case KEY_ERRNO:
        return read_errno(parser, word);
    case KEY_VALUE:
        return read_number(parser, word, "value", 0, UINT64_MAX / 16, &rule->value);
    case KEY_N:
        return read_small(parser, word, "n", 1, UINT32_MAX, &rule->first);
    case KEY_COUNT:
        if (word.length == 3 && memcmp(word.at, "all", 3) == 0) {
            rule->count = 0;
            return true;
        }
        return read_small(parser, word, "count", 1, UINT32_MAX, &rule->count);
    case KEY_EVERY:
        return read_small(parser, word, "every", 1, UINT32_MAX, &rule->every);
    case KEY_PERCENT:
        return read_percent(parser, word, &rule->parts);
    case KEY_SEED:
        return read_number(parser, word, "seed", 0, UINT64_MAX / 16, &rule->seed);
    case KEY_EXE:
        return read_name(parser, word, "exe", rule->exe);
    case KEY_PID:
        if (!read_small(parser, word, "pid", 1, INT32_MAX, &number))
            return false;
        rule->pid = (int32_t)number;
        return true;
    case KEY_DEVICE:
        return read_name(parser, word, "device", rule->device);
    case KEY_QP:
        return read_small(parser, word, "qp", 1, UINT32_MAX, &rule->qp);
    case KEY_OPCODE:
        return read_opcodes(parser, word);
    case KEY_SIDE:
        return read_side(parser, word);
    case KEY_AT:
        return read_at(parser, word);
    case KEY_OF:
        return read_class(parser, word);
    case KEY_TIME:
        return read_time(parser, word);
    case KEY_BY:
        return read_number(parser, word, "by", 1, REORDER_MAX, &rule->value);
    case KEY_LIMIT:
        return read_rate(parser, word);
    case KEY_REASON:
        return read_reason(parser, word);
    case KEYS:
        break;
    }
    return false;
}

static bool is_between(char letter)
{
    return letter == ' ' || letter == '\t' || letter == ',' || letter == '\r';
}

/* The next KEY=VALUE. false: none is left. */
static bool next_pair(const char **at, const char *end, struct word *ret_key, struct word *ret_value)
{
    const char *from, *equal;

    while (*at < end && is_between(**at))
        ++*at;
    from = *at;
    while (*at < end && !is_between(**at))
        ++*at;
    if (from == *at)
        return false;
    equal = memchr(from, '=', (size_t)(*at - from));
    *ret_key = (struct word){from, (size_t)((equal ? equal : *at) - from)};
    *ret_value = equal ? (struct word){equal + 1, (size_t)(*at - equal - 1)} : (struct word){NULL, 0};
    return true;
}

static bool read_kind(const struct parser *parser, struct word kind, struct word what)
{
    static const struct {
        const char *name;
        const char *const *words;
        size_t count;
    } kinds[INJECT_KINDS] = {
        [INJECT_CALL] = {"a call that can be made to fail", inject_call_names, INJECT_CALLS},
        [INJECT_LIMIT] = {"a limit that can be lowered", inject_limit_names, INJECT_LIMITS},
        [INJECT_COMPLETION] = {"a status that can be injected", inject_outcome_names, INJECT_OUTCOMES},
        [INJECT_EVENT] = {"an event that can be injected", inject_event_names, INJECT_EVENTS},
        [INJECT_PACKET] = {"a thing that can happen to packets", inject_packet_names, INJECT_PACKETS},
        [INJECT_CM] = {"an event of a connection that can be injected", inject_cm_names, INJECT_CMS},
    };
    int found = inject_find(inject_kind_names, INJECT_KINDS, kind.at, kind.length), index;

    if (found < 0)
        return unknown(parser, "a kind of fault", kind,
                       inject_nearest(inject_kind_names, INJECT_KINDS, kind.at, kind.length));
    if (!what.at)
        return fail(parser, "'%s' needs '=' and %s", inject_kind_names[found], kinds[found].name);
    index = inject_find(kinds[found].words, kinds[found].count, what.at, what.length);
    if (index < 0)
        return unknown(parser, kinds[found].name, what,
                       inject_nearest(kinds[found].words, kinds[found].count, what.at, what.length));
    parser->rule->kind = (uint8_t)found;
    parser->rule->what = (uint8_t)index;
    return true;
}

static bool read_key(struct parser *parser, struct word key, struct word value)
{
    int found = inject_find(key_names, KEYS, key.at, key.length);

    if (found < 0)
        return unknown(parser, "a key", key, inject_nearest(key_names, KEYS, key.at, key.length));
    if (!(key_kinds[found] & OF(parser->rule->kind)))
        return fail(parser, "'%s' has no meaning with '%s='", key_names[found],
                    inject_kind_names[parser->rule->kind]);
    if (!value.at)
        return fail(parser, "'%s' needs '=' and a value", key_names[found]);
    if (parser->seen & 1u << found)
        return fail(parser, "'%s' is given twice", key_names[found]);
    parser->seen |= 1u << found;
    return read_value(parser, (enum key)found, value);
}

static bool has(const struct parser *parser, enum key key)
{
    return parser->seen >> key & 1;
}

/* A key that has no use. */
static bool check_without(const struct parser *parser, enum key key, const char *kind, const char *name)
{
    return !has(parser, key) || fail(parser, "'%s' has no meaning with '%s=%s'", key_names[key], kind, name);
}

/* Only what can arise (outcome.c). */
static bool check_completion(const struct parser *parser)
{
    const struct inject_rule *rule = parser->rule;
    const struct inject_outcome_row *row = &inject_outcomes_table[rule->what];
    const char *name = inject_outcome_names[rule->what];

    if (rule->what == OUTCOME_DELAYED && !has(parser, KEY_TIME))
        return fail(parser, "'completion=delayed' needs 'time', for example 'time=5ms'");
    if (rule->what != OUTCOME_DELAYED && !check_without(parser, KEY_TIME, "completion", name))
        return false;
    if (rule->side == INJECT_RECEIVE) {
        if (rule->opcodes)
            return fail(parser, "'opcode' has no meaning with 'side=receive': a receive takes what comes");
        return row->receives || fail(parser, "no receive can end with %s", name);
    }
    if (row->instead)
        return fail(parser, "%s comes from the peer: load %s", name, row->instead);
    if (rule->opcodes & ~row->sends)
        return fail(parser, "a work request with that opcode cannot end with %s", name);
    return true;
}

static bool is_for_qp(enum inject_call call)
{
    return call == CALL_POST_SEND || call == CALL_POST_RECV || call == CALL_MODIFY_QP || call == CALL_BIND_MW;
}

/* The event's object is that of the call. */
static bool check_event(const struct parser *parser)
{
    struct inject_rule *rule = parser->rule;
    const char *name = inject_event_names[rule->what];

    if (!has(parser, KEY_AT))
        rule->at = rule->what == INJECT_SRQ_LIMIT ? CALL_POST_SRQ_RECV : CALL_POST_SEND;
    if (rule->at == CALL_OPEN_DEVICE)
        return fail(parser, "'at=ibv_open_device' is not possible with 'event': no device is open yet");
    if (has(parser, KEY_TIME) && rule->what != INJECT_PORT_DOWN)
        return fail(parser, "'time' has no meaning with 'event=%s'", name);
    if (rule->what == INJECT_SRQ_LIMIT && rule->at != CALL_POST_SRQ_RECV)
        return fail(parser, "'event=%s' is only possible with 'at=ibv_post_srq_recv'", name);
    if ((rule->what == INJECT_QP_FATAL || rule->what == INJECT_CQ_ERR || rule->what == INJECT_PATH_MIG_ERR) &&
        !is_for_qp((enum inject_call)rule->at))
        return fail(parser, "'event=%s' happens to a QP, and %s has none", name, inject_call_names[rule->at]);
    return !rule->qp || is_for_qp((enum inject_call)rule->at) ||
           fail(parser, "'qp' has no meaning at %s", inject_call_names[rule->at]);
}

/* A key that the packet fault needs, or has no use for. */
static bool check_packet_key(const struct parser *parser, enum key key, bool wanted, const char *example)
{
    const char *name = inject_packet_names[parser->rule->what];

    if (wanted && !has(parser, key))
        return fail(parser, "'packet=%s' needs '%s', for example '%s'", name, key_names[key], example);
    return wanted || check_without(parser, key, "packet", name);
}

static bool check_packet(const struct parser *parser)
{
    struct inject_rule *rule = parser->rule;
    bool reorder = rule->what == INJECT_REORDER, rate = rule->what == INJECT_RATE;

    if (!check_packet_key(parser, KEY_BY, reorder, "by=3") ||
        !check_packet_key(parser, KEY_LIMIT, rate, "limit=10Mbit") ||
        (!(reorder && has(parser, KEY_TIME)) &&
         !check_packet_key(parser, KEY_TIME, rule->what == INJECT_DELAY, "time=5ms")))
        return false;
    if (reorder && !rule->time)
        rule->time = REORDER_TIME;
    if (!rate)
        return true;
    /* What a link lets through depends on all that came before. */
    for (enum key key = KEY_N; key <= KEY_SEED; key++) {
        if (!check_packet_key(parser, key, false, NULL))
            return false;
    }
    rule->count = 0;
    return true;
}

static bool check_cm(const struct parser *parser)
{
    /* The keys of each, by bit of enum key, of those that not all have. */
    static const uint32_t own[INJECT_CMS] = {
        [INJECT_ADDR_ERROR] = 1u << KEY_ERRNO,
        [INJECT_ROUTE_ERROR] = 1u << KEY_ERRNO,
        [INJECT_REJECTED] = 1u << KEY_REASON | 1u << KEY_SIDE,
        [INJECT_DISCONNECTED] = 1u << KEY_TIME | 1u << KEY_AT | 1u << KEY_QP,
    };
    static const enum key some[] = {KEY_ERRNO, KEY_REASON, KEY_SIDE, KEY_TIME, KEY_AT, KEY_QP};
    struct inject_rule *rule = parser->rule;

    for (size_t i = 0; i < array_size(some); i++) {
        if (!(own[rule->what] >> some[i] & 1) &&
            !check_without(parser, some[i], "cm", inject_cm_names[rule->what]))
            return false;
    }
    if (!rule->error)
        rule->error = ETIMEDOUT;
    if (!rule->value)
        rule->value = INJECT_CONSUMER;
    if (rule->time && (has(parser, KEY_AT) || rule->qp))
        return fail(parser, "'time' cannot be combined with 'at' or 'qp'");
    if (!has(parser, KEY_AT))
        rule->at = CALL_POST_SEND;
    return is_for_qp((enum inject_call)rule->at) ||
           fail(parser, "'cm=DISCONNECTED' happens to the connection of a QP, and %s has none",
                inject_call_names[rule->at]);
}

static bool check(struct parser *parser)
{
    struct inject_rule *rule = parser->rule;

    if (rule->kind == INJECT_CALL && !has(parser, KEY_ERRNO))
        return fail(parser, "'call=%s' needs the error that it fails with, for example 'errno=ENOMEM'",
                    inject_call_names[rule->what]);
    if (rule->kind == INJECT_CALL &&
        ((rule->qp && rule->what != CALL_POST_SEND && rule->what != CALL_POST_RECV &&
          rule->what != CALL_MODIFY_QP && rule->what != CALL_BIND_MW) ||
         (rule->opcodes && rule->what != CALL_POST_SEND)))
        return fail(parser, "'%s' has no meaning with 'call=%s'", rule->qp ? "qp" : "opcode",
                    inject_call_names[rule->what]);
    if (rule->kind == INJECT_EVENT && !check_event(parser))
        return false;
    if (rule->kind == INJECT_CM && !check_cm(parser))
        return false;
    if (rule->kind == INJECT_PACKET && !check_packet(parser))
        return false;
    if (rule->kind == INJECT_COMPLETION && !check_completion(parser))
        return false;
    if (rule->kind == INJECT_LIMIT && !has(parser, KEY_VALUE))
        return fail(parser, "'limit=%s' needs the limit, for example 'value=4'",
                    inject_limit_names[rule->what]);
    if (has(parser, KEY_PERCENT) && (has(parser, KEY_N) || has(parser, KEY_COUNT) || has(parser, KEY_EVERY)))
        return fail(parser, "'percent' cannot be combined with 'n', 'count' or 'every'");
    if (has(parser, KEY_SEED) && !has(parser, KEY_PERCENT))
        return fail(parser, "'seed' has a meaning with 'percent' only");
    if (has(parser, KEY_EVERY) && !has(parser, KEY_COUNT))
        rule->count = 0;
    return true;
}

bool inject_parse(const char *text, struct inject_rule *ret_rule, char *ret_why, size_t why_size)
{
    struct parser parser = {.rule = ret_rule, .why = ret_why, .why_size = why_size};
    size_t length = strlen(text);
    const char *at = text, *end = text + length;
    struct word key, value;

    *ret_rule = (struct inject_rule){.first = 1, .count = 1, .every = 1, .seed = 1};
    if (length >= INJECT_TEXT_MAX)
        return fail(&parser, "longer than %u characters", INJECT_TEXT_MAX - 1);
    memcpy(ret_rule->text, text, length + 1);
    if (!next_pair(&at, end, &key, &value))
        return fail(&parser, "empty; softhca-fault(7) has examples");
    if (!read_kind(&parser, key, value))
        return false;
    while (next_pair(&at, end, &key, &value)) {
        if (!read_key(&parser, key, value))
            return false;
    }
    return check(&parser);
}

size_t inject_next(const char **text)
{
    for (;;) {
        size_t length;

        *text += strspn(*text, " \t\r\n;");
        if (**text == '\0')
            return 0;
        if (**text == '#') {
            *text += strcspn(*text, "\n");
            continue;
        }
        length = strcspn(*text, ";\n#");
        while (length && strchr(" \t\r", (*text)[length - 1]))
            length--;
        return length;
    }
}
