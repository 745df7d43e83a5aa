/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca check: do the two ends of each connection fit together, and would they on a NIC? */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "attach.h"
#include "commands.h"
#include "explain/connection.h"

struct options {
    bool json;
    pid_t pid;
};

enum { OPTION_JSON = 256 };
enum { NOTHING_FOUND = 0, SOMETHING_FOUND = 1, NOT_LOOKED_AT = 2 };

static const struct argp_option option_table[] = {
    {"json", OPTION_JSON, NULL, 0, "One JSON object per finding, each on a line, and one with the counts", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPTION_JSON:
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->pid || !read_pid(argument, &options->pid))
            argp_error(state, "'%s' is not a PID", argument);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PID is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_counts(bool json, const struct connection_findings *findings)
{
    if (json)
        printf("{\"explanation\":\"checked\",\"connections\":%u,\"alone\":%u,\"wrong\":%u,\"nic\":%u,"
               "\"risks\":%u}\n",
               findings->connections, findings->alone, findings->wrong, findings->nic, findings->risks);
    else
        printf("%u connection%s checked%s. Findings: %u wrong, %u that would fail on a NIC, %u risk%s\n",
               findings->connections, findings->connections == 1 ? "" : "s",
               findings->alone ? ", some at one end alone" : "", findings->wrong, findings->nic,
               findings->risks, findings->risks == 1 ? "" : "s");
}

int command_check(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "PID",
        .doc =
            "Compares both ends of each connected QP of a process: what cannot work, what works here and "
            "would fail on "
            "a NIC, and what is risky. The process may be running or stopped; it is not disturbed. "
            "Exit status: 0 if nothing or only risks were found, 1 if something is wrong or would fail on a "
            "NIC, 2 if the process cannot be read.",
    };
    struct connection_findings findings;
    struct options options = {0};
    struct attached at;
    struct out out;

    argp_err_exit_status = NOT_LOOKED_AT;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (!attach_pid(options.pid, &at)) {
        fprintf(stderr, "softhca: process %d: %s\n", (int)options.pid, at.why);
        attached_end(&at);
        return NOT_LOOKED_AT;
    }
    out_init(&out, options.json, SIZE_MAX);
    explain_connections(&at.view, &out, &findings);
    if (out.text)
        fputs(out.text, stdout);
    print_counts(options.json, &findings);
    out_fini(&out);
    attached_end(&at);
    return findings.wrong || findings.nic ? SOMETHING_FOUND : NOTHING_FOUND;
}
