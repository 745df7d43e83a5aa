/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.1, §3.4, §3.5 and §3.13: what arrives, and what the completions say about it. */
#include "work.h"

#include <arpa/inet.h>

enum { MIB = 1 << 20 };

static const size_t sizes[] = {1,     2,     3,     7,     8,      9,       63,           64,   65,
                               255,   256,   1023,  1024,  1025,   4095,    4096,         4097, 8192,
                               16384, 65535, 65536, 65537, 262144, 1 << 20, (1 << 20) + 1};

static struct end_attr big(size_t size)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = size;
    return attr;
}

static void send_is_received_with_its_length_and_data(void **state)
{
    struct end_attr attr = big(2 * MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct ibv_wc wc;

        end_fill(&p.a, 3, sizes[i], i);
        end_fill(&p.b, 0, sizes[i] + 64, 999);
        end_recv(&p.b, a_recv(&p.b, i, 5, sizes[i] + 32));
        end_send(&p.a, a_send(&p.a, i, 3, sizes[i]));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        assert_int_equal(wc.byte_len, sizes[i]);
        assert_int_equal(wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV | IBV_WC_GRH), 0);
        end_expect_data(&p.b, 5, sizes[i], i);
    }
    pair_close(&p);
}

static void a_message_that_fits_exactly_is_received(void **state)
{
    struct end_attr attr = big(2 * MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(&p.a, 0, sizes[i], i);
        end_recv(&p.b, a_recv(&p.b, i, 0, sizes[i]));
        end_send(&p.a, a_send(&p.a, i, 0, sizes[i]));
        assert_int_equal(end_expect_success(&p.b, RQ, i, IBV_WC_RECV).byte_len, sizes[i]);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_data(&p.b, 0, sizes[i], i);
    }
    pair_close(&p);
}

static void the_unused_rest_of_a_receive_buffer_is_untouched(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.b, 1000, 1000, 5);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 2000));
    end_send(&p.a, a_send(&p.a, 1, 0, 1000));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_expect_data(&p.b, 1000, 1000, 5);
    pair_close(&p);
}

static void rdma_write_places_data_and_completes_only_at_the_initiator(void **state)
{
    struct end_attr attr = big(2 * MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    end_recv(&p.b, a_recv(&p.b, 77, 0, 8));
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(&p.a, 1, sizes[i], i);
        end_send(&p.a, a_write(&p.a, i, 1, sizes[i], &p.b, 7));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 7, sizes[i], i);
    }
    /* the one receive is still there for the one send */
    end_send(&p.a, a_send(&p.a, 99, 0, 8));
    end_expect_success(&p.b, RQ, 77, IBV_WC_RECV);
    assert_int_equal(end_poll_once(&p.b, RQ, (struct ibv_wc[1]){0}, 1), 0);
    pair_close(&p);
}

static void rdma_write_touches_nothing_around_its_range(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (size_t length = 1; length < 5000; length = length * 3 + 1) {
        end_fill(&p.b, 0, 8192, 42);
        end_fill(&p.a, 0, length, 1);
        end_send(&p.a, a_write(&p.a, 1, 0, length, &p.b, 1024));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 0, 1024, 42);
        end_expect_data(&p.b, 1024, length, 1);
        end_send(&p.a, a_read(&p.a, 2, 16384, 8192, &p.b, 0));
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
        fill_pattern(p.a.buf + 32768, 8192, 42);
        assert_memory_equal(p.a.buf + 16384 + 1024 + length, p.a.buf + 32768 + 1024 + length,
                            8192 - 1024 - length);
    }
    pair_close(&p);
}

static void rdma_write_with_immediate_consumes_a_receive_and_leaves_its_buffer(void **state)
{
    struct end_attr attr = big(2 * MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct send send = a_write(&p.a, i, 0, sizes[i], &p.b, 65536);
        struct ibv_wc wc;

        send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        send.wr.imm_data = htonl(0x12345678);
        end_fill(&p.a, 0, sizes[i], i);
        end_fill(&p.b, 0, 64, 9);
        end_recv(&p.b, i % 2 ? a_recv(&p.b, i, 0, 64) : a_recv(&p.b, i, 0, 0));
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV_RDMA_WITH_IMM);
        assert_int_equal(wc.byte_len, sizes[i]);
        assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
        assert_int_equal(wc.imm_data, htonl(0x12345678));
        end_expect_data(&p.b, 0, 64, 9);
        end_expect_data(&p.b, 65536, sizes[i], i);
    }
    pair_close(&p);
}

