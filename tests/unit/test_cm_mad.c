/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MADs and the messages of communication management: IBA chapters 12 and 13, annex A11. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "wire/cm_mad.h"
#include "wire/cma_header.h"

/* --- where each field is, from the tables of the specification --- */

struct field {
    const char *name;
    uint16_t attribute;
    unsigned byte, bit, width; /* from the end of the MAD header; bit 0 is the byte's most significant */
    size_t member, size;       /* in struct cm_mad; a number in host order, or bytes */
};

#define NUMBER(what, byte_, bit_, width_, member_)                                                           \
    {                                                                                                        \
#what " " #member_, what, byte_, bit_, width_, offsetof(struct cm_mad, member_),                     \
            sizeof(((struct cm_mad *)0)->member_)                                                            \
    }
#define COMM_IDS(what) NUMBER(what, 0, 0, 32, local_comm_id), NUMBER(what, 4, 0, 32, remote_comm_id)
#define REQ_PATH(at, path)                                                                                   \
    NUMBER(CM_REQ, at, 0, 16, req.path.local_lid), NUMBER(CM_REQ, at + 2, 0, 16, req.path.remote_lid),       \
        NUMBER(CM_REQ, at + 4, 0, 128, req.path.local_gid),                                                  \
        NUMBER(CM_REQ, at + 20, 0, 128, req.path.remote_gid),                                                \
        NUMBER(CM_REQ, at + 36, 0, 20, req.path.flow_label),                                                 \
        NUMBER(CM_REQ, at + 39, 2, 6, req.path.packet_rate),                                                 \
        NUMBER(CM_REQ, at + 40, 0, 8, req.path.traffic_class),                                               \
        NUMBER(CM_REQ, at + 41, 0, 8, req.path.hop_limit),                                                   \
        NUMBER(CM_REQ, at + 42, 0, 4, req.path.service_level),                                               \
        NUMBER(CM_REQ, at + 42, 4, 1, req.path.subnet_local),                                                \
        NUMBER(CM_REQ, at + 43, 0, 5, req.path.local_ack_timeout)

