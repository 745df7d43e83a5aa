/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "attach.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "base/unix_names.h"
#include "explain/neighbour.h"
#include "published/segment_request.h"

#define ANSWER_MS 3000

static __attribute__((format(printf, 2, 3))) bool refuse(struct attached *at, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(at->why, sizeof(at->why), format, arguments);
    va_end(arguments);
    return false;
}

void attached_end(struct attached *at)
{
    for (int i = 0; i < SEGMENT_PARTS; i++) {
        if (at->files[i] >= 0)
            close(at->files[i]);
        at->files[i] = -1;
    }
}

static const struct view *attach_peer(int32_t pid);
static const struct view *attach_process(unsigned index);

static bool refuse_file(struct attached *at)
{
    return refuse(at, "its published segment (state that softhca reads) is not safe to read: not a memfd "
                      "sealed against shrinking and growing");
}

static void note_view(struct attached *at)
{
    at->uid = at->view.header.uid;
    if (at->view.same_pids) /* then it knows its peers by the numbers that we know */
        at->view.find_peer = attach_peer;
    at->view.find_process = attach_process;
}

/* --- by /proc ------------------------------------------------------------------------------------------- */

static bool refuse_view(struct attached *at, int error)
{
    return refuse(
        at, error == -EPROTONOSUPPORT
                ? "its published segment (state that softhca reads) has another format version: use the "
                  "softhca command of the release that the process runs"
                : "its published segment (state that softhca reads) is damaged");
}

/* 1: opened; 0: it has no segment that can be used; -errno: it cannot be asked. */
static int attach_by_proc(pid_t pid, struct attached *at)
{
    struct neighbour neighbour;
    /* Under softhca watch, over our adapter, a process has two. Who watches it asks for what is watched. */
    int result = neighbour_open(pid, WATCHED_SEGMENT, &neighbour);

    if (result == 0)
        result = neighbour_open(pid, OWN_SEGMENT, &neighbour);

    switch (result) {
    case 1:
        memcpy(at->files, neighbour.files, sizeof(at->files));
        at->view = neighbour.view;
        note_view(at);
        return 1;
    case -EBADF:
    case -EPERM:
        refuse_file(at);
        return 0;
    case -EPROTO:
    case -EPROTONOSUPPORT:
        refuse_view(at, result);
        return 0;
    default:
        return result;
    }
}

/* --- by its socket -------------------------------------------------------------------------------------- */

int attach_connect(uint32_t block, struct ucred *ret_peer)
{
    struct sockaddr_un address;
    socklen_t length, size = sizeof(*ret_peer);
    char name[64];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(name, sizeof(name), SEGMENT_REQUEST_NAME_PREFIX "%04x", segment_request_named_block(block));
    length = unix_name_address(name, &address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_peer, &size) != 0) {
        int error = -errno;

        if (fd >= 0)
            close(fd);
        return error;
    }
    return fd;
}

/* The descriptors that came along; -1 where there are fewer. */
static void receive(int fd, struct segment_request *reply, int ret_files[SEGMENT_PARTS])
{
    struct iovec part = {reply, sizeof(*reply)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SEGMENT_REQUEST_FILES * sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header;

    _Static_assert(SEGMENT_REQUEST_FILES == SEGMENT_PARTS, "one descriptor for each");
    for (int i = 0; i < SEGMENT_PARTS; i++)
        ret_files[i] = -1;
    memset(reply, 0, sizeof(*reply));
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*reply))
        reply->magic = 0;
    header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_files, CMSG_DATA(header),
               min_of(header->cmsg_len - CMSG_LEN(0), SEGMENT_PARTS * sizeof(int)));
}

static bool are_safe(const int files[SEGMENT_PARTS], uint64_t ret_sizes[SEGMENT_PARTS])
{
    for (int i = 0; i < SEGMENT_PARTS; i++) {
        if (files[i] < 0 || memory_file_check(files[i], &ret_sizes[i]) != 0)
            return false;
    }
    return true;
}

/* at->files: files that memory_file_check() has accepted. False: they are closed. */
static bool read_segment(struct attached *at, const uint64_t sizes[SEGMENT_PARTS])
{
    int error = view_open_files(&at->view, at->files, sizes, at->pid);

    if (!error) {
        note_view(at);
        return true;
    }
    attached_end(at);
    return refuse_view(at, error);
}

