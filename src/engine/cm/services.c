/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/cm/services.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "object/device/device.h"

#define ADDRESSES_MAX 1024 /* of this host: what a wildcard is compared with */

static struct list services = {&services, &services};

/* --- names ---------------------------------------------------------------------------------------------- */

typedef char name_text[LOCAL_NAME_MAX + 1];

static void any_name(uint64_t service_id, enum service_any any, name_text ret_name)
{
    snprintf(ret_name, sizeof(name_text), "cm/%016llx/any%c", (unsigned long long)service_id,
             any == SERVICE_ANY_IPV4 ? '4' : '6');
}

static void host_name(uint64_t service_id, enum service_any family, name_text ret_name)
{
    snprintf(ret_name, sizeof(name_text), "cm/%016llx/host%c", (unsigned long long)service_id,
             family == SERVICE_ANY_IPV4 ? '4' : '6');
}

static void gid_name(uint64_t service_id, const uint8_t gid[16], name_text ret_name)
{
    int length = snprintf(ret_name, sizeof(name_text), "cm/%016llx/", (unsigned long long)service_id);

    for (int i = 0; i < 16; i++)
        length += snprintf(ret_name + length, sizeof(name_text) - (size_t)length, "%02x", gid[i]);
}

static enum service_any family_of(const uint8_t gid[16])
{
    return gid_is_ipv4_mapped(gid) ? SERVICE_ANY_IPV4 : SERVICE_ANY_IPV6;
}

unsigned services_names(uint64_t service_id, const uint8_t gid[16], bool from_here,
                        char ret_names[SERVICE_NAMES][LOCAL_NAME_MAX + 1])
{
    gid_name(service_id, gid, ret_names[0]);
    any_name(service_id, family_of(gid), ret_names[1]);
    host_name(service_id, family_of(gid), ret_names[2]);
    return from_here ? 3 : 2;
}

/* The names of a service: how many. */
static unsigned names_of(const struct service_address *address, name_text ret_names[2])
{
    unsigned count = 0;

    if (!address->any)
        gid_name(address->service_id, address->gid, ret_names[count++]);
    if (address->any & SERVICE_ANY_IPV4)
        any_name(address->service_id, SERVICE_ANY_IPV4, ret_names[count++]);
    if (address->any & SERVICE_ANY_IPV6)
        any_name(address->service_id, SERVICE_ANY_IPV6, ret_names[count++]);
    return count;
}

static void shared_name(name_text name)
{
    strcat(name, "/shared"); /* room: the longest is 54 characters */
}

static bool somebody_shares(const name_text name)
{
    name_text shared;

    memcpy(shared, name, sizeof(shared));
    shared_name(shared);
    return local_name_is_held(shared);
}

/* --- who is in whose way -------------------------------------------------------------------------------- */

static bool covers(const struct service_address *any, const struct service_address *address)
{
    return any->any & (address->any ? address->any : family_of(address->gid));
}

static bool overlap(const struct service_address *a, const struct service_address *b)
{
    if (a->service_id != b->service_id)
        return false;
    if (!a->any && !b->any)
        return memcmp(a->gid, b->gid, sizeof(a->gid)) == 0;
    return a->any ? covers(a, b) : covers(b, a);
}

/* Within this process. */
static bool is_in_our_way(const struct service *except, const struct service_address *address, bool shared)
{
    list_for_each (node, &services) {
        const struct service *other = list_entry(node, struct service, node);

        if (other != except && !(shared && other->shared) && overlap(&other->address, address))
            return true;
    }
    return false;
}

/* Names other than those of the service itself that exclude it: a wildcard excludes every address of its
 * family, and the other way round. Two processes that try at the same moment may both find each other. */
static bool name_is_in_the_way(const name_text name, bool shared)
{
    return local_name_is_held(name) || (!shared && somebody_shares(name));
}

