/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/cm/services.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "object/device/device.h"
#include "object/memory/memory.h"

#define ADDRESSES_MAX 1024 /* of this host, against which a wildcard is checked */

static struct list services = {&services, &services};

/* --- names ---------------------------------------------------------------------------------------------- */

typedef char name_text[LOCAL_NAME_MAX + 1];

static const char hex_digits[] = "0123456789abcdef";

/* "cm/SERVICE_ID/", not by snprintf(): a client composes three names for each connection. Returns where the rest
 * goes. */
static char *name_begin(uint64_t service_id, name_text ret_name)
{
    char *next = ret_name + 3;

    memcpy(ret_name, "cm/", 3);
    for (int shift = 60; shift >= 0; shift -= 4)
        *next++ = hex_digits[service_id >> shift & 0xf];
    *next++ = '/';
    return next;
}

static void any_name(uint64_t service_id, enum service_any any, name_text ret_name)
{
    strcpy(name_begin(service_id, ret_name), any == SERVICE_ANY_IPV4 ? "any4" : "any6");
}

static void host_name(uint64_t service_id, enum service_any family, name_text ret_name)
{
    strcpy(name_begin(service_id, ret_name), family == SERVICE_ANY_IPV4 ? "host4" : "host6");
}

static void gid_name(uint64_t service_id, const uint8_t gid[16], name_text ret_name)
{
    char *next = name_begin(service_id, ret_name);

    for (int i = 0; i < 16; i++) {
        *next++ = hex_digits[gid[i] >> 4];
        *next++ = hex_digits[gid[i] & 0xf];
    }
    *next = '\0';
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

/* The names of a service. Returns their number. */
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
    strcat(name, "/shared"); /* fits: the longest name has 54 characters */
}

static bool is_shared(const name_text name)
{
    name_text shared;

    memcpy(shared, name, sizeof(shared));
    shared_name(shared);
    return local_name_is_held(shared);
}

/* --- conflicts ------------------------------------------------------------------------------------------ */

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

/* Does another service of this process conflict? */
static bool conflicts_here(const struct service *except, const struct service_address *address, bool shared)
{
    list_for_each (node, &services) {
        const struct service *other = list_entry(node, struct service, node);

        if (other != except && !(shared && other->shared) && overlap(&other->address, address))
            return true;
    }
    return false;
}

static bool name_conflicts(const name_text name, bool shared)
{
    return local_name_is_held(name) || (!shared && is_shared(name));
}

/* Does a service of another process conflict by other names than its own? A wildcard excludes every address of its
 * family, and the other way round. Two processes that try at the same moment may both fail. */
static bool conflicts_elsewhere(const struct service_address *address, bool shared)
{
    uint8_t(*addresses)[16];
    name_text name;
    unsigned count;
    bool found = false;

    if (!address->any) {
        any_name(address->service_id, family_of(address->gid), name);
        return name_conflicts(name, shared);
    }
    addresses = calloc(ADDRESSES_MAX, sizeof(*addresses));
    count = addresses ? device_table_addresses(&host_devices, addresses, ADDRESSES_MAX) : 0;
    for (unsigned i = 0; i < count && !found; i++) {
        if (!(address->any & family_of(addresses[i])))
            continue;
        gid_name(address->service_id, addresses[i], name);
        found = name_conflicts(name, shared);
    }
    free(addresses);
    return found;
}

/* --- holding and listening ------------------------------------------------------------------------------ */

static void release_names(struct service *service)
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

/* Index of a family in host_names. */
static unsigned index_of(enum service_any family)
{
    return family == SERVICE_ANY_IPV6;
}

/* Failure is not an error: another process holds the name, and gets the requests to addresses without a service. */
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
            log_info("RDMA CM port %u (service ID 0x%016llx): this wildcard listener gets no "
                     "connection requests to %s addresses of this host: %s",
                     (unsigned)(service->address.service_id & 0xffff),
                     (unsigned long long)service->address.service_id,
                     families[i] == SERVICE_ANY_IPV6 ? "IPv6" : "IPv4",
                     error == -EADDRINUSE ? "another wildcard listener of that port gets them"
                                          : strerror(-error));
    }
}