static void send_with_immediate_is_a_receive_with_a_flag(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 4; i++) {
        struct ibv_wc wc;

        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
        end_send(&p.a, a_send_imm(&p.a, i, 0, i * 10, 0x80000001 + i));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        assert_int_equal(wc.byte_len, i * 10);
        assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
        assert_int_equal(wc.imm_data, htonl(0x80000001 + i));
    }
    pair_close(&p);
}

static void rdma_read_fetches_data_and_reports_its_length(void **state)
{
    struct end_attr attr = big(2 * MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(&p.b, 11, sizes[i], i);
        end_send(&p.a, a_read(&p.a, i, 2, sizes[i], &p.b, 11));
        assert_int_equal(end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_READ).byte_len, sizes[i]);
        end_expect_data(&p.a, 2, sizes[i], i);
    }
    pair_close(&p);
}

static void fetch_and_add_returns_the_old_value_in_host_order(void **state)
{
    uint64_t value = 0xfffffffffffffff0;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_poke64(&p.b, 64, value);
    for (unsigned int i = 0; i < 20; i++) {
        end_send(&p.a, a_fetch_add(&p.a, i, 8, &p.b, 64, 3));
        assert_int_equal(end_expect_success(&p.a, SQ, i, IBV_WC_FETCH_ADD).byte_len, 8);
        assert_int_equal(end_peek64(&p.a, 8), value);
        value += 3;
        assert_int_equal(end_peek64(&p.b, 64), value);
    }
    pair_close(&p);
}

static void compare_and_swap_swaps_only_what_compares(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_poke64(&p.b, 64, 0x1122334455667788);
    end_send(&p.a, a_cas(&p.a, 1, 8, &p.b, 64, 0x1122334455667789, 1));
    assert_int_equal(end_expect_success(&p.a, SQ, 1, IBV_WC_COMP_SWAP).byte_len, 8);
    assert_int_equal(end_peek64(&p.a, 8), 0x1122334455667788);
    assert_int_equal(end_peek64(&p.b, 64), 0x1122334455667788);
    end_send(&p.a, a_cas(&p.a, 2, 8, &p.b, 64, 0x1122334455667788, 0x8877665544332211));
    end_expect_success(&p.a, SQ, 2, IBV_WC_COMP_SWAP);
    assert_int_equal(end_peek64(&p.a, 8), 0x1122334455667788);
    assert_int_equal(end_peek64(&p.b, 64), 0x8877665544332211);
    pair_close(&p);
}

static void an_atomic_result_may_be_scattered_over_sges(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_poke64(&p.b, 0, 0x0102030405060708);
    send = a_fetch_add(&p.a, 1, 0, &p.b, 0, 1);
    send.wr.num_sge = 2;
    send.sge[0].length = 4;
    send.sge[1] = send.sge[0];
    send.sge[1].addr += 4;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&p.a, 0), 0x0102030405060708);
    pair_close(&p);
}

static void zero_length_messages_are_legal(void **state)
{
    struct send send;
    struct ibv_wc wc;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 0));
    end_send(&p.a, a_send(&p.a, 1, 0, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    wc = end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    assert_int_equal(wc.byte_len, 0);
    /* neither address nor key is looked at */
    send = a_write(&p.a, 2, 0, 0, &p.b, 0);
    send.wr.wr.rdma.remote_addr = 1;
    send.wr.wr.rdma.rkey = 0xffffffff;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
    send.wr.opcode = IBV_WR_RDMA_READ;
    send.wr.wr_id = 3;
    end_send(&p.a, send);
    assert_int_equal(end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_READ).byte_len, 0);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.wr.wr_id = 4;
    end_recv(&p.b, a_recv(&p.b, 4, 0, 0));
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 4, IBV_WC_RDMA_WRITE);
    wc = end_expect_success(&p.b, RQ, 4, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.byte_len, 0);
    pair_close(&p);
}

