/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Says everything that the codecs can say: a packet of each kind, over IPv4 and over IPv6, to a capture file
 * (pcap), and to another what is in them, a line of JSON each, in the names that Wireshark has for it. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/types.h"
#include "wire/cm_mad.h"
#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#define LINK_TYPE_RAW_IP 101u
#define SOURCE_PORT      0xd123u
#define HOPS             64u
#define ROOM             (IPV6_LENGTH + UDP_LENGTH + HEADER_LENGTH_MAX + 4096 + ICRC_LENGTH)

static FILE *capture, *told;
static uint64_t last_number = 0x5eed;

/* Different every time, the same in every run. */
static uint64_t number(void)
{
    last_number = last_number * 6364136223846793005u + 1442695040888963407u;
    return last_number ^ last_number >> 29;
}

static void put(const void *bytes, size_t length, FILE *file)
{
    if (fwrite(bytes, 1, length, file) != length)
        exit(1);
}

/* --- what is said of it -------------------------------------------------------------------------- */

static void tell(const char *field, uint64_t value)
{
    fprintf(told, ", \"infiniband.%s\": %" PRIu64, field, value);
}

static void tell_bytes(const char *field, const void *bytes, size_t length)
{
    fprintf(told, ", \"%s\": \"", field);
    for (size_t i = 0; i < length; i++)
        fprintf(told, "%s%02x", i ? ":" : "", ((const uint8_t *)bytes)[i]);
    fputc('"', told);
}

static void tell_headers(const struct packet *packet, uint32_t properties)
{
    uint32_t rkey = htonl(packet->invalidate_rkey);

    tell("bth.opcode", packet->opcode);
    tell("bth.se", !!(packet->flags & PACKET_SOLICITED));
    tell("bth.m", 1);
    tell("bth.padcnt", codec_pad(packet->payload_length));
    tell("bth.tver", 0);
    tell("bth.p_key", packet->pkey);
    tell("bth.destqp", packet->dest_qpn);
    tell("bth.a", !!(packet->flags & PACKET_ACK_REQUEST));
    tell("bth.psn", packet->psn.value);
    if (properties & OPCODE_HAS_DETH) {
        tell("deth.q_key", packet->qkey);
        tell("deth.srcqp", packet->src_qpn);
    }
    if (properties & (OPCODE_HAS_RETH | OPCODE_HAS_ATOMIC_ETH)) {
        tell("reth.va", packet->address);
        tell("reth.r_key", packet->rkey);
    }
    if (properties & OPCODE_HAS_RETH)
        tell("reth.dmalen", packet->dma_length);
    if (properties & OPCODE_HAS_ATOMIC_ETH) {
        tell("atomiceth.swapdt", packet->swap_add);
        tell("atomiceth.cmpdt", packet->compare);
    }
    if (properties & OPCODE_HAS_AETH) {
        tell("aeth.syndrome", packet->syndrome);
        tell("aeth.msn", packet->msn);
    }
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        tell("atomicacketh.origremdt", packet->original);
    if (properties & OPCODE_HAS_IMM)
        tell_bytes("infiniband.immdt", &packet->imm_data, 4);
    if (properties & OPCODE_HAS_INVALIDATE)
        tell_bytes("infiniband.ieth", &rkey, 4);
}

/* --- IP and UDP ---------------------------------------------------------------------------------- */

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put_udp(uint8_t *at, uint32_t udp_payload_length)
{
    put16(at, SOURCE_PORT);
    put16(at + 2, ROCE_UDP_PORT);
    put16(at + 4, UDP_LENGTH + udp_payload_length);
    put16(at + 6, 0);
}

static uint32_t put_ipv4(uint8_t *at, const struct icrc_path *path, uint32_t udp_payload_length)
{
    const uint8_t head[] = {0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, 17};

    memset(at, 0, IPV4_LENGTH);
    memcpy(at, head, sizeof(head));
    put16(at + 2, IPV4_LENGTH + UDP_LENGTH + udp_payload_length);
    put16(at + 4, path->identification);
    memcpy(at + 12, path->source + 12, 4);
    memcpy(at + 16, path->destination + 12, 4);
    put16(at + 10, ipudp_checksum(at, IPV4_LENGTH));
    put_udp(at + IPV4_LENGTH, udp_payload_length);
    return IPV4_LENGTH + UDP_LENGTH;
}

/* The checksum comes last: it is of the payload, too. */
static uint32_t put_ipv6(uint8_t *at, const struct icrc_path *path, uint32_t udp_payload_length)
{
    const uint8_t head[] = {0x60, 0, 0, 0, 0, 0, 17, HOPS};

    memcpy(at, head, sizeof(head));
    put16(at + 4, UDP_LENGTH + udp_payload_length);
    memcpy(at + 8, path->source, 16);
    memcpy(at + 24, path->destination, 16);
    put_udp(at + IPV6_LENGTH, udp_payload_length);
    return IPV6_LENGTH + UDP_LENGTH;
}

