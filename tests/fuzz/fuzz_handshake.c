/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handshakes of both directions (local/handshake.c, handshake_accept.c, handshake_connect.c) with peers that say
 * anything in any order, fall silent, die and cross each other, and a scheduler that lets memory, descriptors and
 * time run out at the worst moment. Messages, links and system calls are simulated here; descriptors are numbers,
 * each of which has one owner and is closed once.
 *
 * Every lookup ends once. A link is installed or freed, never both; only after the messages that it needs, from the
 * process that the kernel names; of another user only if it is counted. What only our own user may know goes to no
 * other. What waits has a deadline, and ends by it.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "allocations.h"
#include "base/sys.h"
#include "fds.h"
#include "fuzz.h"
#include "local/blocks.h"
#include "local/control.h"
#include "local/handshake_internal.h"
#include "local/names.h"
#include "local/ptrace_access.h"
#include "local/reference.h"
#include "local/start.h"

#define STEPS      96u
#define LOOKUPS    16u
#define LISTENER   4999
#define FROM_HELLO 8 /* links per process: LINKS_PER_PROCESS of handshake_accept.c */

enum owner { CONNECTION = 1, MEMORY, PIDFD, FILES, LINK_SOCKET };

static bool watching;
static unsigned queued, charged, maps;
static struct event_source *sources[FDS_MOST];
static struct ucred peers[FDS_MOST];
/* What has been sent and received on a connection. */
static struct {
    bool hello_in, welcome_in, ready_in, hello_out, welcome_out, ready_out, right_sender;
    uint8_t instance[INSTANCE_BYTES];
} talks[FDS_MOST];

struct made {
    struct link link;
    struct made *next;
    bool installed, incoming;
};
static struct made *links;
static unsigned blocks_begun[LOOKUPS], names_begun[LOOKUPS];

struct local_state local;

/* --- system calls, allocations -------------------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
int __wrap_sys_munmap(void *address, size_t length);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);

void *__wrap_malloc(size_t size)
{
    void *memory = __real_malloc(size);

    live += memory != NULL;
    return memory;
}

int __wrap_sys_munmap(void *address, size_t length)
{
    require(length == LAYOUT_SIZE && maps);
    maps--;
    return 0;
}

static struct ucred some_peer(uint8_t choice)
{
    return (struct ucred){.pid = choice % 4, .uid = geteuid() + choice / 4 % 2};
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    uint8_t choice = input_8(&input);
    int accepted;

    require(fd == LISTENER);
    if (!queued || choice > 250) {
        errno = queued && choice & 1 ? EMFILE : EAGAIN;
        return -1;
    }
    queued--;
    accepted = fds_make(CONNECTION);
    peers[fds_index(accepted)] = some_peer(choice);
    return accepted;
}

int event_add(struct event_source *source, uint32_t events)
{
    if (input_8(&input) == 255)
        return -ENOSPC;
    sources[fds_index(source->fd)] = source;
    return 0;
}

void event_close(struct event_source *source)
{
    if (source->fd < 0)
        return;
    sources[fds_index(source->fd)] = NULL;
    fds_end(source->fd);
    source->fd = -1;
}

void event_forget(struct event_source *source)
{
    source->fd = -1;
}

/* --- links ---------------------------------------------------------------------------------------------- */

int link_memory_create(int *ret_fd, void **ret_memory)
{
    if (input_8(&input) > 250)
        return -EMFILE;
    *ret_fd = fds_make(MEMORY);
    *ret_memory = &links;
    maps++;
    return 0;
}

int link_memory_accept(int fd, void **ret_memory)
{
    if (fd < 0 || fds_owner(fd) != MEMORY || input_8(&input) % 8 == 7)
        return -EBADF;
    *ret_memory = &links;
    maps++;
    return 0;
}

struct link *link_new(void *memory, bool connector)
{
    struct made *made = calloc(1, sizeof(*made));

    if (!made)
        return NULL;
    made->link.is_connector = connector;
    made->link.socket.fd = made->link.pidfd.fd = -1;
    made->link.peer_segment = -1;
    made->incoming = !connector;
    made->next = links;
    links = made;
    return &made->link;
}

void link_free(struct link *link)
{
    struct made **at = &links, *made;

    if (!link)
        return;
    while (*at && &(*at)->link != link)
        at = &(*at)->next;
    made = *at;
    require(made && !made->installed);
    *at = made->next;
    if (link->is_charged)
        charged--;
    require(maps);
    maps--;
    if (link->pidfd.fd >= 0)
        fds_end(link->pidfd.fd);
    if (link->socket.fd >= 0)
        fds_end(link->socket.fd);
    free(made);
}

