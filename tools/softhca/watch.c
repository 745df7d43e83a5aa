/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca watch: preloads libsofthca-watch.so and becomes the program, which keeps the adapter and libibverbs it
 * has. */
#include <argp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "launch.h"
#include "place.h"

static const struct argp_option option_table[] = {
    {"all", LAUNCH_ALL, NULL, 0,
     "Also explain what is usually harmless: destroys that fail with EBUSY, objects not destroyed at exit, "
     "MRs deregistered while work requests used them (SOFTHCA_EXPLAIN_WHAT=all)",
     0},
    {"explain", LAUNCH_EXPLAIN, "FORM", 0,
     "text, json or off: explanations on stderr of what fails or hangs (SOFTHCA_WATCH; default text). "
     "softhca why and ps show the "
     "process in each case",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    return launch_parse(key, argument, state, state->input);
}

int command_watch(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "[--] PROGRAM [ARG...]",
        .doc = "Runs PROGRAM, unmodified, with the RDMA NIC and libraries it has, and explains what goes "
               "wrong and "
               "what it waits for (by exec).",
    };
    struct launch_options options = {0};
    struct place place;

    argp_err_exit_status = EXIT_OURS;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
    if (place_find(&place))
        return EXIT_OURS;
    if (access(place.watch, R_OK)) {
        fprintf(stderr, "softhca: %s not found (softhca watch needs it): reinstall SoftHCA\n", place.watch);
        return EXIT_OURS;
    }
    /* ld.so separates the names in LD_PRELOAD by blanks and colons, and knows no way to quote them. */
    if (strpbrk(place.watch, " :\t\n")) {
        fprintf(stderr, "softhca: the path %s contains a blank or colon, which LD_PRELOAD cannot hold\n",
                place.watch);
        return EXIT_OURS;
    }
    if (launch_set_or_keep("SOFTHCA_WATCH", options.explain, "text") ||
        (options.all && launch_set("SOFTHCA_EXPLAIN_WHAT", "all")) ||
        launch_set_in_front("LD_PRELOAD", place.watch))
        return EXIT_OURS;
    return launch(options.program);
}