static void put_udp_checksum_ipv6(uint8_t *ip, uint32_t length)
{
    static uint8_t covered[ROOM + 40];
    uint32_t udp_length = length - IPV6_LENGTH;

    memset(covered, 0, sizeof(covered));
    memcpy(covered, ip + 8, 32);
    put16(covered + 34, udp_length);
    covered[39] = 17;
    memcpy(covered + 40, ip + IPV6_LENGTH, udp_length);
    put16(ip + IPV6_LENGTH + 6, ipudp_checksum(covered, 40 + (udp_length + 1) / 2 * 2));
}

/* --- packets ------------------------------------------------------------------------------------- */

static struct icrc_path path_of(bool is_ipv4)
{
    struct icrc_path path = {
        .source_port = SOURCE_PORT,
        .destination_port = ROCE_UDP_PORT,
        .identification = is_ipv4 ? (uint16_t)number() : 0,
        .dont_fragment = true,
    };

    inet_pton(AF_INET6, is_ipv4 ? "::ffff:192.0.2.1" : "2001:db8::1", path.source);
    inet_pton(AF_INET6, is_ipv4 ? "::ffff:192.0.2.2" : "2001:db8::2", path.destination);
    return path;
}

static void put_record(const uint8_t *bytes, uint32_t length)
{
    const uint32_t head[] = {0, 0, length, length};

    put(head, sizeof(head), capture);
    put(bytes, length, capture);
}

/* Ends the line that tell() has written to. */
static void put_packet(const struct packet *packet, const void *payload, bool is_ipv4)
{
    uint32_t udp_length = codec_udp_payload_length(packet), headers, begin, crc;
    const struct icrc_path path = path_of(is_ipv4);
    static uint8_t bytes[ROOM];
    uint8_t *udp;

    memset(bytes, 0, sizeof(bytes));
    begin = is_ipv4 ? put_ipv4(bytes, &path, udp_length) : put_ipv6(bytes, &path, udp_length);
    udp = bytes + begin;
    headers = (uint32_t)codec_encode(packet, udp);
    if (packet->payload_length)
        memcpy(udp + headers, payload, packet->payload_length);
    crc = icrc_add_headers(icrc_begin(&path, udp_length), udp, headers);
    crc = icrc_add(crc, udp + headers, udp_length - headers - ICRC_LENGTH);
    icrc_store(crc, udp + udp_length - ICRC_LENGTH);
    if (!is_ipv4)
        put_udp_checksum_ipv6(bytes, begin + udp_length);
    put_record(bytes, begin + udp_length);
    fputs("}\n", told);
}

static struct packet packet_of(uint8_t opcode, uint32_t payload_length)
{
    return (struct packet){
        .opcode = opcode,
        .flags = (uint8_t)(number() & (PACKET_SOLICITED | PACKET_ACK_REQUEST)),
        .pkey = (uint16_t)number(),
        .dest_qpn = number() & 0xffffff,
        .src_qpn = number() & 0xffffff,
        .psn = psn_make(number() & 0xffffff),
        .msn = number() & 0xffffff,
        .imm_data = (uint32_t)number(),
        .invalidate_rkey = (uint32_t)number(),
        .qkey = (uint32_t)number(),
        .rkey = (uint32_t)number(),
        .dma_length = (uint32_t)number(),
        .address = number(),
        .swap_add = number(),
        .compare = number(),
        .original = number(),
        .payload_length = payload_length,
    };
}

static void say_packet(const struct packet *packet)
{
    const struct opcode_info *info = &opcode_table[packet->opcode];
    uint8_t payload[4096];

    for (unsigned i = 0; i < packet->payload_length; i++)
        payload[i] = (uint8_t)number();
    for (int is_ipv4 = 0; is_ipv4 < 2; is_ipv4++) {
        fprintf(told, "{\"name\": \"%s\"", info->name);
        tell_headers(packet, info->properties);
        tell_bytes("payload", payload, packet->payload_length);
        put_packet(packet, payload, is_ipv4);
    }
}

/* An acknowledgement, RNR NAKs and NAKs (IBA 9.7.5.2). */
static void say_syndromes(uint8_t opcode)
{
    static const uint8_t syndromes[] = {0x00, 0x0a, 0x1f, 0x20, 0x2c, 0x3f, 0x60, 0x61, 0x62, 0x63, 0x64};

    for (unsigned i = 0; i < array_size(syndromes); i++) {
        struct packet packet = packet_of(opcode, 0);

        packet.syndrome = syndromes[i];
        say_packet(&packet);
    }
}