static const struct field fields[] = {
    NUMBER(CM_REQ, 0, 0, 32, local_comm_id),
    NUMBER(CM_REQ, 5, 0, 24, req.ece.vendor_id),
    NUMBER(CM_REQ, 8, 0, 64, req.service_id),
    NUMBER(CM_REQ, 16, 0, 64, req.ca_guid),
    NUMBER(CM_REQ, 28, 0, 32, req.qkey),
    NUMBER(CM_REQ, 32, 0, 24, req.qpn),
    NUMBER(CM_REQ, 35, 0, 8, req.responder_resources),
    NUMBER(CM_REQ, 36, 0, 24, req.eecn),
    NUMBER(CM_REQ, 39, 0, 8, req.initiator_depth),
    NUMBER(CM_REQ, 40, 0, 24, req.remote_eecn),
    NUMBER(CM_REQ, 43, 0, 5, req.remote_response_timeout),
    NUMBER(CM_REQ, 43, 5, 2, req.service),
    NUMBER(CM_REQ, 43, 7, 1, req.flow_control),
    NUMBER(CM_REQ, 44, 0, 24, req.starting_psn),
    NUMBER(CM_REQ, 47, 0, 5, req.local_response_timeout),
    NUMBER(CM_REQ, 47, 5, 3, req.retry_count),
    NUMBER(CM_REQ, 48, 0, 16, req.pkey),
    NUMBER(CM_REQ, 50, 0, 4, req.path_mtu),
    NUMBER(CM_REQ, 50, 4, 1, req.rdc_exists),
    NUMBER(CM_REQ, 50, 5, 3, req.rnr_retry_count),
    NUMBER(CM_REQ, 51, 0, 4, req.max_cm_retries),
    NUMBER(CM_REQ, 51, 4, 1, req.srq),
    NUMBER(CM_REQ, 51, 5, 3, req.extended_service),
    REQ_PATH(52, primary),
    REQ_PATH(96, alternate),
    NUMBER(CM_REQ, 140, 0, 736, private_data),

    COMM_IDS(CM_MRA),
    NUMBER(CM_MRA, 8, 0, 2, mra.message),
    NUMBER(CM_MRA, 9, 0, 5, mra.service_timeout),
    NUMBER(CM_MRA, 10, 0, 1776, private_data),

    COMM_IDS(CM_REJ),
    NUMBER(CM_REJ, 8, 0, 2, rej.message),
    NUMBER(CM_REJ, 10, 0, 16, rej.reason),
    NUMBER(CM_REJ, 12, 0, 576, rej.info),
    NUMBER(CM_REJ, 84, 0, 1184, private_data),

    COMM_IDS(CM_REP),
    NUMBER(CM_REP, 8, 0, 32, rep.qkey),
    NUMBER(CM_REP, 12, 0, 24, rep.qpn),
    NUMBER(CM_REP, 16, 0, 24, rep.eecn),
    NUMBER(CM_REP, 20, 0, 24, rep.starting_psn),
    NUMBER(CM_REP, 24, 0, 8, rep.responder_resources),
    NUMBER(CM_REP, 25, 0, 8, rep.initiator_depth),
    NUMBER(CM_REP, 26, 0, 5, rep.target_ack_delay),
    NUMBER(CM_REP, 26, 5, 2, rep.failover),
    NUMBER(CM_REP, 26, 7, 1, rep.flow_control),
    NUMBER(CM_REP, 27, 0, 3, rep.rnr_retry_count),
    NUMBER(CM_REP, 27, 3, 1, rep.srq),
    NUMBER(CM_REP, 28, 0, 64, rep.ca_guid),
    NUMBER(CM_REP, 36, 0, 1568, private_data),

    COMM_IDS(CM_RTU),
    NUMBER(CM_RTU, 8, 0, 1792, private_data),
    COMM_IDS(CM_DREQ),
    NUMBER(CM_DREQ, 8, 0, 24, dreq.remote_qpn),
    NUMBER(CM_DREQ, 12, 0, 1760, private_data),
    COMM_IDS(CM_DREP),
    NUMBER(CM_DREP, 8, 0, 1792, private_data),

    COMM_IDS(CM_LAP),
    NUMBER(CM_LAP, 12, 0, 24, lap.remote_qpn),
    NUMBER(CM_LAP, 15, 0, 5, lap.remote_response_timeout),
    NUMBER(CM_LAP, 20, 0, 16, lap.alternate.local_lid),
    NUMBER(CM_LAP, 22, 0, 16, lap.alternate.remote_lid),
    NUMBER(CM_LAP, 24, 0, 128, lap.alternate.local_gid),
    NUMBER(CM_LAP, 40, 0, 128, lap.alternate.remote_gid),
    NUMBER(CM_LAP, 56, 0, 20, lap.alternate.flow_label),
    NUMBER(CM_LAP, 59, 0, 8, lap.alternate.traffic_class),
    NUMBER(CM_LAP, 60, 0, 8, lap.alternate.hop_limit),
    NUMBER(CM_LAP, 61, 2, 6, lap.alternate.packet_rate),
    NUMBER(CM_LAP, 62, 0, 4, lap.alternate.service_level),
    NUMBER(CM_LAP, 62, 4, 1, lap.alternate.subnet_local),
    NUMBER(CM_LAP, 63, 0, 5, lap.alternate.local_ack_timeout),
    NUMBER(CM_LAP, 64, 0, 1344, private_data),

    COMM_IDS(CM_APR),
    NUMBER(CM_APR, 9, 0, 8, apr.status),
    NUMBER(CM_APR, 12, 0, 576, apr.info),
    NUMBER(CM_APR, 84, 0, 1184, private_data),

    NUMBER(CM_SIDR_REQ, 0, 0, 32, local_comm_id),
    NUMBER(CM_SIDR_REQ, 4, 0, 16, sidr_req.pkey),
    NUMBER(CM_SIDR_REQ, 8, 0, 64, sidr_req.service_id),
    NUMBER(CM_SIDR_REQ, 16, 0, 1728, private_data),

    NUMBER(CM_SIDR_REP, 0, 0, 32, remote_comm_id),
    NUMBER(CM_SIDR_REP, 4, 0, 8, sidr_rep.status),
    NUMBER(CM_SIDR_REP, 8, 0, 24, sidr_rep.qpn),
    NUMBER(CM_SIDR_REP, 12, 0, 64, sidr_rep.service_id),
    NUMBER(CM_SIDR_REP, 20, 0, 32, sidr_rep.qkey),
    NUMBER(CM_SIDR_REP, 24, 0, 576, sidr_rep.info),
    NUMBER(CM_SIDR_REP, 96, 0, 1088, private_data),
};