static unsigned links_from(pid_t pid)
{
    unsigned count = 0;

    for (const struct made *made = links; made; made = made->next)
        count += made->installed && made->incoming && made->link.peer_pid == pid;
    return count;
}

int link_install(struct link *link)
{
    struct made *made = container_of(link, struct made, link);
    unsigned at = fds_index(link->socket.fd);
    bool is_other = peers[at].uid != geteuid();

    require(!made->installed && fds_owner(link->socket.fd) == CONNECTION);
    require(link->peer_uid == peers[at].uid && link->peer_pid == peers[at].pid);
    require(memcmp(link->instance, talks[at].instance, INSTANCE_BYTES) == 0);
    if (made->incoming)
        require(talks[at].hello_in && talks[at].welcome_out && talks[at].ready_in &&
                (link->is_charged || (!is_other && link->peer_pid > 0)));
    else
        require(talks[at].hello_out && talks[at].welcome_in && talks[at].right_sender && talks[at].ready_out);
    require(!is_other || (!link->may_pull && !link->may_refer));
    if (input_8(&input) > 250)
        return -ENFILE;
    made->installed = true;
    fds_give(link->socket.fd, CONNECTION, LINK_SOCKET);
    sources[at] = NULL;
    require(!made->incoming || !link->peer_pid || links_from(link->peer_pid) <= FROM_HELLO);
    return 0;
}

static bool is_installed(const struct link *link)
{
    for (const struct made *made = links; made; made = made->next) {
        if (&made->link == link)
            return made->installed;
    }
    return false;
}

struct link *link_find(const uint8_t *instance, uint64_t identity, uid_t uid)
{
    for (struct made *made = links; made; made = made->next) {
        if (made->installed && memcmp(made->link.instance, instance, INSTANCE_BYTES) == 0 &&
            made->link.identity == identity && made->link.peer_uid == uid)
            return &made->link;
    }
    return NULL;
}

unsigned link_count(pid_t pid)
{
    unsigned count = 0;

    for (const struct made *made = links; made; made = made->next)
        count += made->installed && pid > 0 && made->link.peer_pid == pid;
    return count;
}

bool link_charge(struct link *link)
{
    if (input_8(&input) > 240)
        return false;
    require(!link->is_charged);
    link->is_charged = true;
    charged++;
    return true;
}

/* --- the rest of the room ------------------------------------------------------------------------------- */

void lookup_finish(uint32_t block, struct link *link)
{
    require(block < LOOKUPS && blocks_begun[block] && (!link || is_installed(link)));
    blocks_begun[block]--;
}

static void found(uint64_t cookie, struct link *link)
{
    require(cookie < LOOKUPS && names_begun[cookie] && (!link || is_installed(link)));
    names_begun[cookie]--;
}

static bool settled_was_called;

static void settled(void)
{
    settled_was_called = true;
}

bool lookups_any(void)
{
    return false;
}

void lookups_begin(void)
{
}

void local_block_name(uint32_t block, char ret_text[LOCAL_BLOCK_NAME_MAX + 1])
{
    strcpy(ret_text, "block");
}

int names_connect(const char *text)
{
    static const int errors[] = {-EAGAIN, -ECONNREFUSED, -EMFILE};
    uint8_t choice = input_8(&input);
    int fd;

    if (choice % 16 < array_size(errors))
        return errors[choice % 16];
    fd = fds_make(CONNECTION);
    peers[fds_index(fd)] = some_peer(choice / 16);
    return fd;
}

struct link *names_link_behind(int fd)
{
    for (struct made *made = links; made; made = made->next) {
        if (made->installed && made->link.peer_pid == peers[fds_index(fd)].pid && made->link.peer_pid)
            return &made->link;
    }
    return NULL;
}

void names_watch(bool watch)
{
    watching = watch;
}

void blocks_watch(bool watch)
{
    watching = watch;
}

bool reference_same_user(uid_t uid)
{
    return uid == geteuid();
}

void reference_permit(void)
{
}

bool reference_probe(pid_t pid, const struct handshake_message *message)
{
    return input_8(&input) & 1;
}

bool ptrace_access_of_peer(int socket)
{
    return peers[fds_index(socket)].uid == geteuid() && (input_8(&input) & 1);
}

