/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What counters of a segment add up to: sums, the text for Prometheus, port counters, the ledger. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "segment_fixture.h"
#include "stats/stats.h"
#include "unit.h"

static struct fixture *fixture;

static int make(void **state)
{
    struct traffic_record *traffic;

    fixture = fixture_make();
    traffic = &fixture->qps[0].traffic;
    traffic->requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND] = (struct traffic_count){3, 300};
    traffic->requested[TRAFFIC_BY_REQUESTER][TRAFFIC_WRITE] = (struct traffic_count){5, 4000};
    traffic->requested[TRAFFIC_BY_PACKETS][TRAFFIC_READ] = (struct traffic_count){2, 800};
    traffic->executed[TRAFFIC_SEND] = (struct traffic_count){7, 70};
    fixture->qps[0].latency[0] = 1;
    fixture->qps[0].latency[3] = 90;
    fixture->qps[0].has_rare = 1;
    fixture->qp_rares[0].traffic.latency[3] = 8;
    fixture->qp_rares[0].traffic.latency[LATENCY_BUCKETS - 1] = 1;
    fixture->qp_rares[0].traffic.failed[IBV_WC_RETRY_EXC_ERR] = 1;
    fixture->qps[0].sender.retransmissions = 4;
    strcpy(fixture->ports[0].device, "softhca0");
    fixture->ports[0].qps = 1;
    fixture->ports[0].sum.traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND] =
        (struct traffic_count){10, 1000};
    fixture->ports[0].sum.retries.retransmissions = 6;
    return 0;
}

static struct stats_process read_process(bool with_qps)
{
    struct view view = fixture_view();
    struct stats_process process;

    assert_int_equal(stats_read(&view, with_qps, &process), 0);
    return process;
}

static void a_sum_has_existing_and_destroyed_qps(void **state)
{
    struct stats_process process = read_process(true);

    assert_true(process.settled);
    assert_int_equal(process.port_count, 1);
    assert_string_equal(process.ports[0].device, "softhca0");
    assert_int_equal(process.ports[0].qps, 2);
    assert_int_equal(process.sum.traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND].messages, 13);
    assert_int_equal(process.sum.retries.retransmissions, 10);
    assert_int_equal(process.flow.bytes_out, 300 + 4000 + 1000);
    assert_int_equal(process.flow.bytes_in, 800 + 70);
    assert_int_equal(process.flow.messages_out, 3 + 5 + 2 + 10);
    assert_int_equal(process.qps, 2);
    assert_int_equal(process.list[0].qpn, FIXTURE_QPN);
    assert_int_equal(process.list[0].flow.messages_in, 7);
    assert_int_equal(process.mrs, 1);
    assert_int_equal(process.registered_bytes, 4096);
    stats_free(&process);
}

static void a_sum_that_changes_meanwhile_is_not_settled(void **state)
{
    struct stats_process process;

    fixture->header->ports_generation = 3;
    process = read_process(true);
    assert_false(process.settled);
    assert_int_equal(process.qps, 2);
    stats_free(&process);
}

static void latencies_are_found_by_their_part(void **state)
{
    struct stats_process process = read_process(false);

    assert_int_equal(stats_latency_count(&process.sum.rare), 100);
    assert_int_equal(stats_latency(&process.sum.rare, 500), 1u << (LATENCY_SHIFT + 3));
    assert_int_equal(stats_latency(&process.sum.rare, 10), 1u << LATENCY_SHIFT);
    assert_null(process.list);
}

static void a_hostile_segment_makes_no_label_and_no_file_name(void **state)
{
    struct stats_process process;
    struct stats_text text = {0};

    strcpy(fixture->ports[0].device, "../../etc\"\n");
    strcpy(fixture->header->program, "a\"b\\c\n");
    memset(&fixture->ports[1], 0xff, sizeof(fixture->ports[1]));
    memset(&fixture->qps[1].traffic, 0xff, sizeof(fixture->qps[1].traffic));
    fixture->qps[1].path.kind = 999;
    fixture->qps[1].state = 999;
    process = read_process(true);
    for (unsigned i = 0; i < process.port_count; i++) {
        assert_null(strchr(process.ports[i].device, '/'));
        assert_int_not_equal(process.ports[i].device[0], '.');
    }
    assert_int_equal(process.sum.traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND].messages, UINT64_MAX);
    stats_prometheus(&text, &process, 1, 0);
    assert_false(text.failed);
    assert_non_null(strstr(text.text, "program=\"a\\\"b\\\\c"));
    for (char *line = text.text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        assert_true(line[0] == '#' || strncmp(line, "softhca_", 8) == 0);
    free(text.text);
    stats_free(&process);
}