static bool others_are_in_the_way(const struct service_address *address, bool shared)
{
    uint8_t(*addresses)[16];
    name_text name;
    unsigned count;
    bool found = false;

    if (!address->any) {
        any_name(address->service_id, family_of(address->gid), name);
        return name_is_in_the_way(name, shared);
    }
    addresses = calloc(ADDRESSES_MAX, sizeof(*addresses));
    count = addresses ? device_table_addresses(&host_devices, addresses, ADDRESSES_MAX) : 0;
    for (unsigned i = 0; i < count && !found; i++) {
        if (!(address->any & family_of(addresses[i])))
            continue;
        gid_name(address->service_id, addresses[i], name);
        found = name_is_in_the_way(name, shared);
    }
    free(addresses);
    return found;
}

/* --- holding -------------------------------------------------------------------------------------------- */

static void give_names_back(struct service *service)
{
    for (unsigned i = 0; i < array_size(service->names); i++) {
        local_name_release(service->names[i]);
        service->names[i] = NULL;
    }
    for (unsigned i = 0; i < array_size(service->host_names); i++) {
        local_name_release(service->host_names[i]);
        service->host_names[i] = NULL;
    }
}

/* Of a family: its place in host_names. */
static unsigned index_of(enum service_any family)
{
    return family == SERVICE_ANY_IPV6;
}

/* Somebody else may have them: then requests to addresses that nobody has are his. */
static void take_host_names(struct service *service)
{
    static const enum service_any families[] = {SERVICE_ANY_IPV4, SERVICE_ANY_IPV6};
    name_text name;
    int error;

    for (unsigned i = 0; i < array_size(families); i++) {
        if (!(service->address.host & families[i]))
            continue;
        host_name(service->address.service_id, families[i], name);
        error = local_name_take(name, &service->host_names[index_of(families[i])]);
        if (error)
            log_info("listener on a loopback address: cannot also listen on the other addresses of this "
                     "host: %s",
                     strerror(-error));
    }
}

/* A name that is shared already needs no second holder, here or elsewhere. */
static int take_name(const name_text name, bool shared, struct local_name **ret_name)
{
    name_text text;
    int error;

    memcpy(text, name, sizeof(text));
    if (shared)
        shared_name(text);
    error = local_name_take(text, ret_name);
    if (shared) {
        if (error == -EADDRINUSE)
            error = 0;
        if (!error && local_name_is_held(name))
            error = -EADDRINUSE;
    } else if (!error && somebody_shares(name)) {
        error = -EADDRINUSE;
    }
    return error;
}

static int take_names(struct service *service, bool shared)
{
    name_text names[2];
    unsigned count = names_of(&service->address, names);
    int error = 0;

    for (unsigned i = 0; i < count && !error; i++)
        error = take_name(names[i], shared, &service->names[i]);
    if (!error && others_are_in_the_way(&service->address, shared))
        error = -EADDRINUSE;
    if (error)
        give_names_back(service);
    else if (!shared)
        take_host_names(service);
    return error;
}

int services_hold(const struct service_address *address, bool shared, struct service **ret_service)
{
    struct service *service;
    int error;

    if (is_in_our_way(NULL, address, shared))
        return -EADDRINUSE;
    service = calloc(1, sizeof(*service));
    if (!service)
        return -ENOMEM;
    service->address = *address;
    service->shared = shared;
    service->since = sys_now();
    list_init(&service->requests);
    list_init(&service->premature);
    error = take_names(service, shared);
    if (error) {
        free(service);
        return error;
    }
    list_push_back(&services, &service->node);
    *ret_service = service;
    return 0;
}

/* Others of this process that have relied on the name of one that goes. */
static void pass_name_on(const struct service *gone)
{
    list_for_each (node, &services) {
        struct service *other = list_entry(node, struct service, node);

        if (other->shared && !other->names[0] && overlap(&other->address, &gone->address)) {
            (void)take_names(other, true); /* if others have taken it, there is nobody to tell */
            return;
        }
    }
}

void services_release(struct service *service)
{
    bool shared = service->shared && service->names[0];

    list_remove(&service->node);
    give_names_back(service);
    if (shared)
        pass_name_on(service);
    free(service);
}