static void say_packets(void)
{
    static const uint32_t lengths[] = {0, 1, 2, 3, 4, 255, 256, 1024, 4096};

    for (unsigned opcode = 0; opcode < array_size(opcode_table); opcode++) {
        uint32_t properties = opcode_table[opcode].properties;

        if (!opcode_table[opcode].name)
            continue;
        if (opcode == OP_ACKNOWLEDGE)
            say_syndromes((uint8_t)opcode);
        for (unsigned i = 0; i < array_size(lengths); i++) {
            struct packet packet = packet_of((uint8_t)opcode, lengths[i]);

            if (lengths[i] == 0 || properties & OPCODE_HAS_PAYLOAD)
                say_packet(&packet);
        }
    }
}

/* --- connection management ----------------------------------------------------------------------- */

static void fill(uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)number();
}

static void tell_req(const struct cm_mad *mad)
{
    const struct cm_req *req = &mad->req;

    tell("cm.req", mad->local_comm_id);
    tell("cm.req.serviceid", req->service_id);
    tell("cm.req.localcaguid", req->ca_guid);
    tell("cm.req.localqkey", req->qkey);
    tell("cm.req.localqpn", req->qpn);
    tell("cm.req.responderres", req->responder_resources);
    tell("cm.req.initdepth", req->initiator_depth);
    tell("cm.req.remoteresptout", req->remote_response_timeout);
    tell("cm.req.localresptout", req->local_response_timeout);
    tell("cm.req.transpsvctype", req->service);
    tell("cm.req.e2eflowctrl", req->flow_control);
    tell("cm.req.startpsn", req->starting_psn);
    tell("cm.req.retrcount", req->retry_count);
    tell("cm.req.rnrretrcount", req->rnr_retry_count);
    tell("cm.req.maxcmretr", req->max_cm_retries);
    tell("cm.req.pkey", req->pkey);
    tell("cm.req.pppmtu", req->path_mtu);
    tell("cm.req.srq", req->srq);
    tell("cm.req.prim_locallid", req->primary.local_lid);
    tell("cm.req.prim_remotelid", req->primary.remote_lid);
    /* 20 bits (IBA table 106), of which Wireshark 4.0 shows the upper 12. */
    tell("cm.req.prim_flowlabel", req->primary.flow_label >> 8);
    tell("cm.req.prim_pktrate", req->primary.packet_rate);
    tell("cm.req.prim_tfcclass", req->primary.traffic_class);
    tell("cm.req.prim_hoplim", req->primary.hop_limit);
    tell("cm.req.prim_sl", req->primary.service_level);
    tell("cm.req.prim_subnetlocal", req->primary.subnet_local);
    tell("cm.req.prim_localacktout", req->primary.local_ack_timeout);
}

static void make_req(struct cm_mad *mad)
{
    mad->req = (struct cm_req){
        /* Not one of IP port spaces, whose private data Wireshark takes apart. */
        .service_id = 0x1000000000000000u | (number() & 0xffffffffff),
        .ca_guid = number(),
        .qpn = number() & 0xffffff,
        .starting_psn = number() & 0xffffff,
        .responder_resources = 16,
        .initiator_depth = 7,
        .remote_response_timeout = 20,
        .local_response_timeout = 19,
        .service = CM_SERVICE_UC,
        .flow_control = true,
        .retry_count = 5,
        .rnr_retry_count = 6,
        .max_cm_retries = 15,
        .pkey = 0xffff,
        .path_mtu = 3,
        .srq = true,
        .primary = {.local_lid = 0xffff,
                    .remote_lid = 0xfffe,
                    .flow_label = 0x12345,
                    .packet_rate = 18,
                    .traffic_class = 0xa5,
                    .hop_limit = 64,
                    .service_level = 3,
                    .subnet_local = true,
                    .local_ack_timeout = 17},
    };
    inet_pton(AF_INET6, "2001:db8::1", mad->req.primary.local_gid);
    inet_pton(AF_INET6, "2001:db8::2", mad->req.primary.remote_gid);
    tell_req(mad);
    tell_bytes("infiniband.cm.req.private", mad->private_data, CM_REQ_PRIVATE);
}

static void make_rep(struct cm_mad *mad)
{
    struct cm_rep *rep = &mad->rep;

    *rep = (struct cm_rep){
        .qpn = number() & 0xffffff,
        .starting_psn = number() & 0xffffff,
        .responder_resources = 3,
        .initiator_depth = 200,
        .target_ack_delay = 15,
        .failover = 1,
        .flow_control = true,
        .srq = true,
        .rnr_retry_count = 7,
        .ca_guid = number(),
    };
    tell("cm.rep", mad->local_comm_id);
    tell("cm.rep.remotecommid", mad->remote_comm_id);
    tell("cm.rep.localqpn", rep->qpn);
    tell("cm.rep.startpsn", rep->starting_psn);
    tell("cm.rep.respres", rep->responder_resources);
    tell("cm.rep.initdepth", rep->initiator_depth);
    tell("cm.rep.tgtackdelay", rep->target_ack_delay);
    tell("cm.rep.failoveracc", rep->failover);
    tell("cm.rep.e2eflowctrl", rep->flow_control);
    tell("cm.rep.rnrretrcount", rep->rnr_retry_count);
    tell("cm.rep.srq", rep->srq);
    tell("cm.rep.localcaguid", rep->ca_guid);
    tell_bytes("infiniband.cm.rep.private", mad->private_data, CM_REP_PRIVATE);
}

