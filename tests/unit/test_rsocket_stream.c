/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two ends of a stream in one process, with a network of the test's own between them: requests are executed
 * in order of posting, at moments that the test picks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "front/rsockets/stream.h"
#include "unit.h"

enum { ENDS = 2, QUEUE = 1024, RING_MAX = 1 << 17, INLINE_MAX = 1024, MAPPINGS = 4 };

struct posted {
    struct stream_write write;
    uint8_t bytes[INLINE_MAX];
};

struct end {
    struct stream stream;
    struct stream_options options;
    struct end *peer;
    uint8_t send_ring[RING_MAX], receive_ring[RING_MAX];
    uint64_t table[64];
    struct posted *queue; /* posted and not executed */
    unsigned posted, executed, completed;
    uint64_t sent, received; /* bytes */
};

static uint8_t pattern(uint64_t position)
{
    return (uint8_t)(position * 31 + (position >> 8) * 17);
}

static void end_init(struct end *end, struct end *peer, uint32_t send_bytes, uint32_t receive_bytes,
                     uint16_t send_requests, uint16_t receive_requests, uint32_t inline_bytes)
{
    struct stream_options options = {
        .send_bytes = send_bytes,
        .receive_bytes = receive_bytes,
        .send_requests = send_requests,
        .receive_requests = receive_requests,
        .inline_bytes = inline_bytes,
        .chunk = 65536,
        .mappings = MAPPINGS,
        .table = end->table,
        .table_memory = {(uintptr_t)end->table, 11},
        .receive_memory = {(uintptr_t)end->receive_ring, 12},
    };

    end->options = options;
    end->peer = peer;
    end->queue = calloc(QUEUE, sizeof(*end->queue));
    assert_non_null(end->queue);
    stream_init(&end->stream, &options);
}

static struct end *ends_new(uint32_t send_bytes, uint32_t receive_bytes, uint16_t send_requests,
                            uint16_t receive_requests, uint32_t inline_bytes)
{
    struct end *ends = calloc(ENDS, sizeof(*ends));
    uint8_t bytes[RSOCKET_OFFER_BYTES];
    struct rsocket_offer offer;

    assert_non_null(ends);
    for (unsigned i = 0; i < ENDS; i++)
        end_init(&ends[i], &ends[!i], send_bytes, receive_bytes, send_requests, receive_requests,
                 inline_bytes);
    for (unsigned i = 0; i < ENDS; i++) {
        stream_offer(&ends[i].stream, &offer);
        rsocket_offer_encode(&offer, bytes);
        assert_int_equal(rsocket_offer_decode(bytes, sizeof(bytes), &offer), 0);
        stream_connect(&ends[!i].stream, &offer);
    }
    return ends;
}

static void ends_free(struct end *ends)
{
    for (unsigned i = 0; i < ENDS; i++)
        free(ends[i].queue);
    free(ends);
}

static struct posted *post(struct end *end, const struct stream_write *write)
{
    struct posted *posted = &end->queue[end->posted++ % QUEUE];

    assert_true(end->posted - end->executed <= QUEUE);
    posted->write = *write;
    return posted;
}

static void post_control(struct end *end, const struct stream_control *control)
{
    memcpy(post(end, &control->write)->bytes, control->bytes, control->write.length);
}

static uint32_t send_some(struct end *end, size_t wanted)
{
    struct stream_write write;

    stream_send(&end->stream, wanted, &write);
    assert_in_range(write.length, 1, wanted);
    post(end, &write);
    if (write.inlined) {
        struct posted *posted = &end->queue[(end->posted - 1) % QUEUE];

        assert_true(write.length <= end->options.inline_bytes);
        for (uint32_t i = 0; i < write.length; i++)
            posted->bytes[i] = pattern(end->sent + i);
    } else {
        uint32_t done = 0;

        for (unsigned p = 0; p < write.piece_count; p++)
            for (uint32_t i = 0; i < write.pieces[p].length; i++)
                end->send_ring[write.pieces[p].at + i] = pattern(end->sent + done++);
        assert_int_equal(done, write.length);
    }
    end->sent += write.length;
    return write.length;
}

