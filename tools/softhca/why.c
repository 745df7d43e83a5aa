/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca why: what does a process wait for? */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attach.h"
#include "commands.h"
#include "explain/explain.h"

struct options {
    const char *process, *what;
    uint32_t qpn; /* 0: of all QPs */
    bool json;
};

enum { OPTION_JSON = 256, OPTION_QP };

static const struct argp_option option_table[] = {
    {"json", OPTION_JSON, NULL, 0, "One JSON object per explanation, each on a line", 0},
    {"qp", OPTION_QP, "NUMBER", 0, "Look for WR_ID on this QP only", 0},
    {0},
};

static const struct {
    const char *name;
    enum object_kind kind;
} kinds[] = {
    {"context", OBJECT_CONTEXT},
    {"pd", OBJECT_PD},
    {"mr", OBJECT_MR},
    {"mw", OBJECT_MW},
    {"cq", OBJECT_CQ},
    {"qp", OBJECT_QP},
    {"channel", OBJECT_CHANNEL},
    {"srq", OBJECT_SRQ},
    {"wq", OBJECT_WQ},
    {"ah", OBJECT_AH},
    {"ind_table", OBJECT_IND_TABLE},
    {"cm_id", OBJECT_CM_ID},
    {"td", OBJECT_TD},
    {"dm", OBJECT_DM},
    {"xrcd", OBJECT_XRCD},
};

static bool parse_number(const char *text, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(text, &end, 0);
    return *text && *text != '-' && !*end && !errno;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    uint64_t number;

    switch (key) {
    case OPTION_JSON:
        options->json = true;
        return 0;
    case OPTION_QP:
        if (!parse_number(argument, &number) || number == 0 || number > 0xffffff)
            argp_error(state, "'%s' is not a QP number", argument);
        options->qpn = (uint32_t)number;
        return 0;
    case ARGP_KEY_ARG:
        if (!options->process)
            options->process = argument;
        else if (!options->what)
            options->what = argument;
        else
            argp_usage(state);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PID is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The numbers by which programs know objects, to those of the segment's tables. */
struct search {
    enum object_kind kind;
    uint64_t number;
    bool found;
    uint32_t slot;
};

static bool is_it(const struct view *view, const struct object *object, void *argument)
{
    struct search *search = argument;
    bool it;

    switch (search->kind) {
    case OBJECT_QP:
        it = object_qpn(object) == search->number;
        break;
    case OBJECT_MR:
        it = object->key.lkey == search->number || object->key.rkey == search->number;
        break;
    case OBJECT_MW:
        it = object->key.rkey == search->number;
        break;
    case OBJECT_WQ:
        it = object->wq.wqn == search->number;
        break;
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_CQ:
    case OBJECT_CHANNEL:
    case OBJECT_SRQ:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_CM_ID:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
    default:
        it = object->number == search->number;
        break;
    }
    if (it) {
        search->found = true;
        search->slot = object->number;
    }
    return !it;
}

/* "qp:0x12": 1; a number alone: 0; neither: -1. */
static int parse_object(const char *what, struct search *ret)
{
    const char *colon = strchr(what, ':');

    if (!colon)
        return parse_number(what, &ret->number) ? 0 : -1;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strlen(kinds[i].name) == (size_t)(colon - what) &&
            strncasecmp(what, kinds[i].name, (size_t)(colon - what)) == 0) {
            ret->kind = kinds[i].kind;
            return parse_number(colon + 1, &ret->number) ? 1 : -1;
        }
    }
    if (strncmp(what, "wr:", 3) == 0)
        return parse_number(colon + 1, &ret->number) ? 0 : -1;
    return -1;
}

static int explain(const struct options *options, const struct view *view, struct out *out)
{
    struct search search = {0};
    int form = options->what ? parse_object(options->what, &search) : 0;

    if (!options->what) {
        explain_process(view, out);
        return 0;
    }
    if (form < 0) {
        fprintf(stderr,
                "softhca: '%s' is neither a wr_id nor an object (KIND:NUMBER; KIND is one of context, pd, "
                "mr, mw, cq, qp, channel, srq, wq, ah, ind_table, td, xrcd, dm, cm_id; flows and counters "
                "cannot be "
                "asked for)\n",
                options->what);
        return 2;
    }
    if (form == 0)
        return explain_work(view, out, search.number, options->qpn) ? 0 : 1;
    objects_for_each(view, 1u << search.kind, is_it, &search);
    if (!search.found || !explain_object(view, out, search.kind, search.slot)) {
        fprintf(stderr, "softhca: the process has no %s\n", options->what);
        return 1;
    }
    return 0;
}

/* By number, or as `softhca ps` names those whose number we do not see: @BLOCK. */
static bool attach(const char *process, struct attached *ret)
{
    char *end;
    long number = strtol(process + (process[0] == '@'), &end, process[0] == '@' ? 16 : 10);

    if (*end || number <= 0 || number > INT32_MAX) {
        *ret = (struct attached){.files = {-1, -1}};
        snprintf(ret->why, sizeof(ret->why),
                 "not a PID, nor @ and the four hex digits that softhca ps shows for a process without PID");
        return false;
    }
    return process[0] == '@' ? attach_block((uint32_t)number & 0xffff, ret) : attach_pid((pid_t)number, ret);
}

int command_why(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "PID [OBJECT|WR_ID]",
        .doc = "Explains what a process waits for: blocked destroys, work requests without a completion. "
               "With OBJECT (qp:0x12ab, cq:3, mr:LKEY ...): what uses it and what its destroy would wait "
               "for; with WR_ID: where that work request is. The process may be running, blocked or "
               "stopped; it is not disturbed.",
    };
    struct options options = {0};
    struct attached at;
    struct out out;
    int status;

    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (!attach(options.process, &at)) {
        fprintf(stderr, "softhca: process %s: %s\n", options.process, at.why);
        attached_end(&at);
        return 1;
    }
    out_init(&out, options.json, SIZE_MAX);
    status = explain(&options, &at.view, &out);
    if (out.text)
        fputs(out.text, stdout);
    out_fini(&out);
    attached_end(&at);
    return status;
}
