/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca watch: preloads libsofthca-watch.so and becomes the program, which keeps the adapter and libibverbs it has. */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "launch.h"
#include "place.h"

struct options {
    const char *explain;
    bool all;
    char **program;
};

enum { OPTION_EXPLAIN = 256, OPTION_ALL };

static const struct argp_option option_table[] = {
    {"all", OPTION_ALL, NULL, 0,
     "Also tell what is normal at the end of many programs: refused destroys, objects not destroyed, MRs "
     "deregistered "
     "while posted (SOFTHCA_EXPLAIN_WHAT=all)",
     0},
    {"explain", OPTION_EXPLAIN, "FORM", 0,
     "text, json or off: what is told on stderr (SOFTHCA_WATCH; default text). softhca why and ps show the "
     "process in "
     "each case",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPTION_EXPLAIN:
        if (strcmp(argument, "text") != 0 && strcmp(argument, "json") != 0 && strcmp(argument, "off") != 0)
            argp_error(state, "'%s': not text, json or off", argument);
        options->explain = argument;
        return 0;
    case OPTION_ALL:
        options->all = true;
        return 0;
    case ARGP_KEY_ARG:
        options->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PROGRAM is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int command_watch(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "[--] PROGRAM [ARG...]",
        .doc = "Runs PROGRAM, unmodified, with the RDMA adapter and libraries it has, and explains what goes "
               "wrong and "
               "what it waits for (by exec).",
    };
    struct options options = {0};
    struct place place;

    argp_err_exit_status = EXIT_OURS;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
    if (place_find(&place))
        return EXIT_OURS;
    if (access(place.watch, R_OK)) {
        fprintf(stderr, "softhca: %s is not there: this build is without it\n", place.watch);
        return EXIT_OURS;
    }
    /* ld.so separates the names in LD_PRELOAD by blanks and colons, and knows no way to quote them. */
    if (strpbrk(place.watch, " :\t\n")) {
        fprintf(stderr, "softhca: the path %s contains a blank or colon, which LD_PRELOAD cannot hold\n",
                place.watch);
        return EXIT_OURS;
    }
    if (launch_set("SOFTHCA_WATCH", options.explain           ? options.explain
                                    : getenv("SOFTHCA_WATCH") ? getenv("SOFTHCA_WATCH")
                                                              : "text") ||
        (options.all && launch_set("SOFTHCA_EXPLAIN_WHAT", "all")) ||
        launch_set_in_front("LD_PRELOAD", place.watch))
        return EXIT_OURS;
    return launch(options.program);
}