static void an_sge_of_length_0_contributes_nothing_and_needs_no_lkey(void **state)
{
    struct send send;
    struct recv recv;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 100, 1);
    send = a_send(&p.a, 1, 0, 40);
    send.wr.num_sge = 3;
    send.sge[1] = (struct ibv_sge){.addr = 1, .length = 0, .lkey = 0xdeadbeef};
    send.sge[2] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 40, .length = 60, .lkey = p.a.lkey};
    recv = a_recv(&p.b, 2, 0, 50);
    recv.wr.num_sge = 3;
    recv.sge[2] = (struct ibv_sge){.addr = (uintptr_t)p.b.buf + 50, .length = 50, .lkey = p.b.lkey};
    recv.sge[1] = (struct ibv_sge){.addr = 1, .length = 0, .lkey = 0xdeadbeef};
    end_recv(&p.b, recv);
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(end_expect_success(&p.b, RQ, 2, IBV_WC_RECV).byte_len, 100);
    end_expect_data(&p.b, 0, 100, 1);
    pair_close(&p);
}

/* Splits a range into pieces of uneven size */
static int split(struct ibv_sge *sge, uint64_t addr, size_t length, uint32_t lkey, unsigned int pieces)
{
    for (unsigned int i = 0; i < pieces; i++) {
        const size_t piece = i + 1 < pieces ? length / (pieces + i) : length;

        sge[i] = (struct ibv_sge){.addr = addr, .length = (uint32_t)piece, .lkey = lkey};
        addr += piece;
        length -= piece;
    }
    return (int)pieces;
}

static void buffers_are_gathered_and_scattered_in_sge_order(void **state)
{
    struct end_attr attr = big(4 * MIB);
    uint64_t id = 0;
    struct pair p;

    attr.cap.max_send_sge = attr.cap.max_recv_sge = WORK_SGES;
    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (unsigned int from = 1; from <= WORK_SGES; from += 3) {
            struct send send = a_send(&p.a, ++id, 0, 0);
            struct recv recv = a_recv(&p.b, id, 0, 0);

            end_fill(&p.a, 0, sizes[i], id);
            send.wr.num_sge = split(send.sge, (uintptr_t)p.a.buf, sizes[i], p.a.lkey, from);
            recv.wr.num_sge = split(recv.sge, (uintptr_t)p.b.buf, sizes[i], p.b.lkey, WORK_SGES + 1 - from);
            end_recv(&p.b, recv);
            end_send(&p.a, send);
            end_expect_success(&p.a, SQ, id, IBV_WC_SEND);
            assert_int_equal(end_expect_success(&p.b, RQ, id, IBV_WC_RECV).byte_len, sizes[i]);
            end_expect_data(&p.b, 0, sizes[i], id);

            send.wr.opcode = IBV_WR_RDMA_WRITE;
            send.wr.wr_id = ++id;
            send.wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf + 2 * MIB;
            send.wr.wr.rdma.rkey = p.b.rkey;
            end_send(&p.a, send);
            end_expect_success(&p.a, SQ, id, IBV_WC_RDMA_WRITE);
            end_expect_data(&p.b, 2 * MIB, sizes[i], id - 1);

            end_fill(&p.b, 2 * MIB, sizes[i], id);
            send.wr.opcode = IBV_WR_RDMA_READ;
            send.wr.wr_id = ++id;
            end_send(&p.a, send);
            end_expect_success(&p.a, SQ, id, IBV_WC_RDMA_READ);
            end_expect_data(&p.a, 0, sizes[i], id - 1);
        }
    }
    pair_close(&p);
}

