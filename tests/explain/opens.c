/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program that is not linked to libibverbs, but opens it at run time, closes it, and opens it again; it destroys a PD
 * before its MR.
 *
 * usage: opens dlsym|dlvsym */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)

static bool by_version;

static void *function(void *library, const char *name)
{
    void *found = by_version ? dlvsym(library, name, "IBVERBS_1.1") : dlsym(library, name);

    REQUIRE(found);
    return found;
}
#define FUNCTION(name) __typeof__(&name) call_##name = (__typeof__(&name))function(library, #name)

static void once(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    static char buffer[4096];
    struct ibv_device **devices;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;

    REQUIRE(library);
    FUNCTION(ibv_get_device_list);
    FUNCTION(ibv_free_device_list);
    FUNCTION(ibv_open_device);
    FUNCTION(ibv_close_device);
    FUNCTION(ibv_alloc_pd);
    FUNCTION(ibv_dealloc_pd);
    FUNCTION(ibv_reg_mr);
    FUNCTION(ibv_dereg_mr);
    /* What is none of ours, and what is not there. */
    REQUIRE(dlsym(library, "ibv_no_such_verb") == NULL &&
            dlvsym(library, "ibv_alloc_pd", "IBVERBS_9.9") == NULL);
    REQUIRE(dlsym(RTLD_DEFAULT, "strlen") && dlsym(RTLD_NEXT, "strlen"));

    devices = call_ibv_get_device_list(NULL);
    REQUIRE(devices && devices[0]);
    context = call_ibv_open_device(devices[0]);
    REQUIRE(context);
    pd = call_ibv_alloc_pd(context);
    REQUIRE(pd);
    mr = call_ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(mr);
    REQUIRE(call_ibv_dealloc_pd(pd) == EBUSY);
    REQUIRE(call_ibv_dereg_mr(mr) == 0);
    REQUIRE(call_ibv_dealloc_pd(pd) == 0);
    REQUIRE(call_ibv_close_device(context) == 0);
    call_ibv_free_device_list(devices);
    REQUIRE(dlclose(library) == 0);
}

int main(int argc, char **argv)
{
    by_version = argc > 1 && strcmp(argv[1], "dlvsym") == 0;
    once();
    once();
    return 0;
}
