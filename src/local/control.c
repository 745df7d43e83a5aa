/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "base/user.h"
#include "local/files.h"
#include "local/start.h"

/* Each takes a descriptor of the program for as long as it lasts. */
#define CONTROLS_MAX 8u

enum control_state { CONTROL_ASKS, CONTROL_LASTS, CONTROL_ENDS };

struct control {
    struct event_source socket;
    struct list node; /* in `controls` */
    enum control_state state;
    enum control_subject subject;
    int file; /* CONTROL_ASKS; -1: none */
};

static struct list controls = {&controls, &controls};
static unsigned control_count;

void control_after_fork_in_child(void)
{
    /* The descriptors are closed with all others; the rest is leaked, because the parent may have been changing it. */
    list_init(&controls);
    control_count = 0;
}

/* why: "" where nothing is refused. A tool that does not read its answer sees the end of the socket. */
static void answer(int socket, enum control_subject subject, enum control_result result, const char *why)
{
    struct control_answer message = {
        .magic = SEGMENT_REQUEST_MAGIC,
        .version = SEGMENT_REQUEST_VERSION,
        .type = CONTROL_REQUEST_TYPE,
        .result = result,
        .subject = subject,
    };

    snprintf(message.why, sizeof(message.why), "%s", why);
    (void)sys_send(socket, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static struct control *control_new(const struct control_request *request, int file)
{
    struct control *control = calloc(1, sizeof(*control));

    if (!control)
        return NULL;
    control->subject = (enum control_subject)request->subject;
    control->file = file;
    list_push_back(&controls, &control->node);
    control_count++;
    return control;
}

static const char *command_name(enum control_subject subject)
{
    switch (subject) {
    case CONTROL_CAPTURE:
        return "softhca capture";
    case CONTROL_FAULTS:
        return "softhca fault";
    }
    return "a softhca command that this version does not know";
}

static void control_free(struct control *control)
{
    list_remove(&control->node);
    control_count--;
    event_close(&control->socket);
    fd_close(control->file);
    free(control);
}

static void control_end(struct control *control)
{
    local.ops->control_ended(control->subject);
    control_free(control);
}

/* event_source.ready: the tool has closed its end, or says something, which no tool does. control_run() follows. */
static void socket_ready(struct event_source *source, uint32_t events)
{
    container_of(source, struct control, socket)->state = CONTROL_ENDS;
}

/* For the tool's user. *ret_logged: the same for this process's log. */
static const char *why_not_now(const struct handshake *handshake, const struct control_request *request,
                               const char **ret_logged)
{
    _Static_assert(CONTROL_SECRET_BYTES == LINK_SECRET_BYTES, "the same secret");
    *ret_logged = NULL;
    if (!ptrace_access_or_secret(handshake->socket.fd, request->secret)) {
        *ret_logged =
            "it could not be verified that it may ptrace this process (required: it is root, or both have "
            "the same user, group, user namespace and capabilities, and this one is dumpable)";
        return "it cannot verify that softhca may ptrace it: run softhca as its user and group, in its user "
               "namespace, or as root; a setuid program always refuses";
    }
    if (control_count == CONTROLS_MAX)
        return "too many softhca commands are attached to the process";
    return NULL;
}

void control_receive(struct handshake *handshake, const struct control_request *request, int file)
{
    const char *logged, *why = why_not_now(handshake, request, &logged);
    struct control *control = why ? NULL : control_new(request, file);

    if (!control) {
        why = why ? why : "the process is out of memory";
        log_info("request of %s, process %d (uid %u), refused: %s",
                 command_name((enum control_subject)request->subject), (int)handshake->peer.pid,
                 (unsigned)handshake->peer.uid, logged ? logged : why);
        answer(handshake->socket.fd, (enum control_subject)request->subject, CONTROL_REFUSED, why);
        fd_close(file);
        handshake_fail(handshake);
        return;
    }
    control->socket = handshake->socket;
    control->socket.ready = socket_ready;
    (void)event_change(&control->socket, 0); /* until it is decided */
    event_forget(&handshake->socket);
    handshake_fail(handshake);
}

/* A tool that waited in vain has told its user so: this process was stopped meanwhile. */
static bool is_withdrawn(const struct control *control)
{
    char byte;

    return recv(control->socket.fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static void decide(struct control *control)
{
    char why[CONTROL_WHY_MAX] =
        "the process runs SoftHCA " SOFTHCA_VERSION ", which does not support this command";
    int result =
        local.ops->control ? local.ops->control(control->subject, control->file, why, sizeof(why)) : -ENOSYS;

    if (result < 0) {
        log_info("%s refused: %s", command_name(control->subject), why);
        answer(control->socket.fd, control->subject, CONTROL_REFUSED, why);
        control_free(control);
        return;
    }
    answer(control->socket.fd, control->subject, result ? CONTROL_ATTACHED : CONTROL_ACCEPTED, "");
    fd_close(control->file);
    control->file = -1;
    control->state = CONTROL_LASTS;
    if (!result)
        control_free(control);
    else if (event_change(&control->socket, EPOLLIN) != 0)
        control_end(control); /* nobody would see the tool's end */
}

/* --- tools that wait for this process ---------------------------------------------------------------------- */

/* The tool answers at once, unless it is stopped or gets no processor. */
#define INVITATION_SECONDS 10

static int connect_to_tool(const char *name)
{
    const struct timeval limit = {.tv_sec = INVITATION_SECONDS};
    int fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t length = unix_name_address(name, &address);
    int error;

    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
        connect(fd, (struct sockaddr *)&address, length) == 0 && peer_credentials(fd, &peer)) {
        if (peer.uid == 0 || user_is_own(peer.uid))
            return fd;
        errno = EPERM;
    }
    error = -errno;
    fd_close(fd);
    return error;
}

static int receive_request(int socket, struct control_request *request, int *ret_file)
{
    struct handshake_message message;
    ssize_t length = receive_with_descriptor(socket, &message, sizeof(message), 0, ret_file);

    if (length < 0)
        return -errno;
    if (length != (ssize_t)sizeof(*request) || !handshake_message_is_control_request(&message))
        return -EPROTO;
    memcpy(request, &message, sizeof(*request));
    return 0;
}

void local_invite_control(const char *name)
{
    struct control_request request = {.magic = 0};
    struct control *control = NULL;
    int file = -1, fd = connect_to_tool(name), error = min_of(fd, 0);

    if (!error)
        error = receive_request(fd, &request, &file);
    if (!error && !(control = control_new(&request, file)))
        error = -ENOMEM;
    if (error) {
        log_warn("cannot connect to the softhca command that waits at socket %s: %s", name, strerror(-error));
        fd_close(file);
        fd_close(fd);
        return;
    }
    control->socket.fd = fd;
    control->socket.ready = socket_ready;
    if (event_add(&control->socket, 0) != 0)
        control_free(control);
    else
        decide(control);
}

/* Tools that have gone are in front of those that ask now. */
void control_run(void)
{
    if (likely(list_empty(&controls)))
        return;
    list_for_each_safe (node, following, &controls) {
        struct control *control = list_entry(node, struct control, node);

        if (control->state == CONTROL_ENDS)
            control_end(control);
        else if (control->state == CONTROL_ASKS && is_withdrawn(control))
            control_free(control);
        else if (control->state == CONTROL_ASKS)
            decide(control);
    }
}
