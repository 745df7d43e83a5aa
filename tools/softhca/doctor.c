/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca doctor: one line per thing that SoftHCA wants of this machine. */
#include "doctor.h"

#include <argp.h>
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "adapters.h"
#include "commands.h"
#include "place.h"

void finding_set(struct finding *ret, enum finding_state state, const char *format, ...)
{
    va_list arguments;

    ret->state = state;
    va_start(arguments, format);
    vsnprintf(ret->reason, sizeof(ret->reason), format, arguments);
    va_end(arguments);
}

void finding_remedy(struct finding *ret, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(ret->remedy, sizeof(ret->remedy), format, arguments);
    va_end(arguments);
}

static const char *state_name(enum finding_state state)
{
    switch (state) {
    case FINDING_OK:
        return "ok";
    case FINDING_LIMITED:
        return "limited";
    case FINDING_BROKEN:
        return "broken";
    case FINDING_NOTE:
        return "note";
    }
    return "";
}

static void print(const char *name, const struct finding *finding)
{
    const char *line = finding->reason, *end = strchrnul(line, '\n');

    printf("%-8s %-22s %.*s\n", state_name(finding->state), name, (int)(end - line), line);
    for (; *end; line = end) {
        line = end + 1;
        end = strchrnul(line, '\n');
        printf("%-8s %-22s %.*s\n", "", "", (int)(end - line), line);
    }
    if (finding->remedy[0])
        printf("%-8s %-22s remedy: %s\n", "", "", finding->remedy);
}

static void check_devices(struct finding *ret, struct adapters *adapters)
{
    struct place place;
    char why[200];

    if (place_find(&place)) {
        finding_set(ret, FINDING_BROKEN, "libibverbs.so.1 was not found");
        finding_remedy(ret,
                       "build it (make), or install it together with the softhca command (make install)");
        return;
    }
    if (adapters_read(place.verbs, adapters, why, sizeof(why))) {
        finding_set(ret, FINDING_BROKEN, "%s", why);
        return;
    }
    if (adapters->count == 0) {
        finding_set(ret, FINDING_BROKEN, "no network interface has an address, not even lo");
        finding_remedy(ret, "ip link set lo up");
        return;
    }
    finding_set(ret, FINDING_OK, "%s", place.verbs);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    argp_usage(state);
    return 0;
}

int command_doctor(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .doc = "Checks what this machine supports. Each line has a reason and, where something can be "
               "improved, a remedy. The exit status is 0 if processes of this host can communicate.",
    };
    struct adapters adapters = {0};
    struct finding finding = {0};
    int broken;

    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    unsetenv(
        "SOFTHCA_SYSFS_ROOT"); /* under `softhca run` the shim must not hide the machine itself from us */

    check_devices(&finding, &adapters);
    broken = finding.state == FINDING_BROKEN;
    print("library", &finding);
    for (unsigned i = 0; i < adapters.count; i++) {
        const struct adapter *adapter = &adapters.list[i];
        char address[INET6_ADDRSTRLEN];

        finding = (struct finding){0};
        finding_set(&finding, adapter->port.state == IBV_PORT_ACTIVE ? FINDING_OK : FINDING_NOTE,
                    "%s, %s, %s%s", adapter->netdev, port_state_name(adapter->port.state),
                    adapter->gid_count ? gid_address(&adapter->gids[0].gid, address) : "no address",
                    adapter->gid_count > 1 ? ", ..." : "");
        print(adapter->name, &finding);
    }
    adapters_free(&adapters);

    for (unsigned i = 0; i < probe_count; i++) {
        finding = (struct finding){0};
        fflush(stdout); /* probes fork */
        probes[i].run(&finding);
        broken |= finding.state == FINDING_BROKEN;
        print(probes[i].name, &finding);
    }
    return broken;
}