static void large_messages_arrive_whole(void **state)
{
    const size_t large[] = {4 * MIB, 16 * MIB + 3, 64 * MIB};
    const size_t count = slowness() > 1 ? 1 : COUNT(large); /* what is larger is only more of the same */
    struct end_attr attr = big(64 * MIB + 4096);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < count; i++) {
        end_fill(&p.a, 0, large[i], i);
        end_recv(&p.b, a_recv(&p.b, 1, 0, large[i]));
        end_send(&p.a, a_send(&p.a, 1, 0, large[i]));
        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, large[i]);
        end_expect_data(&p.b, 0, large[i], i);
        end_fill(&p.a, 0, large[i], 10 + i);
        end_send(&p.a, a_write(&p.a, 2, 0, large[i], &p.b, 1));
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 1, large[i], 10 + i);
        end_fill(&p.b, 0, large[i], 20 + i);
        end_send(&p.a, a_read(&p.a, 3, 8, large[i], &p.b, 0));
        assert_int_equal(end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_READ).byte_len, large[i]);
        end_expect_data(&p.a, 8, large[i], 20 + i);
    }
    pair_close(&p);
}

static void uc_sends_and_writes_arrive(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_UC);
    struct pair p;

    attr.size = 2 * MIB;
    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct ibv_wc wc;
        struct send send;

        end_fill(&p.a, 0, sizes[i], i);
        end_recv(&p.b, a_recv(&p.b, i, 0, sizes[i]));
        end_send(&p.a, a_send(&p.a, i, 0, sizes[i]));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.b, RQ, i, IBV_WC_RECV).byte_len, sizes[i]);
        end_expect_data(&p.b, 0, sizes[i], i);
        end_fill(&p.a, 0, sizes[i], i + 100);
        send = a_write(&p.a, i, 0, sizes[i], &p.b, 3);
        send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        send.wr.imm_data = htonl(5);
        end_recv(&p.b, a_recv(&p.b, i, 0, 0));
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV_RDMA_WITH_IMM);
        assert_int_equal(wc.byte_len, sizes[i]);
        assert_int_equal(wc.imm_data, htonl(5));
        end_expect_data(&p.b, 3, sizes[i], i + 100);
    }
    pair_close(&p);
}

/* compatibility.md §7: programs spin on the last byte */
struct spin {
    size_t at;
    uint8_t value;
    size_t length;
    uint64_t seed;
};

static void spin_on_last_byte(struct end *end, void *arg)
{
    const struct spin *spin = arg;
    volatile uint8_t *byte = end->buf + spin->at;

    EVENTUALLY(*byte == spin->value, "the last byte of an RDMA write");
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    CHECK(find_difference(end->buf, spin->length, spin->seed) == spin->length,
          "the last byte came before the rest");
}

static void a_reader_of_the_last_byte_sees_the_whole_write(void **state)
{
    static const size_t lengths[] = {8, 64, 100, 1000, 4096, 10000, 65536, 300000};
    struct end_attr attr = big(MIB);
    struct pair p;

    pair_connect_as(&p, &attr);
    for (unsigned int round = 0; round < 5 * COUNT(lengths); round++) {
        const size_t length = lengths[round % COUNT(lengths)];
        struct spin spin = {.at = length, .value = (uint8_t)(round + 1), .length = length, .seed = round};
        struct end_call call;

        end_fill(&p.a, 0, length, round);
        p.a.buf[length] = (uint8_t)(round + 1);
        end_poke(&p.b, length, &(uint8_t){0}, 1);
        end_start(&call, &p.b, spin_on_last_byte, &spin, sizeof spin);
        end_send(&p.a, a_write(&p.a, round, 0, length + 1, &p.b, 0));
        end_expect_success(&p.a, SQ, round, IBV_WC_RDMA_WRITE);
        end_finish(&call);
    }
    pair_close(&p);
}

/* Small requests may travel together, but not wait for ever for company, nor because there were many before.
 */