int services_listen(struct service *service, void *listener, unsigned backlog)
{
    int error;

    if (service->shared) {
        if (is_in_our_way(service, &service->address, false))
            return -EADDRINUSE;
        give_names_back(service);
        error = take_names(service, false);
        if (error) {
            (void)take_names(service, true);
            return error;
        }
        service->shared = false;
    }
    service->listener = listener;
    service->backlog = backlog;
    return 0;
}

static bool is_at(const struct service_address *address, const uint8_t gid[16])
{
    return address->any ? address->any & family_of(gid) : memcmp(address->gid, gid, 16) == 0;
}

struct service *services_find(uint64_t service_id, const uint8_t gid[16], bool from_here)
{
    struct service *found = NULL, *of_host = NULL;

    list_for_each (node, &services) {
        struct service *service = list_entry(node, struct service, node);

        if (service->address.service_id != service_id)
            continue;
        if (service->host_names[index_of(family_of(gid))])
            of_host = service;
        /* Several that share do not listen. */
        if (is_at(&service->address, gid) && (!found || service->listener))
            found = service;
    }
    return found || !from_here ? found : of_host;
}

/* --- ephemeral ports ------------------------------------------------------------------------------------ */

/* Without a socket for each: they are granted in sets, each of which is one name. */
#define SET_PORTS 32u
#define SETS_MAX  (65536 / SET_PORTS)

static struct {
    struct local_name *name;
    uint32_t used;
} sets[SETS_MAX];
static uint32_t first_port, last_port;
static uint32_t port_turn; /* next to be looked at, so that a port rests after use */

static void read_range(void)
{
    char text[64];
    unsigned first = 0, last = 0;
    int fd = fd_lift(open("/proc/sys/net/ipv4/ip_local_port_range", O_RDONLY | O_CLOEXEC));
    ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

    if (fd >= 0)
        close(fd);
    if (length > 0) {
        text[length] = '\0';
        if (sscanf(text, "%u %u", &first, &last) != 2)
            first = last = 0;
    }
    if (first < 1024 || last > 65535 || first + SET_PORTS > last) {
        first = 32768;
        last = 60999;
    }
    first_port = first;
    last_port = last;
}

static uint16_t take_from_ours(void)
{
    for (uint32_t i = 0, range = last_port - first_port + 1; i < range; i++) {
        uint32_t port = first_port + (port_turn + i) % range;

        if (sets[port / SET_PORTS].name && !(sets[port / SET_PORTS].used >> (port % SET_PORTS) & 1)) {
            sets[port / SET_PORTS].used |= 1u << (port % SET_PORTS);
            port_turn = port_turn + i + 1;
            return (uint16_t)port;
        }
    }
    return 0;
}

static bool take_set(void)
{
    uint32_t first_set = first_port / SET_PORTS, count = last_port / SET_PORTS - first_set + 1, start;

    sys_random(&start, sizeof(start));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t set = first_set + (start + i) % count;
        name_text name;
        int error;

        if (sets[set].name)
            continue;
        snprintf(name, sizeof(name), "cm/ports/%u", set);
        error = local_name_take(name, &sets[set].name);
        if (!error) {
            port_turn = set * SET_PORTS > first_port ? set * SET_PORTS - first_port : 0;
            return true;
        }
        if (error != -EADDRINUSE) {
            log_error("cannot allocate an ephemeral RDMA CM port: %s", strerror(-error));
            return false;
        }
    }
    log_error("all ephemeral ports of this host are taken");
    return false;
}

uint16_t services_port_take(void)
{
    uint16_t port;

    if (!first_port)
        read_range();
    port = take_from_ours();
    return port || !take_set() ? port : take_from_ours();
}

uint16_t services_port_propose(void)
{
    uint32_t bits;

    if (!first_port)
        read_range();
    sys_random(&bits, sizeof(bits));
    return (uint16_t)(first_port + bits % (last_port - first_port + 1));
}

void services_port_return(uint16_t port)
{
    sets[port / SET_PORTS].used &= ~(1u << (port % SET_PORTS));
}

/* What the lists held is lost: they may have been half linked. */
void services_after_fork_in_child(void)
{
    list_init(&services);
    memset(sets, 0, sizeof(sets));
}