static int published(int ret_fds[SEGMENT_REQUEST_FILES])
{
    if (input_8(&input) % 4 == 3)
        return -EMFILE;
    for (unsigned i = 0; i < SEGMENT_REQUEST_FILES; i++)
        ret_fds[i] = fds_make(FILES);
    return 0;
}

/* --- messages ------------------------------------------------------------------------------------------- */

void handshake_message_fill(struct handshake_message *message, enum handshake_type type,
                            enum handshake_result result, bool can_read)
{
    *message = (struct handshake_message){.magic = HANDSHAKE_MAGIC,
                                          .version = HANDSHAKE_VERSION,
                                          .type = (uint16_t)type,
                                          .result = (uint16_t)result,
                                          .flags = can_read ? HANDSHAKE_CAN_READ : 0};
}

void handshake_message_add_private(struct handshake_message *message)
{
    message->nonce_address = 1;
    message->segment = 3;
}

int handshake_message_send(int fd, const struct handshake_message *message, int memory_fd)
{
    unsigned at = fds_index(fd);

    require(fds_owner(fd) == CONNECTION ||
            (fds_owner(fd) == LINK_SOCKET && message->type == HANDSHAKE_READY));
    require((!message->nonce_address && !message->segment && !(message->flags & HANDSHAKE_CAN_READ)) ||
            peers[at].uid == geteuid());
    require((memory_fd >= 0) == (message->type == HANDSHAKE_HELLO));
    if (memory_fd >= 0)
        require(fds_owner(memory_fd) == MEMORY);
    if (input_8(&input) > 248)
        return -EPIPE;
    talks[at].hello_out |= message->type == HANDSHAKE_HELLO;
    talks[at].welcome_out |= message->type == HANDSHAKE_WELCOME && message->result == HANDSHAKE_OK;
    talks[at].ready_out |= message->type == HANDSHAKE_READY;
    return 0;
}

int handshake_message_receive(int fd, enum handshake_type type, struct handshake_message *message,
                              int *ret_memory_fd, pid_t *ret_sender)
{
    static const int errors[] = {-EAGAIN, -ECONNRESET, -EPROTO, -EMFILE};
    unsigned at = fds_index(fd);
    uint8_t choice = input_8(&input), more = input_8(&input);

    require(fds_owner(fd) == CONNECTION);
    *ret_memory_fd = more & 1 ? fds_make(more & 2 ? MEMORY : FILES) : -1;
    *ret_sender = more & 4 ? peers[at].pid : some_peer(more >> 6).pid;
    memset(message, 0, sizeof(*message));
    message->magic = more & 8 ? HANDSHAKE_MAGIC : 0;
    message->type = (uint16_t)type;
    if (choice > 215)
        return errors[choice % 4];
    message->instance[0] = (uint8_t)(choice % 4 + more / 16 % 4 * 4);
    message->result = choice / 4 % 4;
    message->flags = choice / 16 % 8;
    message->segment = more;
    if (type == HANDSHAKE_HELLO) {
        talks[at].hello_in = true;
        memcpy(talks[at].instance, message->instance, INSTANCE_BYTES);
    } else if (type == HANDSHAKE_WELCOME) {
        talks[at].welcome_in = message->result == HANDSHAKE_OK;
        talks[at].right_sender = *ret_sender == peers[at].pid;
        memcpy(talks[at].instance, message->instance, INSTANCE_BYTES);
    } else {
        talks[at].ready_in = memcmp(message->instance, talks[at].instance, INSTANCE_BYTES) == 0;
    }
    return 0;
}

bool handshake_message_is_segment_request(const struct handshake_message *message)
{
    return !message->magic;
}

/* tests/unit/test_local_control.c has these. */
bool handshake_message_is_control_request(const struct handshake_message *message)
{
    return false;
}

void control_receive(struct handshake *handshake, const struct control_request *request, int file)
{
    require(false);
}

int handshake_answer_segment_request(int fd, enum segment_request_result result, const int *files)
{
    require((result == SEGMENT_GRANTED) == (files != NULL));
    require(!files || peers[fds_index(fd)].uid == geteuid());
    for (unsigned i = 0; files && i < SEGMENT_REQUEST_FILES; i++)
        require(fds_owner(files[i]) == FILES);
    return 0;
}

int handshake_want_sender(int fd, bool wanted)
{
    return input_8(&input) == 255 ? -ENOBUFS : 0;
}

bool peer_credentials(int fd, struct ucred *ret_peer)
{
    *ret_peer = peers[fds_index(fd)];
    errno = EINVAL;
    return input_8(&input) != 255;
}