static void make_rej(struct cm_mad *mad)
{
    mad->rej =
        (struct cm_rej){.message = CM_MESSAGE_REP, .reason = CM_REASON_CONSUMER, .info_length = CM_INFO_MAX};
    fill(mad->rej.info, CM_INFO_MAX);
    tell("cm.rej.localcommid", mad->local_comm_id);
    tell("cm.rej.remotecommid", mad->remote_comm_id);
    tell("cm.rej.rejinfolen", CM_INFO_MAX);
    tell("cm.rej.reason", mad->rej.reason);
    tell_bytes("infiniband.cm.rej.ari", mad->rej.info, CM_INFO_MAX);
    tell_bytes("infiniband.cm.rej.private", mad->private_data, CM_REJ_PRIVATE);
}

static void make_small(struct cm_mad *mad)
{
    const char *name = mad->attribute == CM_RTU ? "rtu" : mad->attribute == CM_DREQ ? "dreq" : "drsp";
    char field[64];

    snprintf(field, sizeof(field), "cm.%s.localcommid", name);
    tell(field, mad->local_comm_id);
    snprintf(field, sizeof(field), "cm.%s.remotecommid", name);
    tell(field, mad->remote_comm_id);
    if (mad->attribute == CM_DREQ) {
        mad->dreq.remote_qpn = number() & 0xffffff;
        tell("cm.req.remoteqpneecn", mad->dreq.remote_qpn);
    }
    snprintf(field, sizeof(field), "infiniband.cm.%s.private", name);
    tell_bytes(field, mad->private_data, cm_mad_private_length(mad->attribute));
}

static void say_mad(uint16_t attribute, bool is_ipv4)
{
    struct packet packet = packet_of(SERVICE_UD | OP_SEND_ONLY, MAD_LENGTH);
    struct cm_mad mad = {
        .attribute = attribute,
        .transaction_id = number(),
        .local_comm_id = (uint32_t)number(),
        .remote_comm_id = (uint32_t)number(),
        .private_length = cm_mad_private_length(attribute),
    };
    uint8_t bytes[MAD_LENGTH];

    packet.dest_qpn = packet.src_qpn = MAD_QPN;
    packet.qkey = MAD_QKEY;
    fill(mad.private_data, mad.private_length);
    fprintf(told, "{\"name\": \"CM %s\"", cm_mad_name(attribute));
    tell_headers(&packet, opcode_table[packet.opcode].properties);
    tell("mad.baseversion", MAD_BASE_VERSION);
    tell("mad.mgmtclass", MAD_CLASS_CM);
    tell("mad.classversion", CM_CLASS_VERSION);
    tell("mad.method", MAD_METHOD_SEND);
    tell("mad.status", 0);
    tell("mad.transactionid", mad.transaction_id);
    tell("mad.attributeid", attribute);
    if (attribute == CM_REQ)
        make_req(&mad);
    else if (attribute == CM_REP)
        make_rep(&mad);
    else if (attribute == CM_REJ)
        make_rej(&mad);
    else if (attribute == CM_RTU || attribute == CM_DREQ || attribute == CM_DREP)
        make_small(&mad);
    cm_mad_encode(&mad, bytes);
    put_packet(&packet, bytes, is_ipv4);
}

int main(int argc, char **argv)
{
    const struct {
        uint32_t magic;
        uint16_t major, minor;
        uint32_t zone, accuracy, longest, link;
    } head = {0xa1b2c3d4, 2, 4, 0, 0, 65535, LINK_TYPE_RAW_IP};

    if (argc != 3) {
        fprintf(stderr, "usage: speak CAPTURE WHAT_IS_IN_IT\n");
        return 2;
    }
    capture = fopen(argv[1], "w");
    told = fopen(argv[2], "w");
    if (!capture || !told)
        return 1;
    put(&head, sizeof(head), capture);
    say_packets();
    for (unsigned attribute = CM_REQ; attribute <= CM_APR; attribute++) {
        say_mad((uint16_t)attribute, true);
        say_mad((uint16_t)attribute, false);
    }
    return fclose(capture) || fclose(told) ? 1 : 0;
}
