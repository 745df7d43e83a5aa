/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "attach.h"
#include "explain/objects.h"
#include "explain/out.h"

#define ANSWER_MS 3000

static __attribute__((format(printf, 3, 4))) int refuse(char *why, size_t size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return -1;
}

struct control_request control_request_of(enum control_subject subject)
{
    return (struct control_request){.magic = SEGMENT_REQUEST_MAGIC,
                                    .version = SEGMENT_REQUEST_VERSION,
                                    .type = CONTROL_REQUEST_TYPE,
                                    .result = CONTROL_REQUESTED,
                                    .subject = subject};
}

int control_send(int socket, const struct control_request *request, int file)
{
    struct iovec part = {(void *)(uintptr_t)request, sizeof(*request)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(*request) ? 0 : -errno;
}

static int talk(int socket, const struct control_request *request, int file, char *why, size_t size)
{
    struct pollfd answered = {.fd = socket, .events = POLLIN};
    struct control_answer answer;

    if (control_send(socket, request, file) != 0 || poll(&answered, 1, ANSWER_MS) != 1)
        return refuse(why, size, "it did not answer within %d seconds", ANSWER_MS / 1000);
    if (recv(socket, &answer, sizeof(answer), MSG_DONTWAIT) != (ssize_t)sizeof(answer) ||
        answer.magic != SEGMENT_REQUEST_MAGIC || answer.type != CONTROL_REQUEST_TYPE)
        return refuse(
            why, size,
            "it does not understand requests of this softhca command: it runs another release of SoftHCA");
    switch ((enum control_result)answer.result) {
    case CONTROL_ACCEPTED:
        return 0;
    case CONTROL_ATTACHED:
        return socket;
    case CONTROL_REFUSED:
    case CONTROL_REQUESTED:
        break;
    }
    printable(answer.why, answer.why, sizeof(answer.why) - 1);
    return refuse(why, size, "%s", answer.why);
}

/* A connection to the process, by the name of a QP number that it owns; -ENOENT: it has no QP; another -errno. */
static int connect_to_owner(const struct attached *at)
{
    struct view_walk walk = view_walk(&at->view, &at->view.header.qps);
    uint32_t number, tried = 0;
    int error = -ENOENT;
    struct qp_record qp;

    while (view_next(&walk, &number, &qp)) {
        uint32_t block = atomic_load_explicit(&qp.qpn, memory_order_relaxed) / SEGMENT_REQUEST_BLOCK_QPNS;
        struct ucred peer = {0};
        int fd;

        /* A handle of ibv_open_qp() has the number of a QP of another process. */
        if (!block || block == tried || qp.opened)
            continue;
        tried = block;
        fd = attach_connect(block, &peer);
        if (fd >= 0 && (peer.pid == at->pid || !peer.pid))
            return fd;
        if (fd >= 0)
            close(fd);
        else
            error = fd;
    }
    return error;
}

static int ask_attached(const struct attached *at, struct control_request *request, int file, char *why,
                        size_t size)
{
    int result, fd;

    if (at->view.header.watched)
        return refuse(why, size, "it runs under softhca watch, with a NIC instead of SoftHCA");
    if (process_is_stopped(&at->view, at->pid))
        return refuse(why, size, "it is stopped: continue it first (kill -CONT %d)", (int)at->pid);
    fd = connect_to_owner(at);
    if (fd == -ENOENT)
        return refuse(why, size,
                      "it has no QP yet, and softhca reaches a process only by a number of its QPs: try "
                      "again when it has one, "
                      "or start it with softhca capture or softhca run --fault");
    if (fd < 0)
        return refuse(why, size, "its socket cannot be reached: %s", strerror(-fd));
    memcpy(request->secret, at->view.header.instance, sizeof(request->secret));
    result = talk(fd, request, file, why, size);
    if (result <= 0)
        close(fd);
    return result;
}

int control_ask(pid_t pid, enum control_subject subject, int file, char *why, size_t size)
{
    struct control_request request = control_request_of(subject);
    struct attached at;
    int result;

    if (!attach_pid(pid, &at))
        return refuse(why, size, "%s", at.why);
    result = ask_attached(&at, &request, file, why, size);
    attached_end(&at);
    return result;
}