/* What the QPs do: the oldest request is written, its immediate arrives, its completion comes back. */
static void execute_one(struct end *end)
{
    struct posted *posted = &end->queue[end->executed++ % QUEUE];
    struct stream_write *write = &posted->write;
    uint8_t *to = (uint8_t *)(uintptr_t)write->address;

    if (write->inlined) {
        if (write->length)
            memcpy(to, posted->bytes, write->length);
    } else {
        for (unsigned p = 0; p < write->piece_count; p++) {
            memcpy(to, end->send_ring + write->pieces[p].at, write->pieces[p].length);
            to += write->pieces[p].length;
        }
    }
    if (write->has_immediate) {
        assert_int_equal(stream_arrive(&end->peer->stream, write->immediate), 0);
        stream_receives_posted(&end->peer->stream);
    }
    if (write->signaled)
        stream_complete(&end->stream, write->wr_id);
}

static void tell(struct end *end)
{
    struct stream_control control;

    if (!stream_credits_due(&end->stream))
        return;
    stream_send_credits(&end->stream, &control);
    post_control(end, &control);
}

static void settle(struct end *ends)
{
    bool busy = true;

    while (busy) {
        busy = false;
        for (unsigned i = 0; i < ENDS; i++) {
            tell(&ends[i]);
            while (ends[i].executed != ends[i].posted) {
                execute_one(&ends[i]);
                busy = true;
            }
        }
    }
}

static uint32_t read_some(struct end *end, uint32_t wanted)
{
    uint32_t length, at;

    length = stream_peek(&end->stream, 0, &at);
    length = min_of(length, wanted);
    for (uint32_t i = 0; i < length; i++)
        assert_int_equal(end->receive_ring[at + i], pattern(end->received + i));
    stream_consume(&end->stream, length);
    end->received += length;
    return length;
}

/* --- streams -------------------------------------------------------------------------------------------- */

static void bytes_arrive_in_order_whatever_the_sizes(uint32_t send_bytes, uint32_t receive_bytes,
                                                     uint16_t requests, uint32_t inline_bytes, unsigned seed)
{
    struct end *ends = ends_new(send_bytes, receive_bytes, requests, requests, inline_bytes);
    const uint64_t total = 1u << 20;

    srand(seed);
    while (ends[0].received < total || ends[1].received < total) {
        for (unsigned i = 0; i < ENDS; i++) {
            struct end *end = &ends[i];
            size_t wanted = rand() % 3 ? (size_t)(rand() % 100 + 1) : (size_t)(rand() % 200000 + 1);

            if (rand() % 2 && stream_can_send(&end->stream) && end->posted - end->executed < 512)
                send_some(end, wanted);
            if (rand() % 2)
                while (end->executed != end->posted && rand() % 4)
                    execute_one(end);
            if (rand() % 2)
                read_some(end, (uint32_t)(rand() % 70000 + 1));
            if (rand() % 2)
                tell(end);
        }
    }
    ends_free(ends);
}

static void streams_of_many_shapes(void **state)
{
    bytes_arrive_in_order_whatever_the_sizes(131072, 131072, 384, 64, 1);
    bytes_arrive_in_order_whatever_the_sizes(4096, 4096, 16, 64, 2);
    bytes_arrive_in_order_whatever_the_sizes(4096, 65536, 16, 0, 3);
    bytes_arrive_in_order_whatever_the_sizes(65536, 2, 20, 16, 4);
    bytes_arrive_in_order_whatever_the_sizes(2048, 131072, 5, 1024, 5);
}