static uint64_t value(const struct stats_values *values, const char *name)
{
    const struct stats_file *files;
    unsigned count = stats_files(&files);

    for (unsigned i = 0; i < count; i++) {
        if (strcmp(files[i].name, name) == 0)
            return values->value[i];
    }
    fail_msg("no %s", name);
    return 0;
}

static void port_counters_have_direct_requests_in_both_directions(void **state)
{
    struct stats_process process = read_process(false);
    struct stats_values values;

    stats_port_values(&process.ports[0].sum, &values);
    assert_int_equal(value(&values, "port_xmit_data"), (300 + 4000 + 1000) / 4);
    assert_int_equal(value(&values, "port_rcv_data"), (800 + 70 + 4000) / 4);
    assert_int_equal(value(&values, "tx_send_requests"), 13);
    assert_int_equal(value(&values, "direct_requests"), 5);
    assert_int_equal(value(&values, "retry_exceeded_err"), 1);
}

/* --- the ledger ------------------------------------------------------------------------------------------ */

static uint64_t sends_in_ledger(int directory, const char *space, const struct stats_process *processes,
                                unsigned count)
{
    struct ledger_port ports[4];
    unsigned found;

    assert_int_equal(ledger_update(directory, "ledger", space, processes, count, ports, 4, &found), 0);
    return found ? value(&ports[0].values, "tx_send_requests") : 0;
}

static void the_ledger_keeps_what_a_process_has_counted(void **state)
{
    char path[] = "/tmp/softhca-ledger-XXXXXX", file[64];
    struct stats_process process = read_process(false), other = process;
    int directory;

    assert_non_null(mkdtemp(path));
    directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(sends_in_ledger(directory, "space 1", &process, 1), 13);
    assert_int_equal(sends_in_ledger(directory, "space 1", NULL, 0), 13); /* it has ended */
    other.instance[0] ^= 1;
    assert_int_equal(sends_in_ledger(directory, "space 1", &other, 1), 26);
    assert_int_equal(sends_in_ledger(directory, "space 1", &process, 1), 26); /* it was only hidden */
    process.ports[0].sum.traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND].messages = 1;
    assert_int_equal(sends_in_ledger(directory, "space 1", &process, 1), 26); /* it lies */
    /* More than are kept one by one. */
    for (unsigned i = 0; i < 3000; i++) {
        memcpy(other.instance + 4, &i, sizeof(i));
        other.instance[0] = 9;
        if (i % 100 == 99)
            assert_int_equal(sends_in_ledger(directory, "space 1", &other, 1), 26 + 13 * (i / 100 + 1));
    }
    assert_int_equal(sends_in_ledger(directory, "space 2", NULL, 0), 0); /* the machine was started */
    for (unsigned i = 0; i < 2; i++) {
        snprintf(file, sizeof(file), "%s/%s", path, i ? "ledger" : ".ledger.lock");
        assert_int_equal(unlink(file), 0);
    }
    close(directory);
    assert_int_equal(rmdir(path), 0);
}

static void a_damaged_ledger_is_no_harm(void **state)
{
    static const char text[] = "space 1\nabc softhca0 12 x 99999999999999999999999999\nabc\n\n"
                               "0123456789012345678901234567890123456789 softhca0 1\nz d -5\n";
    char path[] = "/tmp/softhca-ledger-XXXXXX", file[64];
    int directory, fd;

    assert_non_null(mkdtemp(path));
    directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = openat(directory, "ledger", O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    close(fd);
    sends_in_ledger(directory, "space 1", NULL, 0);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(file, sizeof(file), "%s/%s", path, i ? "ledger" : ".ledger.lock");
        assert_int_equal(unlink(file), 0);
    }
    close(directory);
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_sum_has_existing_and_destroyed_qps, make),
        cmocka_unit_test_setup(a_sum_that_changes_meanwhile_is_not_settled, make),
        cmocka_unit_test_setup(latencies_are_found_by_their_part, make),
        cmocka_unit_test_setup(a_hostile_segment_makes_no_label_and_no_file_name, make),
        cmocka_unit_test_setup(port_counters_have_direct_requests_in_both_directions, make),
        cmocka_unit_test_setup(the_ledger_keeps_what_a_process_has_counted, make),
        cmocka_unit_test_setup(a_damaged_ledger_is_no_harm, make),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