static void empty_message(uint16_t attribute, uint8_t bytes[MAD_LENGTH])
{
    memset(bytes, 0, MAD_LENGTH);
    bytes[0] = 1;
    bytes[1] = 7;
    bytes[2] = 2;
    bytes[3] = 3;
    bytes[17] = (uint8_t)attribute;
}

static void set_bits(uint8_t bytes[MAD_LENGTH], const struct field *field)
{
    for (unsigned i = 0; i < field->width; i++) {
        unsigned bit = 8 * (MAD_HEADER_LENGTH + field->byte) + field->bit + i;

        bytes[bit / 8] |= (uint8_t)(0x80 >> bit % 8);
    }
}

/* A message in which only this field is not zero. */
static void each_field_is_where_the_specification_has_it(void **state)
{
    for (size_t i = 0; i < array_size(fields); i++) {
        const struct field *field = &fields[i];
        const bool number = field->size <= 8 && field->width <= 64;
        uint8_t bytes[MAD_LENGTH], again[MAD_LENGTH], others[sizeof(struct cm_mad)] = {0};
        struct cm_mad mad;
        uint64_t value = 0;

        empty_message(field->attribute, bytes);
        set_bits(bytes, field);
        assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
        cm_mad_encode(&mad, again);
        if (memcmp(again, bytes, sizeof(bytes)))
            fail_msg("%s is not encoded as it was decoded", field->name);

        if (number) {
            memcpy(&value, (char *)&mad + field->member, field->size);
            if (value != (field->width == 64 ? UINT64_MAX : (1ull << field->width) - 1))
                fail_msg("%s: decoded as %llx", field->name, (unsigned long long)value);
        } else {
            for (unsigned at = 0; at < field->width / 8; at++)
                if (((uint8_t *)&mad)[field->member + at] != 0xff)
                    fail_msg("%s: byte %u", field->name, at);
        }
        /* Nothing else is touched. */
        memset((char *)&mad + field->member, 0, number ? field->size : field->width / 8);
        mad.attribute = 0;
        mad.private_length = 0;
        if (memcmp(&mad, others, sizeof(mad)))
            fail_msg("%s changes another field, too", field->name);
    }
}

static void vendor_id_and_options_of_ece_are_scattered(void **state)
{
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad = {.attribute = CM_REP, .rep.ece = {.vendor_id = 0x123456, .options = 0x89abcdef}};

    cm_mad_encode(&mad, bytes);
    assert_int_equal(bytes[MAD_HEADER_LENGTH + 15], 0x12);
    assert_int_equal(bytes[MAD_HEADER_LENGTH + 19], 0x34);
    assert_int_equal(bytes[MAD_HEADER_LENGTH + 23], 0x56);
    assert_memory_equal(bytes + 20, "\x89\xab\xcd\xef", 4);
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.rep.ece.vendor_id, 0x123456);
    assert_int_equal(mad.rep.ece.options, 0x89abcdef);

    mad = (struct cm_mad){.attribute = CM_SIDR_REP, .sidr_rep.ece = {0x123456, 1}};
    cm_mad_encode(&mad, bytes);
    assert_memory_equal(bytes + MAD_HEADER_LENGTH + 6, "\x12\x34", 2);
    assert_int_equal(bytes[MAD_HEADER_LENGTH + 11], 0x56);
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.sidr_rep.ece.vendor_id, 0x123456);
}

