/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names without a device behind them, against the distribution's library, which is the judge: texts, rates,
 * conversions, files.
 *
 * usage: test_helpers DISTRIBUTION_LIBRARY   (the file that libibverbs.so.1 links to, such as
 * libibverbs.so.1.14.44.0) */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "base/types.h"
#include "base/verbs.h"

static void *theirs, *ours;
static int their_release; /* 44 of rdma-core 44 */

/* Values that releases of rdma-core have added. Older ones answer as to any value that they do not know. */
static const struct addition {
    const char *function;
    int value;
    int since;
    const char *text;
    int number;
} additions[] = {
    {"ibv_event_type_str", IBV_EVENT_WQ_FATAL, 38, .text = "WQ fatal"},
    {"ibv_event_type_str", IBV_EVENT_WQ_FATAL + 1, 62, .text = "Device link speed change"},
    {"ibv_rate_to_mult", IBV_RATE_800_GBPS, 39, .number = 320},
    {"ibv_rate_to_mult", IBV_RATE_1200_GBPS, 39, .number = 480},
    {"mult_to_ibv_rate", 320, 39, .number = IBV_RATE_800_GBPS},
    {"mult_to_ibv_rate", 480, 39, .number = IBV_RATE_1200_GBPS},
    {"ibv_rate_to_mbps", IBV_RATE_800_GBPS, 39, .number = 850000},
    {"ibv_rate_to_mbps", IBV_RATE_1200_GBPS, 39, .number = 1275000},
    {"mbps_to_ibv_rate", 850000, 39, .number = IBV_RATE_800_GBPS},
    {"mbps_to_ibv_rate", 1275000, 39, .number = IBV_RATE_1200_GBPS},
};

typedef const char *(*text_function)(int);
typedef int (*number_function)(int);
typedef void (*copy_function)(void *, const void *);
typedef int (*read_function)(const char *, const char *, char *, size_t);

static void *lookup(void *library, const char *name)
{
    void *function = dlsym(library, name);

    assert_non_null(function);
    return function;
}

/* NULL if the library compared with has it, or no release does. */
static const struct addition *newer_than_theirs(const char *function, int value)
{
    for (size_t i = 0; i < array_size(additions); i++) {
        const struct addition *addition = &additions[i];

        if (!strcmp(addition->function, function) && addition->value == value)
            return their_release < addition->since ? addition : NULL;
    }
    return NULL;
}

static void compare_texts(const char *name, int first, int last)
{
    text_function our = (text_function)lookup(ours, name), their = (text_function)lookup(theirs, name);

    assert_ptr_not_equal(our, their);
    for (int value = first; value <= last; value++) {
        const struct addition *addition = newer_than_theirs(name, value);

        assert_string_equal(our(value), addition ? addition->text : their(value));
        if (addition)
            assert_string_equal(their(value), "unknown");
    }
}

static void test_texts(void **state)
{
    compare_texts("ibv_wc_status_str", -2, 40);
    compare_texts("ibv_event_type_str", 0, IBV_EVENT_WQ_FATAL + 1);
    compare_texts("ibv_port_state_str", -2, 10);
    compare_texts("ibv_node_type_str", 1, 10);
    assert_string_equal(((text_function)lookup(ours, "ibv_event_type_str"))(-1), "unknown");
    assert_string_equal(((text_function)lookup(ours, "ibv_event_type_str"))(99), "unknown");
    assert_string_equal(((text_function)lookup(ours, "ibv_node_type_str"))(IBV_NODE_UNKNOWN), "unknown");
}

/* Debian 12's library does not have it yet. */
static void test_opcodes(void **state)
{
    text_function text = (text_function)lookup(ours, "ibv_wr_opcode_str");

    assert_string_equal(text(IBV_WR_RDMA_WRITE_WITH_IMM), "rdma-write-with-imm");
    assert_string_equal(text(14), "flush");
    assert_string_equal(text(IBV_WR_ATOMIC_WRITE), "atomic-write");
    assert_string_equal(text(12), "unknown"); /* NULL of rdma-core's, which puts() dies of */
    assert_string_equal(text(-1), "unknown");
    if (!dlsym(theirs, "ibv_wr_opcode_str"))
        return;
    compare_texts("ibv_wr_opcode_str", IBV_WR_RDMA_WRITE, IBV_WR_DRIVER1);
    compare_texts("ibv_wr_opcode_str", 14, 20);
}