/* fd: a connection. */
static bool ask(int fd, struct attached *at)
{
    const struct segment_request request = {
        .magic = SEGMENT_REQUEST_MAGIC, .version = SEGMENT_REQUEST_VERSION, .type = SEGMENT_REQUEST_TYPE};
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    struct segment_request reply;
    uint64_t sizes[SEGMENT_PARTS];

    if (send(fd, &request, sizeof(request), MSG_NOSIGNAL) != (ssize_t)sizeof(request) ||
        poll(&answer, 1, ANSWER_MS) != 1)
        return refuse(at, "no answer within the timeout: the process may be stopped");
    receive(fd, &reply, at->files);
    if (reply.magic == SEGMENT_REQUEST_MAGIC && reply.type == SEGMENT_REQUEST_TYPE &&
        reply.result == SEGMENT_GRANTED && are_safe(at->files, sizes))
        return read_segment(at, sizes);
    if (at->files[SEGMENT_TABLES] >= 0) {
        attached_end(at);
        return refuse_file(at);
    }
    if (reply.magic == SEGMENT_REQUEST_MAGIC && reply.result == SEGMENT_REFUSED)
        return refuse(
            at, "it cannot verify that softhca may ptrace it: run softhca as its user and group, in its user "
                "namespace, or as root; a setuid program always refuses");
    return refuse(at,
                  "it gave no valid answer to the request for its state: it probably runs another release "
                  "of SoftHCA; use the softhca command of that release");
}

static bool attach_by_socket(uint32_t block, struct attached *at)
{
    struct ucred peer;
    int fd = attach_connect(block, &peer);
    bool done;

    if (fd < 0)
        return refuse(at, "no process owns QPNs 0x%04x00 to 0x%04xff", block, block);
    at->pid = peer.pid;
    at->uid = peer.uid;
    at->block = block;
    if (peer.uid != geteuid() && geteuid() != 0)
        done = refuse(at, "it belongs to uid %u: run softhca as that user, or as root", (unsigned)peer.uid);
    else
        done = ask(fd, at);
    close(fd);
    return done;
}

/* --- finding -------------------------------------------------------------------------------------------- */

struct blocks {
    uint32_t *list;
    unsigned count, room;
};

static void note_block(const char *rest, void *argument)
{
    struct blocks *blocks = argument;
    char *end;
    unsigned long block = strtoul(rest, &end, 16);

    if (*end || block == 0 || block > 0xfffe)
        return;
    for (unsigned i = 0; i < blocks->count; i++) {
        if (blocks->list[i] == block)
            return;
    }
    if (blocks->count == blocks->room) {
        unsigned room = blocks->room ? blocks->room * 2 : 64;
        uint32_t *list = realloc(blocks->list, room * sizeof(*list));

        if (!list)
            return;
        blocks->list = list;
        blocks->room = room;
    }
    blocks->list[blocks->count++] = (uint32_t)block;
}

static struct blocks find_blocks(void)
{
    struct blocks blocks = {0};

    unix_names_visit(SEGMENT_REQUEST_NAME_PREFIX, SEGMENT_REQUEST_NAME_DIGITS, note_block, &blocks);
    return blocks;
}

static void begin(struct attached *at, pid_t pid)
{
    *at = (struct attached){.files = {-1, -1}, .pid = pid};
}

bool attach_block(uint32_t block, struct attached *ret)
{
    begin(ret, 0);
    return attach_by_socket(block, ret);
}

bool read_pid(const char *text, pid_t *ret)
{
    char *end;
    long pid;

    errno = 0;
    pid = strtol(text, &end, 10);
    if (*end || errno || pid <= 0 || pid > INT32_MAX)
        return false;
    *ret = (pid_t)pid;
    return true;
}

static bool refuse_access(pid_t pid, struct attached *ret)
{
    char path[32];
    struct stat status;

    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    if (stat(path, &status) == 0 && status.st_uid != geteuid() && status.st_uid != 0)
        return refuse(ret, "it belongs to uid %u: run softhca as that user, or as root",
                      (unsigned)status.st_uid);
    return refuse(ret, "it is not dumpable (a setuid program, or prctl(PR_SET_DUMPABLE, 0)), or runs as "
                       "root: run softhca as "
                       "root");
}

bool attach_pid(pid_t pid, struct attached *ret)
{
    struct blocks blocks;
    bool found = false;
    int result;

    begin(ret, pid);
    result = attach_by_proc(pid, ret);
    if (result > 0)
        return true;
    /* The process may exist all the same: not readable for us, or our /proc is of another pid namespace. */
    blocks = find_blocks();
    for (unsigned i = 0; i < blocks.count && !found; i++) {
        struct ucred peer = {0};
        int fd = attach_connect(blocks.list[i], &peer);

        if (fd >= 0)
            close(fd);
        if (fd >= 0 && peer.pid == pid) {
            begin(ret, pid);
            found = attach_by_socket(blocks.list[i], ret);
            break;
        }
    }
    free(blocks.list);
    if (found || ret->block)
        return found;
    if (result == -ENOENT)
        return refuse(ret, "there is no such process");
    if (result == -EACCES)
        return refuse_access(pid, ret);
    return ret->why[0] ? false : refuse(ret, "it does not use SoftHCA");
}

/* --- all of them */

struct crowd {
    struct attached *list;
    unsigned count, room;
};