static void the_header_is_that_of_a_mad(void **state)
{
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad = {
        .attribute = CM_REQ, .transaction_id = 0x0102030405060708, .req.ece.options = 0x11223344};
    static const uint8_t expected[MAD_HEADER_LENGTH] = {1, 7, 2, 3, 0, 0,    0, 0, 1,    2,    3,    4,
                                                        5, 6, 7, 8, 0, 0x10, 0, 0, 0x11, 0x22, 0x33, 0x44};

    cm_mad_encode(&mad, bytes);
    assert_memory_equal(bytes, expected, sizeof(expected));
}

/* What is not 24, 5, … bits wide where it is put. */
static void fields_that_are_too_wide_are_cut(void **state)
{
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad = {.attribute = CM_REQ};
    struct cm_mad wide = mad;

    mad.req.primary.flow_label = 0xfffff;
    wide.req.primary.flow_label = UINT32_MAX;
    mad.req.primary.packet_rate = wide.req.primary.packet_rate = 0x3f;
    wide.req.primary.packet_rate = 0xff;
    mad.req.retry_count = 7;
    wide.req.retry_count = 0x0f;
    mad.req.service = 3;
    wide.req.service = 0xff;
    mad.req.qpn = 0xabcdef;
    wide.req.qpn = 0x12abcdef;
    cm_mad_encode(&wide, bytes);
    wide = (struct cm_mad){0};
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &wide), 0);
    mad.private_length = CM_REQ_PRIVATE;
    assert_memory_equal(&wide, &mad, sizeof(mad));

    mad = (struct cm_mad){.attribute = CM_REJ, .private_length = 255};
    memset(mad.private_data, 0xee, sizeof(mad.private_data));
    cm_mad_encode(&mad, bytes);
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &wide), 0);
    assert_int_equal(wide.private_length, CM_REJ_PRIVATE);
}

static void a_length_of_information_is_bounded_by_what_there_is(void **state)
{
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad;

    empty_message(CM_REJ, bytes);
    bytes[MAD_HEADER_LENGTH + 9] = 0xff;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.rej.info_length, CM_INFO_MAX);
    bytes[MAD_HEADER_LENGTH + 9] = 8 << 1;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.rej.info_length, 8);
    empty_message(CM_APR, bytes);
    bytes[MAD_HEADER_LENGTH + 8] = 0xff;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.apr.info_length, CM_INFO_MAX);
    empty_message(CM_SIDR_REP, bytes);
    bytes[MAD_HEADER_LENGTH + 5] = 0xff;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
    assert_int_equal(mad.sidr_rep.info_length, CM_INFO_MAX);
}

static void private_data_has_the_length_of_its_message(void **state)
{
    static const uint8_t lengths[] = {92, 222, 148, 196, 224, 220, 224, 216, 136, 168, 148};
    static const char *const names[] = {"REQ",  "MRA",      "REJ",      "REP", "RTU", "DREQ",
                                        "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"};
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad;

    for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++) {
        assert_int_equal(cm_mad_private_length(attribute), lengths[attribute - CM_REQ]);
        assert_string_equal(cm_mad_name(attribute), names[attribute - CM_REQ]);
        empty_message(attribute, bytes);
        assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
        assert_int_equal(mad.private_length, lengths[attribute - CM_REQ]);
    }
    assert_int_equal(cm_mad_private_length(CM_REQ - 1), 0);
    assert_int_equal(cm_mad_private_length(CM_APR + 1), 0);
    assert_null(cm_mad_name(CM_APR + 1));
}

/* --- what is no message --- */