int peer_pidfd(int fd, pid_t pid)
{
    return input_8(&input) & 1 ? fds_make(PIDFD) : -1;
}

uint64_t process_identity(int pidfd, pid_t pid)
{
    return (uint64_t)pid;
}

int peer_identity(int fd, uint64_t *ret_identity)
{
    *ret_identity = (uint64_t)peers[fds_index(fd)].pid;
    return 0;
}

/* --- checks --------------------------------------------------------------------------------------------- */

static void check_one(const struct handshake *handshake, bool is_outgoing)
{
    const struct link *link = handshake->link;

    require(handshake->is_outgoing == is_outgoing);
    require(handshake->socket.fd < 0 || fds_owner(handshake->socket.fd) == CONNECTION);
    require(!link || !is_installed(link));
    require((handshake->socket.fd < 0) == (handshake->retry_at != NS_NEVER));
    if (!is_outgoing) {
        require(handshake->awaits != HANDSHAKE_WELCOME && handshake->socket.fd >= 0 && !handshake->search);
        require((link != NULL) == (handshake->awaits == HANDSHAKE_READY));
        require(!handshake->is_coming || handshake->peer.uid == geteuid());
    } else if (handshake->socket.fd >= 0) {
        require(handshake->awaits == HANDSHAKE_WELCOME && link && !handshake->is_coming);
    }
}

static void check(void)
{
    unsigned outgoing = 0, incoming = 0, coming = 0, installed = 0, mapped = 0, counted = 0, connections = 0;

    list_for_each (node, &handshakes_outgoing) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        check_one(handshake, true);
        outgoing++;
        coming += handshake->is_coming;
        connections += handshake->socket.fd >= 0;
    }
    list_for_each (node, &handshakes_incoming) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        check_one(handshake, false);
        incoming++;
        coming += handshake->is_coming;
        connections++;
    }
    for (const struct made *made = links; made; made = made->next) {
        installed += made->installed;
        mapped++;
        counted += made->link.is_charged;
    }
    require(outgoing == handshakes_outgoing_count && incoming == handshakes_incoming_count);
    require((coming > 0) == local_link_is_coming());
    require(fds_count(MEMORY) == 0 && fds_count(FILES) == 0 && fds_count(CONNECTION) == connections);
    require(fds_count(LINK_SOCKET) == installed && maps == mapped && charged == counted);
    require(handshake_deadline() != NS_NEVER || (!outgoing && !incoming && watching));
}

/* --- steps ---------------------------------------------------------------------------------------------- */

enum step { BEGINS, BEGINS_NAME, ACCEPTS, SPEAKS, TIME_PASSES, LINK_ENDS, FAILS, REPORTS, STEP_KINDS };

static void begin(unsigned number, bool is_name)
{
    struct name_search *search = NULL;

    if (!handshake_can_begin())
        return;
    if (is_name) {
        search = __real_calloc(1, sizeof(*search));
        require(search);
        live++;
        search->cookie = number % LOOKUPS;
        strcpy(search->text, "name");
        names_begun[number % LOOKUPS]++;
    } else {
        blocks_begun[number % LOOKUPS]++;
    }
    handshake_begin(number % LOOKUPS, search);
}

static void speak(unsigned number)
{
    unsigned seen = 0;

    for (unsigned i = 0; i < fds_made; i++) {
        if (sources[i] && seen++ == number) {
            sources[i]->ready(sources[i], 1);
            return;
        }
    }
}

static void end_link(unsigned number)
{
    struct made *made = links;

    while (made && (!made->installed || number--))
        made = made->next;
    if (!made)
        return;
    made->installed = false;
    link_free(&made->link);
}

static void let_time_pass(ns_t time)
{
    now += time;
    handshake_expire();
    if (handshake_deadline() <= now) /* what was reported as pending is connected by the next call */
        handshake_expire();
    require(handshake_deadline() > now);
}

static void take_step(uint8_t choice)
{
    struct event_source listener = {.fd = LISTENER};
    unsigned number = choice / STEP_KINDS;

    switch ((enum step)(choice % STEP_KINDS)) {
    case BEGINS:
        begin(number, false);
        break;
    case BEGINS_NAME:
        begin(number, true);
        break;
    case ACCEPTS:
        queued = number + 1;
        if (watching)
            handshake_accept(&listener, 1);
        break;
    case SPEAKS:
        speak(number);
        break;
    case TIME_PASSES:
        let_time_pass((ns_t)(number + 1) * (number & 1 ? NS_PER_S / 4 : NS_PER_MS));
        break;
    case LINK_ENDS:
        end_link(number);
        break;
    case FAILS:
        allocations_fail = number & 1;
        break;
    case REPORTS:
        settled_was_called = false;
        handshake_report_settled();
        break;
    case STEP_KINDS:
        break;
    }
}

