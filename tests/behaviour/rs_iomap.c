/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: riomap(), riounmap(), riowrite(). */
#include "rs.h"

#include <stdlib.h>

static const struct rs_setting one_mapping[] = {{SOL_RDMA, RDMA_IOMAPSIZE, 1}, {0, 0, 0}};
static const struct rs_setting four_mappings[] = {{SOL_RDMA, RDMA_IOMAPSIZE, 4}, {0, 0, 0}};

enum { BYTES = 300000 };
static uint8_t memory[4][BYTES];

struct mapping {
    int fd, which, protection;
    size_t length;
    off_t offset, result;
    int error;
};

/* The byte behind it in the stream is what makes it known. */
static void map_here(void *arg)
{
    struct mapping *mapping = arg;

    memset(memory[mapping->which], 0, sizeof memory[0]);
    mapping->result =
        riomap(mapping->fd, memory[mapping->which], mapping->length, mapping->protection, 0, mapping->offset);
    mapping->error = errno;
    if (mapping->result != -1)
        RS_IS(rsend(mapping->fd, "m", 1, 0), 1);
}

static off_t far_maps(struct rs_pair *pair, int which, size_t length, off_t offset)
{
    struct mapping mapping = {
        .fd = pair->far.fd, .which = which, .protection = PROT_WRITE, .length = length, .offset = offset};
    char byte;

    side_call(FAR, map_here, &mapping, sizeof mapping);
    CHECK(mapping.result != -1, "riomap: %s", strerror(mapping.error));
    RS_IS(rrecv(pair->near.fd, &byte, 1, MSG_WAITALL), 1);
    return mapping.result;
}

struct looking {
    int fd, which;
    size_t from, length;
    uint64_t position;
};

/* What was written is there when what was sent behind it is read. */
static void look_here(void *arg)
{
    struct looking *looking = arg;
    char byte;

    RS_IS(rrecv(looking->fd, &byte, 1, MSG_WAITALL), 1);
    rs_check(memory[looking->which] + looking->from, looking->position, looking->length);
}

static void write_all(int fd, uint64_t position, size_t length, off_t offset)
{
    uint8_t *data = malloc(length);
    size_t done = 0;

    rs_fill(data, position, length);
    while (done < length) {
        size_t now = riowrite(fd, data + done, length - done, offset + (off_t)done, 0);

        CHECK(now != (size_t)-1 && now > 0, "riowrite is %zd, errno %s", (ssize_t)now, strerror(errno));
        done += now;
    }
    free(data);
}

static void what_is_written_lands_where_it_was_mapped(void **state)
{
    static const size_t lengths[] = {1, 8, 64, 65, 4096, 70000, BYTES};
    struct rs_pair pair;

    rs_pair_open_with(&pair, one_mapping);
    assert_int_equal(far_maps(&pair, 0, BYTES, 0), 0);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct looking looking = {
            .fd = pair.far.fd, .length = lengths[i], .from = BYTES - lengths[i], .position = i * 1000};

        write_all(pair.near.fd, looking.position, looking.length, (off_t)looking.from);
        RS_IS(rsend(pair.near.fd, "w", 1, 0), 1);
        side_call(FAR, look_here, &looking, sizeof looking);
    }
    rs_pair_close(&pair);
}

static void an_offset_can_be_chosen_for_the_program(void **state)
{
    struct looking looking;
    struct rs_pair pair;
    off_t offset;

    rs_pair_open_with(&pair, one_mapping);
    offset = far_maps(&pair, 1, 1000, -1);
    assert_true(offset > 0);
    write_all(pair.near.fd, 5, 1000, offset);
    RS_IS(rsend(pair.near.fd, "w", 1, 0), 1);
    looking = (struct looking){.fd = pair.far.fd, .which = 1, .length = 1000, .position = 5};
    side_call(FAR, look_here, &looking, sizeof looking);
    rs_pair_close(&pair);
}

static void mappings_side_by_side_take_one_write(void **state)
{
    struct looking looking;
    struct rs_pair pair;

    rs_pair_open_with(&pair, four_mappings);
    for (int i = 0; i < 4; i++)
        far_maps(&pair, i, 1000, 1000 * i);
    write_all(pair.near.fd, 0, 3500, 500);
    RS_IS(rsend(pair.near.fd, "w", 1, 0), 1);
    looking = (struct looking){.fd = pair.far.fd, .which = 3, .length = 1000, .position = 2500};
    side_call(FAR, look_here, &looking, sizeof looking);
    rs_pair_close(&pair);
}