static void a_mad_has_256_bytes(void **state)
{
    uint8_t bytes[MAD_LENGTH + 1];
    struct cm_mad mad;
    uint32_t comm_id;
    uint64_t service_id;

    for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++) {
        empty_message(attribute, bytes);
        for (size_t length = 0; length <= sizeof(bytes); length++) {
            /* Exactly that many, so that an address sanitizer sees a read past them. */
            uint8_t *exact = test_malloc(length ? length : 1);

            memcpy(exact, bytes, min_of(length, (size_t)MAD_LENGTH));
            assert_int_equal(cm_mad_decode(exact, length, &mad), length == MAD_LENGTH ? 0 : -EPROTO);
            if (length != MAD_LENGTH)
                assert_int_equal(cm_mad_addressee(exact, length, &comm_id, &service_id), CM_FOR_NOBODY);
            test_free(exact);
        }
    }
}

static void other_versions_classes_and_methods_are_told_apart(void **state)
{
    uint8_t bytes[MAD_LENGTH];
    struct cm_mad mad;

    empty_message(CM_REQ, bytes);
    bytes[0] = 2;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTO);
    empty_message(CM_REQ, bytes);
    bytes[1] = 4;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTONOSUPPORT);
    empty_message(CM_REQ, bytes);
    bytes[3] = 0x81;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTONOSUPPORT);
    empty_message(CM_REQ - 1, bytes);
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTONOSUPPORT);
    empty_message(CM_APR + 1, bytes);
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTONOSUPPORT);
    empty_message(CM_REQ, bytes);
    bytes[16] = 1;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPROTONOSUPPORT);

    empty_message(CM_REQ, bytes);
    bytes[2] = 1;
    bytes[15] = 9;
    bytes[MAD_HEADER_LENGTH + 3] = 5;
    assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), -EPFNOSUPPORT);
    assert_int_equal(mad.attribute, CM_REQ);
    assert_int_equal(mad.transaction_id, 9);
    assert_int_equal(mad.local_comm_id, 5);
}

/* --- whom a message is for --- */

static void a_message_tells_whom_it_is_for(void **state)
{
    uint8_t bytes[MAD_LENGTH];

    for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++) {
        const bool service = attribute == CM_REQ || attribute == CM_SIDR_REQ;
        struct cm_mad mad = {
            .attribute = attribute, .local_comm_id = 0x11112222, .remote_comm_id = 0x33334444};
        uint32_t comm_id = 0;
        uint64_t service_id = 0;

        if (attribute == CM_REQ)
            mad.req.service_id = 0x0106abcd;
        if (attribute == CM_SIDR_REQ)
            mad.sidr_req.service_id = 0x0106abcd;
        cm_mad_encode(&mad, bytes);
        assert_int_equal(cm_mad_addressee(bytes, sizeof(bytes), &comm_id, &service_id),
                         service ? CM_FOR_SERVICE : CM_FOR_ID);
        assert_int_equal(service_id, service ? 0x0106abcd : 0);
        assert_int_equal(comm_id, service ? 0 : 0x33334444);
        bytes[2] = 3; /* another class version: REQ is answered */
        assert_int_equal(cm_mad_addressee(bytes, sizeof(bytes), &comm_id, &service_id),
                         service ? CM_FOR_SERVICE : CM_FOR_ID);
        bytes[1] = 1;
        assert_int_equal(cm_mad_addressee(bytes, sizeof(bytes), &comm_id, &service_id), CM_FOR_NOBODY);
    }
}

static void a_rej_without_addressee_is_for_whoever_has_the_request(void **state)
{
    const struct cm_mad mad = {.attribute = CM_REJ, .local_comm_id = 7};
    uint8_t bytes[MAD_LENGTH];
    uint32_t comm_id = 0;
    uint64_t service_id;

    cm_mad_encode(&mad, bytes);
    assert_int_equal(cm_mad_addressee(bytes, sizeof(bytes), &comm_id, &service_id), CM_FOR_REQUEST);
    assert_int_equal(comm_id, 7);
}