/* If a shared name has a holder already, here or in another process, *ret_name stays NULL. */
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
    } else if (!error && is_shared(name)) {
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
    if (!error && conflicts_elsewhere(&service->address, shared))
        error = -EADDRINUSE;
    if (error)
        release_names(service);
    else if (!shared)
        take_host_names(service);
    return error;
}

int services_reserve(const struct service_address *address, bool shared, struct service **ret_service)
{
    struct service *service;
    int error;

    if (conflicts_here(NULL, address, shared))
        return -EADDRINUSE;
    memory_expect_copies(); /* the link to who connects is made before there is a QP */
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

/* A service of this process held the name of shared services, and is released: another one takes the name. */
static void retake_shared_name(const struct service *gone)
{
    list_for_each (node, &services) {
        struct service *other = list_entry(node, struct service, node);

        if (other->shared && !other->names[0] && overlap(&other->address, &gone->address)) {
            (void)take_names(other, true); /* fails if another process has taken the name: nothing to do */
            return;
        }
    }
}

void services_release(struct service *service)
{
    bool shared = service->shared && service->names[0];

    list_remove(&service->node);
    release_names(service);
    if (shared)
        retake_shared_name(service);
    free(service);
}

int services_listen(struct service *service, void *listener, unsigned backlog)
{
    int error;

    if (service->shared) {
        if (conflicts_here(service, &service->address, false))
            return -EADDRINUSE;
        release_names(service);
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
        /* Shared services do not listen: a listener is preferred. */
        if (is_at(&service->address, gid) && (!found || service->listener))
            found = service;
    }
    return found || !from_here ? found : of_host;
}

/* --- ephemeral ports ------------------------------------------------------------------------------------ */

/* A process takes ports in sets, of which each is one name (a socket), not one name per port. */
#define SET_PORTS 32u
#define SETS_MAX  (65536 / SET_PORTS)

static struct {
    struct local_name *name; /* NULL: not of this process */
    uint32_t used;           /* a bit per port */
} sets[SETS_MAX];
static uint32_t first_port, last_port; /* of the host's ephemeral range; 0: not read yet */
/* Offset in the range where the search for a free port begins, so that a port is not reused at once. */
static uint32_t next_port;

static void read_range(void)
{
    char text[64];
    unsigned first = 0, last = 0;

    if (fd_read_text("/proc/sys/net/ipv4/ip_local_port_range", text, sizeof(text)) > 0 &&
        sscanf(text, "%u %u", &first, &last) != 2)
        first = last = 0;
    if (first < 1024 || last > 65535 || first + SET_PORTS > last) {
        first = 32768;
        last = 60999;
    }
    first_port = first;
    last_port = last;
}

/* Takes a port of the sets that this process holds. 0: all are used. */
static uint16_t take_from_sets(void)
{
    const uint32_t range = last_port - first_port + 1;

    for (uint32_t i = 0; i < range;) {
        uint32_t port = first_port + (next_port + i) % range, set = port / SET_PORTS;

        if (!sets[set].name) { /* hundreds of them, where the process has one */
            i += min_of(SET_PORTS - port % SET_PORTS, last_port - port + 1);
            continue;
        }
        i++;
        if (!(sets[set].used >> (port % SET_PORTS) & 1)) {
            sets[set].used |= 1u << (port % SET_PORTS);
            next_port = next_port + i;
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
            next_port = set * SET_PORTS > first_port ? set * SET_PORTS - first_port : 0;
            return true;
        }
        if (error != -EADDRINUSE) {
            log_error(
                "cannot allocate an ephemeral RDMA CM port, since no unix socket can be bound for it: %s "
                "(limit: ulimit -n)",
                strerror(-error));
            return false;
        }
    }
    log_error("all ephemeral RDMA CM ports of this host are taken (%u to %u, net.ipv4.ip_local_port_range): "
              "end processes that hold cm_ids (softhca ps lists them), or widen the range",
              first_port, last_port);
    return false;
}

uint16_t services_port_take(void)
{
    uint16_t port;

    if (!first_port)
        read_range();
    port = take_from_sets();
    return port || !take_set() ? port : take_from_sets();
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

/* Services leak: at the fork another thread may have been changing the lists. */
void services_after_fork_in_child(void)
{
    list_init(&services);
    memset(sets, 0, sizeof(sets));
}
