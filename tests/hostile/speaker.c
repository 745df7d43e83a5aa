/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "speaker.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/xrc/remote_open.h"
#include "local/handshake_message.h"
#include "local/layout.h"
#include "local/notify.h"
#include "local/ring.h"
#include "object/xrc/delegate.h"
#include "wire/codec.h"
#include "wire/icrc.h"

enum { BLOCK_QPNS = 256, BACKLOG_OF_ATTACKER = 64, SLICE_MS = 5, FULL_MS = 2000 };

struct speaker {
    int socket;
    struct ring_writer writer[LOCAL_LANES];
    struct ring_reader reader[LOCAL_LANES];
};

static socklen_t name_of(uint32_t block, struct sockaddr_un *ret_address)
{
    int length;

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = snprintf(ret_address->sun_path + 1, sizeof(ret_address->sun_path) - 1, BLOCK_NAME_PREFIX "%04x",
                      block);
    return (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)length;
}

int speaker_listen(uint32_t block)
{
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    socklen_t length = name_of(block, &address);

    if (bind(listener, (struct sockaddr *)&address, length) == 0 &&
        listen(listener, BACKLOG_OF_ATTACKER) == 0)
        return listener;
    close(listener);
    return -1;
}

/* Which process the speaker says to be. */
static uint8_t instance[INSTANCE_BYTES];
/* By which a process of the same user finds that it may read the speaker's memory. */
static const uint8_t nonce[INSTANCE_BYTES] = "of the speaker";

static struct handshake_message message_of(enum handshake_type type)
{
    struct handshake_message message = {.magic = HANDSHAKE_MAGIC,
                                        .version = HANDSHAKE_VERSION,
                                        .type = (uint16_t)type,
                                        .layout_size = LAYOUT_SIZE,
                                        .flags = HANDSHAKE_MAY_PROBE | HANDSHAKE_CAN_READ,
                                        .nonce_address = (uintptr_t)nonce};

    memcpy(message.nonce, nonce, sizeof(nonce));
    if (!instance[0])
        (void)!getrandom(instance, sizeof(instance), 0);
    instance[0] |= 1;
    memcpy(message.instance, instance, sizeof(instance));
    return message;
}