static struct attached *add(struct crowd *crowd)
{
    if (crowd->count == crowd->room) {
        unsigned room = crowd->room ? crowd->room * 2 : 16;
        struct attached *list = realloc(crowd->list, room * sizeof(*list));

        if (!list)
            return NULL;
        crowd->list = list;
        crowd->room = room;
    }
    return &crowd->list[crowd->count++];
}

/* Takes ownership. */
static void keep(struct crowd *crowd, struct attached *at)
{
    struct attached *place = add(crowd);

    if (place)
        *place = *at;
    else
        attached_end(at);
}

static bool has_pid(const struct crowd *crowd, pid_t pid)
{
    for (unsigned i = 0; i < crowd->count; i++) {
        if (crowd->list[i].pid == pid)
            return true;
    }
    return false;
}

/* Processes whose number we do not see are told apart by the name that they gave themselves. */
static bool has_instance(const struct crowd *crowd, const struct attached *at)
{
    for (unsigned i = 0; i < crowd->count; i++) {
        const struct attached *other = &crowd->list[i];

        if (other != at && other->files[SEGMENT_TABLES] >= 0 &&
            memcmp(other->view.header.instance, at->view.header.instance, sizeof(at->view.header.instance)) ==
                0)
            return true;
    }
    return false;
}

static void add_from_proc(struct crowd *crowd)
{
    struct dirent *entry;
    DIR *processes = opendir("/proc");

    while (processes && (entry = readdir(processes)) != NULL) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        struct attached at;

        if (pid <= 0)
            continue;
        begin(&at, pid);
        if (attach_by_proc(pid, &at) <= 0)
            continue;
        /* A child made by clone() without our fork handler has its parent's descriptors. */
        if (has_instance(crowd, &at)) {
            attached_end(&at);
            continue;
        }
        keep(crowd, &at);
    }
    if (processes)
        closedir(processes);
}

static void add_from_sockets(struct crowd *crowd)
{
    struct blocks blocks = find_blocks();

    for (unsigned i = 0; i < blocks.count; i++) {
        struct ucred peer;
        struct attached at;
        int fd = attach_connect(blocks.list[i], &peer);

        if (fd < 0)
            continue;
        close(fd);
        if (peer.pid > 0 && has_pid(crowd, peer.pid))
            continue;
        begin(&at, peer.pid);
        if (attach_by_socket(blocks.list[i], &at) && has_instance(crowd, &at)) {
            attached_end(&at);
            continue;
        }
        keep(crowd, &at);
    }
    free(blocks.list);
}

static int compare(const void *a_, const void *b_)
{
    const struct attached *a = a_, *b = b_;

    return a->pid != b->pid ? (a->pid > b->pid) - (a->pid < b->pid)
                            : (a->block > b->block) - (a->block < b->block);
}

static unsigned find_all(struct attached **ret, bool by_sockets)
{
    struct crowd crowd = {0};

    add_from_proc(&crowd);
    if (by_sockets)
        add_from_sockets(&crowd);
    if (crowd.count)
        qsort(crowd.list, crowd.count, sizeof(*crowd.list), compare);
    *ret = crowd.list;
    return crowd.count;
}

unsigned attach_all(struct attached **ret)
{
    return find_all(ret, true);
}

unsigned attach_visible(struct attached **ret)
{
    return find_all(ret, false);
}

/* --- the other end of a QP ------------------------------------------------------------------------------ */

#define PEERS_MAX 16

static const struct view *attach_peer(int32_t pid)
{
    static struct attached peers[PEERS_MAX];
    static unsigned count;
    struct attached *peer;

    for (unsigned i = 0; i < count; i++) {
        if (peers[i].pid == pid)
            return peers[i].files[SEGMENT_TABLES] >= 0 ? &peers[i].view : NULL;
    }
    if (count == PEERS_MAX)
        return NULL;
    peer = &peers[count++];
    attach_pid(pid, peer);
    peer->pid = pid;
    return peer->files[SEGMENT_TABLES] >= 0 ? &peer->view : NULL;
}

/* All processes, once they are asked for. They stay open until we end. */
static const struct view *attach_process(unsigned index)
{
    static struct attached *all;
    static unsigned count;

    if (!all)
        count = attach_all(&all);
    for (unsigned i = 0; i < count; i++) {
        if (all[i].files[SEGMENT_TABLES] >= 0 && index-- == 0)
            return &all[i].view;
    }
    return NULL;
}

void attached_free(struct attached *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        attached_end(&list[i]);
    free(list);
}

ino_t network_of(const char *process)
{
    struct stat status;
    char path[64];

    snprintf(path, sizeof(path), "/proc/%s/ns/net", process);
    return stat(path, &status) == 0 ? status.st_ino : 0;
}

/* Those whose number we do not see were found by a name that only our network namespace has. */
bool attached_is_of_own_network(const struct attached *at)
{
    char process[16];

    if (!at->pid)
        return true;
    snprintf(process, sizeof(process), "%d", (int)at->pid);
    return network_of(process) == network_of("self");
}