static void where_nothing_is_mapped_nothing_is_written(void **state)
{
    struct rs_pair pair;
    char bytes[100] = {0};

    rs_pair_open_with(&pair, one_mapping);
    RS_IS(riowrite(pair.near.fd, bytes, sizeof bytes, 0, 0), 0);
    far_maps(&pair, 0, 50, 1000);
    RS_IS(riowrite(pair.near.fd, bytes, sizeof bytes, 999, 0), 0);
    RS_IS(riowrite(pair.near.fd, bytes, sizeof bytes, 1050, 0), 0);
    RS_IS(riowrite(pair.near.fd, bytes, sizeof bytes, 1000, 0), 50);
    RS_IS(riowrite(pair.near.fd, bytes, 0, 1000, 0), 0);
    rs_talk(&pair);
    rs_pair_close(&pair);
}

/* Nothing that is on its way may be unmapped: the other side says when it is through. */
static void unmap_here(void *arg)
{
    struct mapping *mapping = arg;
    char byte;

    RS_IS(rrecv(mapping->fd, &byte, 1, MSG_WAITALL), 1);
    RS_IS(riounmap(mapping->fd, memory[mapping->which], mapping->length), 0);
    RS_FAILS(riounmap(mapping->fd, memory[mapping->which], mapping->length), EINVAL);
    RS_IS(rsend(mapping->fd, "u", 1, 0), 1);
}

static void what_is_unmapped_is_not_written_any_more(void **state)
{
    struct mapping mapping = {.length = 100};
    struct rs_pair pair;
    char byte = 0;

    rs_pair_open_with(&pair, one_mapping);
    mapping.fd = pair.far.fd;
    for (int i = 0; i < 500 / (int)slowness(); i++) { /* more often than there are credits */
        mapping.which = i % 2;
        far_maps(&pair, mapping.which, 100, i);
        RS_IS(riowrite(pair.near.fd, "abc", 3, i + 1, 0), 3);
        RS_IS(rsend(pair.near.fd, "w", 1, 0), 1);
        side_call(FAR, unmap_here, &mapping, sizeof mapping);
        RS_IS(rrecv(pair.near.fd, &byte, 1, MSG_WAITALL), 1);
        RS_IS(riowrite(pair.near.fd, "abc", 3, i + 1, 0), 0);
    }
    rs_talk(&pair);
    rs_pair_close(&pair);
}

static void mapping_has_its_limits(void **state)
{
    struct rs_pair pair;
    char bytes[2][64];

    rs_pair_open_with(&pair, one_mapping);
    RS_IS(riomap(pair.near.fd, bytes[0], sizeof bytes[0], PROT_WRITE, 0, 8), 8);
    RS_FAILS(riomap(pair.near.fd, bytes[1], sizeof bytes[1], PROT_WRITE, 0, 8), ENOMEM);
    RS_FAILS(riomap(pair.near.fd, bytes[1], sizeof bytes[1], PROT_READ, 0, 8), EINVAL);
    /* For oneself: any number. */
    RS_IS(riomap(pair.near.fd, bytes[1], sizeof bytes[1], PROT_NONE, 0, 3), 3);
    RS_IS(riounmap(pair.near.fd, bytes[1], sizeof bytes[1]), 0);
    RS_FAILS(riounmap(pair.near.fd, bytes[1], sizeof bytes[1]), EINVAL);
    RS_IS(riounmap(pair.near.fd, bytes[0], sizeof bytes[0]), 0);
    rs_talk(&pair);
    rs_pair_close(&pair);
    rs_pair_open(&pair); /* by default, there are none */
    RS_FAILS(riomap(pair.near.fd, bytes[0], sizeof bytes[0], PROT_WRITE, 0, 8), ENOMEM);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(what_is_written_lands_where_it_was_mapped), TEST(an_offset_can_be_chosen_for_the_program),
        TEST(mappings_side_by_side_take_one_write),      TEST(where_nothing_is_mapped_nothing_is_written),
        TEST(what_is_unmapped_is_not_written_any_more),  TEST(mapping_has_its_limits),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