static void the_last_of_many_writes_arrives_though_nobody_polls(void **state)
{
    enum { WRITES = 60, FEW = 3, FEW_EVERY = 6, SIZE = 8 };
    struct ibv_wc wc[WRITES];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int round = 0; round < 40; round++) {
        const unsigned int writes = round % FEW_EVERY == FEW_EVERY - 1 ? FEW : WRITES;
        struct spin spin = {.at = writes * SIZE - 1,
                            .value = (uint8_t)(round + 1),
                            .length = (writes - 1) * SIZE,
                            .seed = round};
        struct end_call call;

        end_fill(&p.a, 0, writes * SIZE, round);
        p.a.buf[spin.at] = spin.value;
        end_poke(&p.b, spin.at, &(uint8_t){0}, 1);
        end_start(&call, &p.b, spin_on_last_byte, &spin, sizeof spin);
        for (unsigned int i = 0; i < writes; i++)
            end_send(&p.a, a_write(&p.a, i, i * SIZE, SIZE, &p.b, i * SIZE));
        end_finish(&call);
        end_poll(&p.a, SQ, wc, writes);
        for (unsigned int i = 0; i < writes; i++)
            check_success(&wc[i], i, IBV_WC_RDMA_WRITE);
    }
    pair_close(&p);
}

static void both_directions_at_once_lose_nothing(void **state)
{
    struct ibv_wc wc[32];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int round = 0; round < 20; round++) {
        for (unsigned int i = 0; i < 32; i++) {
            end_recv(&p.a, a_recv(&p.a, i, 32768 + i * 1024, 1000));
            end_recv(&p.b, a_recv(&p.b, i, 32768 + i * 1024, 1000));
            end_fill(&p.a, i * 1024, 1000, round * 100 + i);
            end_fill(&p.b, i * 1024, 1000, round * 100 + i + 50);
        }
        for (unsigned int i = 0; i < 32; i++) {
            end_send(&p.a, a_send(&p.a, i, i * 1024, 1000));
            end_send(&p.b, a_send(&p.b, i, i * 1024, 1000));
        }
        end_poll(&p.a, RQ, wc, 32);
        end_poll(&p.b, RQ, wc, 32);
        end_poll(&p.a, SQ, wc, 32);
        end_poll(&p.b, SQ, wc, 32);
        for (unsigned int i = 0; i < 32; i++) {
            end_expect_data(&p.b, 32768 + i * 1024, 1000, round * 100 + i);
            end_expect_data(&p.a, 32768 + i * 1024, 1000, round * 100 + i + 50);
        }
    }
    pair_close(&p);
}

static void a_qp_may_be_connected_to_itself(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    end_open(&end, NEAR, &attr);
    end_to_init(&end);
    end_to_rtr(&end, &end);
    end_to_rts(&end);
    end_fill(&end, 0, 5000, 1);
    end_recv(&end, a_recv(&end, 1, 8192, 5000));
    end_send(&end, a_send(&end, 2, 0, 5000));
    end_expect_success(&end, SQ, 2, IBV_WC_SEND);
    end_expect_success(&end, RQ, 1, IBV_WC_RECV);
    end_expect_data(&end, 8192, 5000, 1);
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(send_is_received_with_its_length_and_data),
        TEST(a_message_that_fits_exactly_is_received),
        TEST(the_unused_rest_of_a_receive_buffer_is_untouched),
        TEST(rdma_write_places_data_and_completes_only_at_the_initiator),
        TEST(rdma_write_touches_nothing_around_its_range),
        TEST(rdma_write_with_immediate_consumes_a_receive_and_leaves_its_buffer),
        TEST(send_with_immediate_is_a_receive_with_a_flag),
        TEST(rdma_read_fetches_data_and_reports_its_length),
        TEST(fetch_and_add_returns_the_old_value_in_host_order),
        TEST(compare_and_swap_swaps_only_what_compares),
        TEST(an_atomic_result_may_be_scattered_over_sges),
        TEST(zero_length_messages_are_legal),
        TEST(an_sge_of_length_0_contributes_nothing_and_needs_no_lkey),
        TEST(buffers_are_gathered_and_scattered_in_sge_order),
        TEST(large_messages_arrive_whole),
        TEST(uc_sends_and_writes_arrive),
        TEST(a_reader_of_the_last_byte_sees_the_whole_write),
        TEST(the_last_of_many_writes_arrives_though_nobody_polls),
        TEST(both_directions_at_once_lose_nothing),
        TEST(a_qp_may_be_connected_to_itself),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