static bool send_message(int socket, const struct handshake_message *message, int memory)
{
    struct iovec part = {(void *)(uintptr_t)message, sizeof(*message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    if (memory >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        memcpy(CMSG_DATA(&control.header), &memory, sizeof(memory));
    }
    return sendmsg(socket, &msg, MSG_NOSIGNAL) == sizeof(*message);
}

/* Returns whether the next message is of that type; *ret_memory: the descriptor that came with it. */
static bool receive_message(int socket, enum handshake_type type, int timeout_ms, int *ret_memory)
{
    struct handshake_message message = {0};
    struct iovec part = {&message, sizeof(message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct pollfd ready = {.fd = socket, .events = POLLIN};

    if (poll(&ready, 1, timeout_ms) <= 0 || recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) != sizeof(message))
        return false;
    if (ret_memory)
        memcpy(ret_memory, CMSG_DATA(&control.header), sizeof(*ret_memory));
    return message.type == type && message.result == HANDSHAKE_OK;
}

static struct speaker *speaker_over(int socket, int memory, bool is_connector)
{
    struct speaker *speaker = calloc(1, sizeof(*speaker));
    void *shared = mmap(NULL, LAYOUT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);

    if (!speaker || shared == MAP_FAILED)
        return NULL;
    speaker->socket = socket;
    for (unsigned int i = 0; i < LOCAL_LANES; i++) {
        ring_writer_init(&speaker->writer[i], shared, 2 * i + (is_connector ? 0 : 1));
        ring_reader_init(&speaker->reader[i], shared, 2 * i + (is_connector ? 1 : 0));
    }
    return speaker;
}

struct speaker *speaker_connect(uint32_t qpn)
{
    enum { PATIENCE_MS = 20000, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
    struct handshake_message hello = message_of(HANDSHAKE_HELLO), ready = message_of(HANDSHAKE_READY);
    int memory = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    socklen_t length = name_of(qpn / BLOCK_QPNS, &address);

    if (ftruncate(memory, LAYOUT_SIZE) == 0 && fcntl(memory, F_ADD_SEALS, ALL_SEALS) == 0 &&
        connect(fd, (struct sockaddr *)&address, length) == 0 && send_message(fd, &hello, memory) &&
        receive_message(fd, HANDSHAKE_WELCOME, PATIENCE_MS, NULL) && send_message(fd, &ready, -1))
        return speaker_over(fd, memory, true);
    close(fd);
    close(memory);
    return NULL;
}

struct speaker *speaker_accept(int listener, int timeout_ms)
{
    struct handshake_message welcome = message_of(HANDSHAKE_WELCOME);
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    int memory = -1, fd;

    /* Who only asks whose the name is closes the connection again. */
    while (poll(&ready, 1, timeout_ms) > 0) {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (receive_message(fd, HANDSHAKE_HELLO, timeout_ms, &memory) && send_message(fd, &welcome, -1) &&
            receive_message(fd, HANDSHAKE_READY, timeout_ms, NULL))
            return speaker_over(fd, memory, false);
        close(fd);
    }
    return NULL;
}

unsigned int speaker_crowd(uint32_t qpn, unsigned int count)
{
    struct sockaddr_un address;
    socklen_t length = name_of(qpn / BLOCK_QPNS, &address);

    for (unsigned int i = 0; i < count; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (connect(fd, (struct sockaddr *)&address, length) != 0)
            return i;
    }
    return count;
}

void speaker_hang_up(struct speaker *speaker)
{
    close(speaker->socket);
    instance[0] = 0;
}

void speaker_say(struct speaker *speaker, uint32_t lane_qpn, const struct packet *packet, const void *payload)
{
    const struct iovec gather = {(void *)(uintptr_t)payload, packet->payload_length};
    struct ring_writer *writer = &speaker->writer[lane_qpn % LOCAL_LANES];
    const char doorbell = LINK_RINGS;

    for (int waited = 0;
         ring_write(writer, packet, &gather, packet->payload_length ? 1 : 0) == -EAGAIN && waited < FULL_MS;
         waited++)
        poll(NULL, 0, 1);
    atomic_store(&writer->control->reader_sleeps, READER_POLLS);
    (void)!send(speaker->socket, &doorbell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void speaker_say_terms(struct speaker *speaker, uint32_t src_qpn, uint64_t device, uint64_t inode)
{
    const struct delegate_terms terms = {.device = device,
                                         .inode = inode,
                                         .connection = src_qpn,
                                         .epoch = 1,
                                         .mtu = 1024,
                                         .max_dest_rd_atomic = 1};
    const struct packet packet = {.opcode = SERVICE_XRC | OP_SEND_ONLY,
                                  .flags = PACKET_TERMS,
                                  .pkey = 0xffff,
                                  .src_qpn = src_qpn,
                                  .payload_length = sizeof(terms)};

    speaker_say(speaker, src_qpn, &packet, &terms);
}

void speaker_query(struct speaker *speaker, uint32_t qpn, unsigned int count)
{
    const struct remote_open_message message = {
        .kind = QP_REQUEST_QUERY, .name = 1, .qpn = qpn, .mask = IBV_QP_STATE};
    const struct packet packet = {.opcode = SERVICE_XRC | OP_SEND_ONLY,
                                  .flags = PACKET_REMOTE_OPEN,
                                  .pkey = 0xffff,
                                  .src_qpn = qpn,
                                  .dest_qpn = qpn,
                                  .payload_length = sizeof(message)};

    for (unsigned int i = 0; i < count; i++)
        speaker_say(speaker, qpn, &packet, &message);
}

bool speaker_hear(struct speaker *speaker, struct packet *ret_packet, void *ret_payload, int timeout_ms)
{
    struct packet_reference references[PACKET_REFERENCES];
    uint32_t granules;

    for (int waited = 0; waited <= timeout_ms; waited += SLICE_MS) {
        for (unsigned int i = 0; i < LOCAL_LANES; i++) {
            struct ring_reader *reader = &speaker->reader[i];

            if (ring_read(reader, ret_packet, references, &granules) <= 0)
                continue;
            if (ret_packet->payload && ret_packet->payload_length <= SPEAKER_PAYLOAD)
                memcpy(ret_payload, ret_packet->payload, ret_packet->payload_length);
            ring_release(reader, granules);
            return true;
        }
        poll(NULL, 0, SLICE_MS);
    }
    return false;
}

bool speaker_send_by_network(const struct packet *packet, const void *payload)
{
    enum { PORT = 4791, IPV4_AT = 12 };
    const int probes = IP_PMTUDISC_DO; /* the identification is 0 then */
    uint8_t bytes[HEADER_LENGTH_MAX + SPEAKER_PAYLOAD + 8] = {0};
    size_t length = codec_encode(packet, bytes);
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct icrc_path path = {.destination_port = PORT, .dont_fragment = true};
    socklen_t from_length = sizeof(from);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool sent;

    memcpy(bytes + length, payload, packet->payload_length);
    length += packet->payload_length + codec_pad(packet->payload_length);
    memcpy(path.source, packet->grh.source, 16);
    memcpy(path.destination, packet->grh.destination, 16);
    memcpy(&from.sin_addr, packet->grh.source + IPV4_AT, 4);
    memcpy(&to.sin_addr, packet->grh.destination + IPV4_AT, 4);
    sent = bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0 &&
           getsockname(fd, (struct sockaddr *)&from, &from_length) == 0 &&
           setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &probes, sizeof(probes)) == 0;
    path.source_port = ntohs(from.sin_port);
    icrc_store(icrc_of(&path, bytes, length + ICRC_LENGTH), bytes + length);
    length += ICRC_LENGTH;
    sent = sent && sendto(fd, bytes, length, 0, (struct sockaddr *)&to, sizeof(to)) == (ssize_t)length;
    close(fd);
    return sent;
}