/* Without anything from outside, all ends by its deadline. */
static void finish(void)
{
    allocations_fail = false;
    for (unsigned i = 0; i < 40 && handshake_deadline() != NS_NEVER; i++)
        let_time_pass(NS_PER_S);
    check();
    require(list_empty(&handshakes_outgoing) && list_empty(&handshakes_incoming) && watching);
    require(!local_link_is_coming());
    for (unsigned i = 0; i < LOOKUPS; i++)
        require(!blocks_begun[i] && !names_begun[i]);
    while (links)
        end_link(0);
    require(live == 0 && maps == 0 && charged == 0);
    for (unsigned i = 0; i < fds_made; i++)
        require(!fds_owners[i]);
    handshake_report_settled();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct local_ops ops = {.found = found, .settled = settled, .published = published};

    local.ops = &ops;
    local.mechanism = MECHANISM_AUTO;
    local.instance[0] = 2;
    fds_reset();
    memset(sources, 0, sizeof(sources));
    memset(talks, 0, sizeof(talks));
    live = 0;
    now = 100 * NS_PER_S;
    watching = true;
    allocations_fail = false;
    input = (struct input){data, size};
    for (unsigned step = 0; input.left && step < STEPS && fds_made < FDS_MOST - 256; step++) {
        take_step(input_8(&input));
        check();
    }
    /* Behind the input are zeros: names_connect() then finds a full backlog for ever. */
    finish();
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

/* A process with more HELLOs than it may have links, whose READYs come afterwards. */
static void add_crowd(fuzz_add *add)
{
    uint8_t bytes[256];
    size_t length = 0;

    for (uint8_t i = 0; i < 12; i++) {
        const uint8_t hello[] = {STEP(ACCEPTS, 0), 1, 0, 0, i % 4, (uint8_t)(0x0f | i / 4 << 4), 0, 0, 0, 0};

        memcpy(bytes + length, hello, sizeof(hello));
        length += sizeof(hello);
    }
    for (uint8_t i = 0; i < 12; i++) {
        const uint8_t ready[] = {STEP(SPEAKS, 0), i % 4, (uint8_t)(0x08 | i / 4 << 4), 0};

        memcpy(bytes + length, ready, sizeof(ready));
        length += sizeof(ready);
    }
    add(bytes, length);
}

void fuzz_seeds(fuzz_add *add)
{
    add_crowd(add);
    for (uint8_t peer = 0; peer < 8; peer++) {
        for (uint8_t result = 0; result < 4; result++) {
            /* connect, credentials, sender, memory, ..., HELLO out; then WELCOME in */
            const uint8_t outgoing[] = {STEP(BEGINS, 1),
                                        (uint8_t)(peer * 16 + 3),
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        STEP(SPEAKS, 0),
                                        (uint8_t)(4 * result + 1),
                                        0x0c,
                                        0,
                                        1,
                                        0,
                                        0,
                                        0,
                                        STEP(REPORTS, 0),
                                        STEP(BEGINS_NAME, 2),
                                        (uint8_t)(peer * 16 + 3),
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        STEP(TIME_PASSES, 31),
                                        STEP(LINK_ENDS, 0),
                                        STEP(TIME_PASSES, 31)};
            /* accepted, credentials, watched, HELLO in with memory, ..., WELCOME out; then READY in */
            const uint8_t incoming[] = {STEP(ACCEPTS, 0),
                                        peer,
                                        0,
                                        0,
                                        1,
                                        0x0f,
                                        0,
                                        0,
                                        1,
                                        1,
                                        0,
                                        0,
                                        0,
                                        STEP(SPEAKS, 0),
                                        1,
                                        0x08,
                                        0,
                                        0,
                                        STEP(REPORTS, 0),
                                        STEP(ACCEPTS, 1),
                                        peer,
                                        0,
                                        0,
                                        (uint8_t)(1 + result),
                                        0x0f,
                                        0,
                                        0,
                                        1,
                                        1,
                                        0,
                                        peer,
                                        0,
                                        0,
                                        222,
                                        0,
                                        STEP(TIME_PASSES, 31),
                                        STEP(TIME_PASSES, 31)};

            add(outgoing, sizeof(outgoing));
            add(incoming, sizeof(incoming));
        }
    }
}