/* unknown: what a release answers to a value that it does not know */
static void compare_numbers(const char *name, int first, int last, int unknown)
{
    number_function our = (number_function)lookup(ours, name), their = (number_function)lookup(theirs, name);

    for (int value = first; value <= last; value++) {
        const struct addition *addition = newer_than_theirs(name, value);
        int expected = addition ? addition->number : their(value);

        if (our(value) != expected)
            fail_msg("%s(%d) is %d, not %d", name, value, our(value), expected);
        if (addition)
            assert_int_equal(their(value), unknown);
    }
}

static void test_rates(void **state)
{
    compare_numbers("ibv_rate_to_mult", -2, 40, -1);
    compare_numbers("mult_to_ibv_rate", -2, 600, IBV_RATE_MAX);
    compare_numbers("ibv_rate_to_mbps", -2, 40, -1);
    compare_numbers("mbps_to_ibv_rate", -2, 1300000, IBV_RATE_MAX);
}

static void compare_copies(const char *name, size_t from_size, size_t to_size)
{
    copy_function our = (copy_function)lookup(ours, name), their = (copy_function)lookup(theirs, name);
    char from[512], our_to[512], their_to[512];

    assert_true(from_size <= sizeof(from) && to_size <= sizeof(our_to));
    for (unsigned round = 0; round < 16; round++) {
        for (size_t i = 0; i < from_size; i++)
            from[i] = (char)(i * 37 + round * 101 + 1);
        memset(our_to, 0x5a, sizeof(our_to));
        memset(their_to, 0x5a, sizeof(their_to));
        our(our_to, from);
        their(their_to, from);
        assert_memory_equal(our_to, their_to, sizeof(our_to));
    }
}

static void test_conversions(void **state)
{
    compare_copies("ibv_copy_ah_attr_from_kern", sizeof(struct ib_uverbs_ah_attr),
                   sizeof(struct ibv_ah_attr));
    compare_copies("ibv_copy_qp_attr_from_kern", sizeof(struct ib_uverbs_qp_attr),
                   sizeof(struct ibv_qp_attr));
    compare_copies("ibv_copy_path_rec_from_kern", sizeof(struct ib_user_path_rec),
                   sizeof(struct ibv_sa_path_rec));
    compare_copies("ibv_copy_path_rec_to_kern", sizeof(struct ibv_sa_path_rec),
                   sizeof(struct ib_user_path_rec));
}

static void test_sysfs_files(void **state)
{
    static const char *const contents[] = {"",         "\n",       "text", "text\n", "two\nlines\n",
                                           "12345678", "1234567\n"};
    read_function our = (read_function)lookup(ours, "ibv_read_sysfs_file");
    read_function their = (read_function)lookup(theirs, "ibv_read_sysfs_file");
    char directory[] = "/tmp/softhca-abi-XXXXXX", path[64], our_text[64], their_text[64];

    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/file", directory);
    for (unsigned i = 0; i < array_size(contents); i++) {
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(contents[i], file);
        fclose(file);
        for (size_t size = 6; size < 20; size += 2) {
            int our_length, their_length;

            memset(our_text, '#', sizeof(our_text));
            memset(their_text, '#', sizeof(their_text));
            our_length = our(directory, "file", our_text, size);
            their_length = their(directory, "file", their_text, size);
            if (our_length != their_length)
                fail_msg("'%s' into %zu: %d, not %d", contents[i], size, our_length, their_length);
            if (our_length > 0)
                assert_string_equal(our_text, their_text);
            else if (our_length == 0)
                assert_string_equal(our_text, ""); /* theirs is not terminated then */
        }
    }
    unlink(path);
    rmdir(directory);
    assert_int_equal(our(directory, "file", our_text, sizeof(our_text)), -1);
}

static void test_sysfs_path(void **state)
{
    const char *(*path)(void) = (const char *(*)(void))lookup(ours, "ibv_get_sysfs_path");

    /* main() has set it, with slashes at its end. */
    assert_string_equal(path(), "/nowhere/sys");
}

static void test_fork(void **state)
{
    assert_int_equal(ibv_fork_init(), 0);
    assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_opcodes),
        cmocka_unit_test(test_rates),       cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_sysfs_files), cmocka_unit_test(test_sysfs_path),
        cmocka_unit_test(test_fork),
    };

    if (argc < 2) {
        printf("the distribution's libibverbs is not here to compare with\n");
        return 77;
    }
    if (sscanf(basename(argv[1]), "libibverbs.so.1.%*d.%d", &their_release) != 1) {
        fprintf(stderr, "%s: the name does not say which release of rdma-core it is of\n", argv[1]);
        return 1;
    }
    setenv("SYSFS_PATH", "/nowhere/sys//", 1);
    ours = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    theirs = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
    if (!ours || !theirs) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