static void sending_stops_at_the_window_and_goes_on(void **state)
{
    struct end *ends = ends_new(131072, 8192, 384, 384, 0);
    uint32_t sent = 0;

    settle(ends); /* the second half is lent */
    while (stream_can_send(&ends[0].stream)) {
        sent += send_some(&ends[0], 100000);
        settle(ends);
    }
    assert_int_equal(sent, 8192);
    /* A part of a half is not lent again... */
    assert_int_equal(read_some(&ends[1], 4095), 4095);
    settle(ends);
    assert_false(stream_can_send(&ends[0].stream));
    /* ...a half is. */
    assert_int_equal(read_some(&ends[1], 1), 1);
    settle(ends);
    assert_true(stream_can_send(&ends[0].stream));
    ends_free(ends);
}

static void messages_are_bounded_by_credits(void **state)
{
    struct end *ends = ends_new(131072, 131072, 384, 20, 64);
    unsigned sent = 0;

    settle(ends);
    while (stream_can_send(&ends[0].stream)) {
        send_some(&ends[0], 1);
        sent++;
    }
    assert_int_equal(sent, 20);
    settle(ends); /* their receives are posted again, so they count no more, read or not */
    assert_true(stream_can_send(&ends[0].stream));
    ends_free(ends);
}

static void who_waits_for_room_can_rely_on_a_completion(void **state)
{
    for (uint16_t requests = 5; requests < 64; requests++) {
        struct end *ends = ends_new(4096, 131072, requests, 384, 64);
        bool signaled = false;

        settle(ends);
        while (stream_can_send(&ends[0].stream)) {
            send_some(&ends[0], requests % 2 ? 100 : 1);
            signaled |= ends[0].queue[(ends[0].posted - 1) % QUEUE].write.signaled;
        }
        assert_true(signaled);
        settle(ends);
        assert_true(stream_can_send(&ends[0].stream));
        ends_free(ends);
    }
}

static void control_messages_are_four_at_a_time(void **state)
{
    struct end *ends = ends_new(4096, 4096, 16, 16, 64);
    struct stream_control control;
    unsigned sent = 0;

    while (stream_can_control(&ends[0].stream)) {
        stream_send_control(&ends[0].stream, RSOCKET_KEEPALIVE, &control);
        assert_false(control.write.has_immediate);
        assert_int_equal(control.write.length, 0);
        post_control(&ends[0], &control);
        sent++;
    }
    assert_int_equal(sent, STREAM_CONTROLS);
    assert_false(stream_is_idle(&ends[0].stream));
    settle(ends);
    assert_true(stream_is_idle(&ends[0].stream));
    assert_true(stream_can_control(&ends[0].stream));
    ends_free(ends);
}

/* --- ends of streams ------------------------------------------------------------------------------------ */

static void say(struct end *end, int how, bool expected, enum rsocket_control expected_control)
{
    enum rsocket_control control;
    struct stream_control message;

    assert_int_equal(stream_shutdown(&end->stream, how, &control), expected);
    if (!expected)
        return;
    assert_int_equal(control, expected_control);
    stream_send_control(&end->stream, control, &message);
    post_control(end, &message);
}

static void a_half_closed_stream_goes_on_in_the_other_direction(void **state)
{
    struct end *ends = ends_new(4096, 4096, 16, 16, 64);

    send_some(&ends[0], 10);
    say(&ends[0], SHUT_WR, true, RSOCKET_SHUTDOWN);
    assert_false(stream_can_send(&ends[0].stream));
    settle(ends);
    assert_false(ends[1].stream.readable);
    assert_int_equal(read_some(&ends[1], 100), 10);
    assert_true(stream_can_send(&ends[1].stream));
    send_some(&ends[1], 20);
    settle(ends);
    assert_int_equal(read_some(&ends[0], 100), 20);
    say(&ends[1], SHUT_WR, true, RSOCKET_DISCONNECT);
    settle(ends);
    assert_false(ends[0].stream.connected);
    assert_false(ends[1].stream.connected);
    ends_free(ends);
}