static void questions_claim_the_comm_id_of_who_asks(void **state)
{
    uint8_t bytes[MAD_LENGTH];

    for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++) {
        const bool claims =
            attribute != CM_REJ && attribute != CM_DREP && attribute != CM_APR && attribute != CM_SIDR_REP;
        const struct cm_mad mad = {.attribute = attribute, .local_comm_id = 0x11112222};
        uint32_t comm_id = 0;

        cm_mad_encode(&mad, bytes);
        assert_int_equal(cm_mad_claim(bytes, sizeof(bytes), &comm_id), claims);
        assert_int_equal(comm_id, claims ? 0x11112222 : 0);
        assert_false(cm_mad_claim(bytes, sizeof(bytes) - 1, &comm_id));
    }
}

/* --- what Linux 6.1 sends (rping over rdma_rxe, 192.168.77.1 and .2), but for the zeros at the end --- */

static const uint8_t linux_req[] = {
    0x01, 0x07, 0x02,      0x03,         0x00, 0x00, 0x00, 0x00,         0x00, 0x00, 0x00, 0x02,         0x15,
    0x99, 0x38, 0x47,      0x00,         0x10, 0x00, 0x00, 0x00,         0x00, 0x00, 0x00, 0x47,         0x38,
    0x99, 0x15, 0x00,      0x00,         0x00, 0x00, 0x00, 0x00,         0x00, 0x00, 0x01, 0x06,         0x1c,
    0x06, 0xb4, 0x42,      0x4d,         0xff, 0xfe, 0x04, 0x23,         0xab, 0x00, 0x00, 0x00,         0x00,
    0x00, 0x00, 0x00,      0x00,         0x00, 0x00, 0x12, 0x01,         0x00, 0x00, 0x00, 0x01,         0x00,
    0x00, 0x00, 0xa0,      0xa2,         0x23, 0x82, 0xa7, 0xff,         0xff, 0x57, 0xf0, 0xff,         0xff,
    0xff, 0xff, 0x00,      0x00,         0x00, 0x00, 0x00, 0x00,         0x00, 0x00, 0x00, 0x00,         0xff,
    0xff, 0xc0, 0xa8,      0x4d,         0x01, 0x00, 0x00, 0x00,         0x00, 0x00, 0x00, 0x00,         0x00,
    0x00, 0x00, 0xff,      0xff,         0xc0, 0xa8, 0x4d, 0x02,         0x9d, 0x85, 0xf0, 0x00,         0x00,
    0x40, 0x00, 0x98,      [164] = 0x00, 0x40, 0xd4, 0x87, [180] = 0xc0, 0xa8, 0x4d, 0x01, [196] = 0xc0, 0xa8,
    0x4d, 0x02, [255] = 0,
};
static const uint8_t linux_rep[MAD_LENGTH] = {
    0x01, 0x07, 0x02, 0x03, 0x00, 0x00, 0x00, 0x00, 0x22, 0xa2, 0xf6, 0xa3, 0x11, 0x89, 0x62,
    0x58, 0x00, 0x13, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x45, 0x38, 0x99, 0x15, 0x42, 0x42,
    0x5d, 0x3d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14,
    0xb5, 0x06, 0x00, 0x01, 0x01, 0x78, 0xe0, 0xb4, 0x42, 0x4d, 0xff, 0xfe, 0x04, 0x23, 0xab,
};

