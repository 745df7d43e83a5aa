/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca devices */
#include <argp.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters.h"
#include "commands.h"
#include "place.h"

static error_t parse(int key, char *argument, struct argp_state *state)
{
    bool *json = state->input;

    switch (key) {
    case 'j':
        *json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Reached without the shim: this program was not started through `softhca run`, or has left it (see main
 * below). */
void real_devices(char *ret_names, size_t size)
{
    DIR *directory = opendir("/sys/class/infiniband");
    struct dirent *entry;
    size_t length = 0;

    ret_names[0] = '\0';
    if (!directory)
        return;
    while ((entry = readdir(directory))) {
        int wrote;

        if (entry->d_name[0] == '.')
            continue;
        wrote = snprintf(ret_names + length, size - length, "%s%s", length ? " " : "", entry->d_name);
        if (wrote < 0 || (size_t)wrote >= size - length)
            break;
        length += (size_t)wrote;
    }
    closedir(directory);
}

static void guid_text(uint64_t guid, char *text, size_t size)
{
    snprintf(text, size, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32) & 0xffff,
             (unsigned)(guid >> 16) & 0xffff, (unsigned)guid & 0xffff);
}

static void print_text(const struct adapters *adapters)
{
    char guid[20], address[INET6_ADDRSTRLEN];

    for (unsigned i = 0; i < adapters->count; i++) {
        const struct adapter *adapter = &adapters->list[i];

        guid_text(adapter->guid, guid, sizeof(guid));
        printf("%s  on %s  %s  active_mtu %u (max_mtu %u)  node GUID %s\n", adapter->name,
               adapter->netdev[0] ? adapter->netdev : "(no interface)", port_state_name(adapter->port.state),
               mtu_bytes(adapter->port.active_mtu), mtu_bytes(adapter->port.max_mtu), guid);
        for (unsigned at = 0; at < adapter->gid_count; at++) {
            const struct adapter_gid *gid = &adapter->gids[at];

            printf("    GID %2u  %s  %s\n", gid->index,
                   gid->type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "RoCE v1",
                   gid_address(&gid->gid, address));
        }
    }
    if (adapters->count == 0)
        puts("no device: no network interface has an address");
}

static void print_json_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_json(const struct adapters *adapters, char *real)
{
    char guid[20], address[INET6_ADDRSTRLEN];
    char *rest = real, *name;

    fputs("{\"devices\": [", stdout);
    for (unsigned i = 0; i < adapters->count; i++) {
        const struct adapter *adapter = &adapters->list[i];

        printf("%s\n  {\"name\": ", i ? "," : "");
        print_json_string(adapter->name);
        fputs(", \"netdev\": ", stdout);
        if (adapter->netdev[0])
            print_json_string(adapter->netdev);
        else
            fputs("null", stdout);
        guid_text(adapter->guid, guid, sizeof(guid));
        printf(", \"state\": \"%s\", \"active_mtu\": %u, \"max_mtu\": %u, \"node_guid\": \"%s\", \"gids\": [",
               port_state_name(adapter->port.state), mtu_bytes(adapter->port.active_mtu),
               mtu_bytes(adapter->port.max_mtu), guid);
        for (unsigned at = 0; at < adapter->gid_count; at++) {
            const struct adapter_gid *gid = &adapter->gids[at];

            printf("%s\n    {\"index\": %u, \"type\": \"%s\", \"address\": \"%s\", \"netdev\": ",
                   at ? "," : "", gid->index, gid->type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "RoCE v1",
                   gid_address(&gid->gid, address));
            print_json_string(gid->netdev);
            putchar('}');
        }
        fputs("]}", stdout);
    }
    fputs("],\n \"hidden\": [", stdout);
    for (bool first = true; (name = strsep(&rest, " ")); first = false) {
        if (!*name)
            continue;
        if (!first)
            fputs(", ", stdout);
        print_json_string(name);
    }
    puts("]}");
}

int command_devices(int argc, char **argv)
{
    static const struct argp_option option_table[] = {
        {"json", 'j', NULL, 0, "Print JSON", 0},
        {0},
    };
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Lists the RDMA devices that programs see under `softhca run`: one for each network interface "
               "with an "
               "address. Real RDMA devices of the machine are not among them.",
    };
    struct adapters adapters;
    struct place place;
    char real[1024], why[256];
    bool json = false;

    argp_parse(&argp, argc, argv, 0, NULL, &json);
    unsetenv("SOFTHCA_SYSFS_ROOT"); /* under `softhca run` the shim must not hide the machine's own devices
                                       from us */
    if (place_find(&place))
        return 1;
    if (adapters_read(place.verbs, &adapters, why, sizeof(why))) {
        fprintf(stderr, "softhca: %s\n", why);
        return 1;
    }
    real_devices(real, sizeof(real));
    if (json)
        print_json(&adapters, real);
    else
        print_text(&adapters);
    if (!json && real[0])
        printf("Real RDMA devices of this machine, not shown to programs under softhca: %s\n", real);
    adapters_free(&adapters);
    return 0;
}