static void shutting_both_directions_says_goodbye_once(void **state)
{
    struct end *ends = ends_new(4096, 4096, 16, 16, 64);

    say(&ends[0], SHUT_RD, false, 0); /* the peer may not know */
    assert_true(stream_can_send(&ends[0].stream));
    say(&ends[0], SHUT_RDWR, true, RSOCKET_DISCONNECT);
    say(&ends[0], SHUT_RDWR, false, 0);
    settle(ends);
    assert_false(ends[1].stream.connected || ends[1].stream.readable || ends[1].stream.writable);
    say(&ends[1], SHUT_RDWR, false, 0);
    ends_free(ends);
}

/* --- peers that lie ------------------------------------------------------------------------------------- */

static void a_peer_cannot_claim_more_than_it_was_lent(void **state)
{
    struct end *ends = ends_new(4096, 4096, 16, 16, 64);
    struct stream *stream = &ends[0].stream;

    assert_int_equal(stream_arrive(stream, rsocket_immediate(RSOCKET_DATA, 2049)), -EPROTO);
    assert_int_equal(stream_arrive(stream, rsocket_immediate(RSOCKET_DATA, RSOCKET_LENGTH_MAX)), -EPROTO);
    assert_int_equal(stream_arrive(stream, rsocket_immediate(RSOCKET_DATA, 2000)), 0);
    assert_int_equal(stream_arrive(stream, rsocket_immediate(RSOCKET_DATA, 49)), -EPROTO);
    assert_int_equal(stream->readable_bytes, 2000);
    ends_free(ends);
}

static void reserved_messages_break_a_stream(void **state)
{
    struct end *ends = ends_new(4096, 4096, 16, 16, 64);

    for (uint32_t type = 0; type < 8; type++) {
        bool known = type == RSOCKET_DATA || type == RSOCKET_CREDITS || type == RSOCKET_IOMAP ||
                     type == RSOCKET_CONTROL;

        assert_int_equal(stream_arrive(&ends[0].stream, type << RSOCKET_MESSAGE_SHIFT | 3),
                         known ? 0 : -EPROTO);
    }
    assert_int_equal(stream_arrive(&ends[0].stream, rsocket_immediate(RSOCKET_IOMAP, MAPPINGS)), -EPROTO);
    ends_free(ends);
}

static void any_immediates_and_tables_leave_it_within_bounds(void **state)
{
    struct end *ends = ends_new(4096, 8192, 16, 16, 64);
    struct stream *stream = &ends[0].stream;
    struct stream_control control;
    struct stream_write write;

    srand(7);
    for (unsigned i = 0; i < 200000; i++) {
        uint32_t type = (uint32_t)rand() % 8, value = (uint32_t)rand() % (rand() % 2 ? 9000 : 1u << 29), at;

        if (type == RSOCKET_CONTROL && rand() % 100)
            continue;
        for (unsigned w = 0; w < 4; w++)
            ends[0].table[w] = (uint64_t)rand() << 32 | (uint32_t)rand();
        stream_arrive(stream, type << RSOCKET_MESSAGE_SHIFT | value);
        stream_receives_posted(stream);
        assert_true(stream->readable_bytes <= 8192);
        assert_true(stream->readable_bytes + stream->lent + stream->unlent == 8192);
        if (rand() % 2)
            stream_consume(stream, min_of(stream_peek(stream, 0, &at), (uint32_t)rand() % 5000));
        if (stream_can_send(stream)) {
            stream_send(stream, (size_t)rand() % 100000 + 1, &write);
            assert_in_range(write.length, 1, 4096);
            if (write.signaled)
                stream_complete(stream, write.wr_id);
        }
        if (stream_credits_due(stream)) {
            stream_send_credits(stream, &control);
            stream_complete(stream, control.write.wr_id);
        }
        assert_true(stream->requests_free <= 12 && stream->ring_free <= 4096 && stream->controls_free <= 4);
    }
    ends_free(ends);
}

/* --- bytes ---------------------------------------------------------------------------------------------- */