static void what_linux_sends_is_understood(void **state)
{
    static const uint8_t client[16] = {[10] = 0xff, 0xff, 192, 168, 77, 1};
    static const uint8_t server[16] = {[10] = 0xff, 0xff, 192, 168, 77, 2};
    uint8_t again[MAD_LENGTH];
    struct cma_header header;
    struct cm_mad mad;

    assert_int_equal(sizeof(linux_req), MAD_LENGTH);
    assert_int_equal(cm_mad_decode(linux_req, MAD_LENGTH, &mad), 0);
    assert_int_equal(mad.local_comm_id, 0x47389915);
    assert_int_equal(mad.transaction_id, 0x215993847);
    assert_int_equal(mad.req.service_id, cma_service_id(CMA_PS_TCP, 7174));
    assert_int_equal(mad.req.ca_guid, 0xb4424dfffe0423ab);
    assert_int_equal(mad.req.qpn, 0x12);
    assert_int_equal(mad.req.responder_resources, 1);
    assert_int_equal(mad.req.initiator_depth, 1);
    assert_int_equal(mad.req.remote_response_timeout, 20);
    assert_int_equal(mad.req.local_response_timeout, 20);
    assert_int_equal(mad.req.service, CM_SERVICE_RC);
    assert_int_equal(mad.req.starting_psn, 0xa22382);
    assert_int_equal(mad.req.retry_count, 7);
    assert_int_equal(mad.req.rnr_retry_count, 7);
    assert_int_equal(mad.req.max_cm_retries, 15);
    assert_int_equal(mad.req.pkey, 0xffff);
    assert_int_equal(mad.req.path_mtu, 5);
    assert_memory_equal(mad.req.primary.local_gid, client, 16);
    assert_memory_equal(mad.req.primary.remote_gid, server, 16);
    assert_int_equal(mad.req.primary.flow_label, 0x9d85f);
    assert_int_equal(mad.req.primary.hop_limit, 64);
    assert_int_equal(mad.req.primary.local_ack_timeout, 19);
    assert_int_equal(cma_header_decode(mad.private_data, mad.private_length, &header), 0);
    assert_int_equal(header.ip_version, 4);
    assert_int_equal(header.source_port, 54407);
    assert_memory_equal(header.source + 12, client + 12, 4);
    assert_memory_equal(header.destination + 12, server + 12, 4);
    cm_mad_encode(&mad, again);
    assert_memory_equal(again, linux_req, MAD_LENGTH);

    assert_int_equal(cm_mad_decode(linux_rep, MAD_LENGTH, &mad), 0);
    assert_int_equal(mad.remote_comm_id, 0x42425d3d);
    assert_int_equal(mad.rep.qpn, 0x11);
    assert_int_equal(mad.rep.starting_psn, 0x14b506);
    assert_int_equal(mad.rep.target_ack_delay, 15);
    assert_int_equal(mad.rep.rnr_retry_count, 7);
    assert_int_equal(mad.rep.ca_guid, 0xb4424dfffe0423ab);
    cm_mad_encode(&mad, again);
    assert_memory_equal(again, linux_rep, MAD_LENGTH);
}

/* --- addresses in private data --- */

static void a_service_id_is_a_port_space_and_a_port(void **state)
{
    uint16_t space, port;

    assert_int_equal(cma_service_id(CMA_PS_TCP, 7174), 0x1061c06);
    assert_true(cma_service_decode(0x1061c06, &space, &port));
    assert_int_equal(space, CMA_PS_TCP);
    assert_int_equal(port, 7174);
    assert_true(cma_service_decode(cma_service_id(CMA_PS_UDP, 0), &space, &port));
    assert_true(cma_service_decode(cma_service_id(CMA_PS_IB, 65535), &space, &port));
    assert_true(cma_service_decode(cma_service_id(CMA_PS_IPOIB, 1), &space, &port));
    assert_false(cma_service_decode(0x1071c06, &space, &port));
    assert_false(cma_service_decode(0x1000000001061c06, &space, &port));
    assert_false(cma_service_decode(0, &space, &port));
}

static void assert_same(const struct cma_header *a, const struct cma_header *b)
{
    assert_int_equal(a->ip_version, b->ip_version);
    assert_int_equal(a->source_port, b->source_port);
    assert_memory_equal(a->source, b->source, sizeof(a->source));
    assert_memory_equal(a->destination, b->destination, sizeof(a->destination));
}

