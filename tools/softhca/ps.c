/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca ps: the processes of this host that use SoftHCA, and what they have. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "attach.h"
#include "commands.h"
#include "explain/explain.h"

#define PIDS_MAX 64

struct options {
    bool json, all;
    pid_t pids[PIDS_MAX];
    unsigned count;
};

enum { OPTION_JSON = 256 };

static const struct argp_option option_table[] = {
    {"all", 'a', NULL, 0, "List all objects, and not only the first 32 of a kind", 0},
    {"json", OPTION_JSON, NULL, 0, "One JSON object, with all objects", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'a':
        options->all = true;
        return 0;
    case OPTION_JSON:
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->count == PIDS_MAX || !read_pid(argument, &options->pids[options->count++]))
            argp_error(state, "'%s' is not a PID", argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* One that does not let us look. */
static void list_hidden(struct out *out, const struct attached *at)
{
    out_begin(out, NULL);
    out_signed(out, "pid", at->pid);
    out_number(out, "uid", at->uid);
    out_string(out, "hidden", at->why);
    out_end(out);
    if (at->pid)
        out_line(out, 0, "%d uid %u: %s", (int)at->pid, (unsigned)at->uid, at->why);
    else
        out_line(out, 0, "@%04x (QPNs 0x%04x00 to 0x%04xff, PID not visible here) uid %u: %s", at->block,
                 at->block, at->block, (unsigned)at->uid, at->why);
}

static void list(struct out *out, const struct attached *at, bool all)
{
    if (at->files[SEGMENT_TABLES] < 0) {
        list_hidden(out, at);
        return;
    }
    if (at->pid == 0)
        out_line(out, 0, "@%04x:", at->block);
    explain_list(&at->view, out, all);
}

int command_ps(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "[PID...]",
        .doc = "Lists the processes of this host that use SoftHCA (or those given), with their objects: "
               "states, counters, users of each object. The processes are not stopped or disturbed.",
    };
    struct options options = {0};
    struct attached *around = NULL, one;
    unsigned count = 0;
    struct out out;
    int status = 0;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    out_init(&out, options.json, SIZE_MAX);
    out_begin(&out, NULL);
    out_begin_array(&out, "processes");
    if (!options.count)
        count = attach_all(&around);
    for (unsigned i = 0; i < count; i++)
        list(&out, &around[i], options.all);
    for (unsigned i = 0; i < options.count; i++) {
        if (attach_pid(options.pids[i], &one)) {
            list(&out, &one, options.all);
        } else {
            fprintf(stderr, "softhca: process %d: %s\n", (int)options.pids[i], one.why);
            status = 1;
        }
        attached_end(&one);
    }
    out_end_array(&out);
    out_end(&out);
    out_newline(&out);
    if (out.text)
        fputs(out.text, stdout);
    attached_free(around, count);
    out_fini(&out);
    return status;
}