static void private_data_as_on_the_wire(void **state)
{
    /* Version 1, little endian with mappings, 384 credits, 1 mapping. */
    static const uint8_t wire[RSOCKET_OFFER_BYTES] = {
        1,    2,    0x01, 0x80, 0,    0,    0,    1,    0x00, 0x00, 0x7f, 0x12, 0x34, 0x56,
        0x78, 0x90, 0xde, 0xad, 0xbe, 0xef, 0,    0,    0,    2,    0x00, 0x00, 0x7f, 0xff,
        0xee, 0xdd, 0xcc, 0xbb, 0xca, 0xfe, 0xba, 0xbe, 0,    1,    0,    0};
    uint8_t bytes[RSOCKET_OFFER_BYTES];
    struct rsocket_offer offer;

    assert_int_equal(rsocket_offer_decode(wire, sizeof(wire), &offer), 0);
    assert_false(offer.big_endian);
    assert_int_equal(offer.credits, 384);
    assert_int_equal(offer.mappings, 1);
    assert_int_equal(offer.table.address, 0x00007f1234567890);
    assert_int_equal(offer.table.key, 0xdeadbeef);
    assert_int_equal(offer.table.length, 2);
    assert_int_equal(offer.first.address, 0x00007fffeeddccbb);
    assert_int_equal(offer.first.key, 0xcafebabe);
    assert_int_equal(offer.first.length, 65536);
    rsocket_offer_encode(&offer, bytes);
    assert_memory_equal(bytes, wire, sizeof(wire));

    assert_int_equal(rsocket_offer_decode(wire, sizeof(wire) - 1, &offer), -EPROTO);
    memcpy(bytes, wire, sizeof(bytes));
    bytes[0] = 2;
    assert_int_equal(rsocket_offer_decode(bytes, sizeof(bytes), &offer), -EPROTONOSUPPORT);
    memcpy(bytes, wire, sizeof(bytes));
    bytes[1] = 0; /* without mappings: the byte means nothing */
    assert_int_equal(rsocket_offer_decode(bytes, sizeof(bytes), &offer), 0);
    assert_int_equal(offer.mappings, 0);
}

static void numbers_of_mappings_are_rounded_down_to_what_can_be_said(void **state)
{
    static const uint32_t expected[][2] = {{0, 0},     {1, 1},     {128, 128},     {129, 128},    {255, 128},
                                           {256, 256}, {700, 512}, {32512, 32512}, {65535, 32512}};

    for (size_t i = 0; i < array_size(expected); i++)
        assert_int_equal(rsocket_round_mappings(expected[i][0]), expected[i][1]);
}

static void windows_are_written_in_the_order_of_the_reader(void **state)
{
    struct rsocket_window window = {0x0102030405060708, 0x11121314, 0x21222324}, back;
    uint64_t entry[2];

    rsocket_window_encode(&window, false, (uint8_t *)entry);
    rsocket_window_load(entry, &back);
    assert_memory_equal(&window, &back, sizeof(back));
    rsocket_window_encode(&window, true, (uint8_t *)entry);
    rsocket_window_load(entry, &back);
    assert_int_equal(back.address, 0x0807060504030201);
    assert_int_equal(back.key, 0x14131211);
    assert_int_equal(back.length, 0x24232221);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_of_many_shapes),
        cmocka_unit_test(sending_stops_at_the_window_and_goes_on),
        cmocka_unit_test(messages_are_bounded_by_credits),
        cmocka_unit_test(who_waits_for_room_can_rely_on_a_completion),
        cmocka_unit_test(control_messages_are_four_at_a_time),
        cmocka_unit_test(a_half_closed_stream_goes_on_in_the_other_direction),
        cmocka_unit_test(shutting_both_directions_says_goodbye_once),
        cmocka_unit_test(a_peer_cannot_claim_more_than_it_was_lent),
        cmocka_unit_test(reserved_messages_break_a_stream),
        cmocka_unit_test(any_immediates_and_tables_leave_it_within_bounds),
        cmocka_unit_test(private_data_as_on_the_wire),
        cmocka_unit_test(numbers_of_mappings_are_rounded_down_to_what_can_be_said),
        cmocka_unit_test(windows_are_written_in_the_order_of_the_reader),
    };

    return run_unit_tests("rsocket stream", tests);
}