static void addresses_are_at_the_beginning_of_private_data(void **state)
{
    static const struct cma_header v4 = {.ip_version = 4,
                                         .source_port = 0x1234,
                                         .source = {[12] = 10, 1, 2, 3},
                                         .destination = {[12] = 10, 4, 5, 6}};
    static const uint8_t v4_bytes[CMA_HEADER_LENGTH] = {0, 0x40, 0x12,      0x34, [16] = 10, 1,
                                                        2, 3,    [32] = 10, 4,    5,         6};
    struct cma_header v6 = {.ip_version = 6, .source_port = 1}, header;
    uint8_t bytes[CMA_HEADER_LENGTH];

    cma_header_encode(&v4, bytes);
    assert_memory_equal(bytes, v4_bytes, sizeof(bytes));
    assert_int_equal(cma_header_decode(bytes, sizeof(bytes), &header), 0);
    assert_same(&header, &v4);
    bytes[5] = 1; /* not part of an IPv4 address */
    assert_int_equal(cma_header_decode(bytes, sizeof(bytes), &header), 0);
    assert_same(&header, &v4);

    for (unsigned i = 0; i < 16; i++) {
        v6.source[i] = (uint8_t)(0x80 + i);
        v6.destination[i] = (uint8_t)(0xc0 + i);
    }
    cma_header_encode(&v6, bytes);
    assert_int_equal(bytes[1], 0x60);
    assert_memory_equal(bytes + 4, v6.source, 16);
    assert_memory_equal(bytes + 20, v6.destination, 16);
    assert_int_equal(cma_header_decode(bytes, sizeof(bytes), &header), 0);
    assert_same(&header, &v6);
}

static void a_header_that_is_none_is_refused(void **state)
{
    uint8_t bytes[CMA_HEADER_LENGTH] = {0, 0x40};
    struct cma_header header;

    for (size_t length = 0; length < CMA_HEADER_LENGTH; length++)
        assert_int_equal(cma_header_decode(bytes, length, &header), -EPROTO);
    for (unsigned version = 0; version < 16; version++) {
        bytes[1] = (uint8_t)(version << 4 | 0x0f);
        assert_int_equal(cma_header_decode(bytes, sizeof(bytes), &header),
                         version == 4 || version == 6 ? 0 : -EPROTO);
    }
    bytes[1] = 0x40;
    bytes[0] = 0x10;
    assert_int_equal(cma_header_decode(bytes, sizeof(bytes), &header), -EPROTO);
}

/* --- any bytes --- */

static void random_messages_survive_a_round_trip(void **state)
{
    uint64_t random = 0x2545f4914f6cdd1d;

    for (unsigned round = 0; round < 20000; round++) {
        uint8_t bytes[MAD_LENGTH], again[MAD_LENGTH];
        struct cm_mad mad, twice;

        for (size_t i = 0; i < sizeof(bytes); i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes[i] = (uint8_t)(random >> 32);
        }
        bytes[0] = 1;
        bytes[1] = 7;
        bytes[2] = 2;
        bytes[3] = 3;
        bytes[16] = 0;
        bytes[17] = (uint8_t)(CM_REQ + round % 11);
        assert_int_equal(cm_mad_decode(bytes, sizeof(bytes), &mad), 0);
        cm_mad_encode(&mad, again);
        assert_int_equal(cm_mad_decode(again, sizeof(again), &twice), 0);
        assert_memory_equal(&mad, &twice, sizeof(mad));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_is_where_the_specification_has_it),
        cmocka_unit_test(vendor_id_and_options_of_ece_are_scattered),
        cmocka_unit_test(the_header_is_that_of_a_mad),
        cmocka_unit_test(fields_that_are_too_wide_are_cut),
        cmocka_unit_test(a_length_of_information_is_bounded_by_what_there_is),
        cmocka_unit_test(private_data_has_the_length_of_its_message),
        cmocka_unit_test(a_mad_has_256_bytes),
        cmocka_unit_test(other_versions_classes_and_methods_are_told_apart),
        cmocka_unit_test(a_message_tells_whom_it_is_for),
        cmocka_unit_test(a_rej_without_addressee_is_for_whoever_has_the_request),
        cmocka_unit_test(questions_claim_the_comm_id_of_who_asks),
        cmocka_unit_test(what_linux_sends_is_understood),
        cmocka_unit_test(a_service_id_is_a_port_space_and_a_port),
        cmocka_unit_test(addresses_are_at_the_beginning_of_private_data),
        cmocka_unit_test(a_header_that_is_none_is_refused),
        cmocka_unit_test(random_messages_survive_a_round_trip),
    };

    return run_unit_tests("cm_mad", tests);
}
