/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sys.h"
#include "capture.h"
#include "control.h"
#include "explain/out.h"

/* How long the order of records waits for one that a thread is about to write. That thread may be stopped. */
#define UNFILLED_NS (100 * NS_PER_MS)

static int make_ring(struct capture_source *source, const struct capture_options *options)
{
    int error;

    *source = (struct capture_source){.socket = -1};
    error =
        capture_ring_make(&source->ring, options->buffer, options->snap, options->qpns, options->qpn_count);
    if (error)
        fprintf(stderr, "softhca: cannot make a buffer of %u bytes: %s\n", options->buffer, strerror(-error));
    return error ? -1 : 0;
}

/* since: before the process was asked. Its clock is ours, unless it is of another time namespace. */
static void begin(struct capture_source *source, uint64_t since)
{
    const struct capture_header *header = source->ring.header;
    const uint64_t now = sys_now(), there = __atomic_load_n(&header->attached_at, __ATOMIC_RELAXED);
    char program[sizeof(header->program) + 1];

    printable(program, header->program, sizeof(header->program));
    if (there < since || there > now)
        source->clock_ahead = (int64_t)(there - now);
    snprintf(source->name, sizeof(source->name), "%s[%d]", program,
             source->pid ? (int)source->pid : (int)header->pid);
    source->state = SOURCE_CAPTURED;
}

int source_attach(struct capture_source *source, pid_t pid, const struct capture_options *options)
{
    const uint64_t since = sys_now();
    char why[CONTROL_WHY_MAX];

    if (make_ring(source, options))
        return -1;
    source->pid = pid;
    source->socket = control_ask(pid, CONTROL_CAPTURE, source->ring.file, why, sizeof(why));
    if (source->socket > 0) {
        source->answered = true;
        begin(source, since);
        return 0;
    }
    fprintf(stderr, "softhca: cannot capture process %d: %s\n", (int)pid,
            source->socket < 0
                ? why
                : "it answered, but not with what a capture needs: it may run another release of SoftHCA");
    capture_ring_free(&source->ring);
    return -1;
}

int source_offer(struct capture_source *source, int socket, const struct capture_options *options)
{
    const struct control_request request = control_request_of(CONTROL_CAPTURE);
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t length = sizeof(peer);

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
        (peer.uid != geteuid() && geteuid() != 0) || make_ring(source, options)) {
        close(socket);
        return -1;
    }
    source->pid = peer.pid;
    source->socket = socket;
    source->time = sys_now();
    if (control_send(socket, &request, source->ring.file) != 0)
        source_ready(source);
    return 0;
}

static void end(struct capture_source *source)
{
    close(source->socket);
    source->socket = -1;
    source->state = SOURCE_ENDED;
}

void source_ready(struct capture_source *source)
{
    struct control_answer answer;
    ssize_t length = recv(source->socket, &answer, sizeof(answer), MSG_DONTWAIT);

    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (source->answered || length != (ssize_t)sizeof(answer) || answer.magic != SEGMENT_REQUEST_MAGIC ||
        answer.result != CONTROL_ATTACHED) {
        end(source);
        return;
    }
    source->answered = true;
    if (source->state == SOURCE_ASKED)
        begin(source, source->time);
}

void source_stop(struct capture_source *source)
{
    if (source->socket >= 0)
        shutdown(source->socket, SHUT_WR);
}

/* The thread that has reserved the entry will have taken the time after that of the record before it. */
static void wait_for_filling(struct capture_source *source, uint64_t *limit)
{
    const uint64_t now = sys_now();

    if (!source->unfilled_since)
        source->unfilled_since = now;
    if (source->state != SOURCE_ENDED && now - source->unfilled_since < UNFILLED_NS)
        *limit = min_of(*limit, source->time);
}

void source_peek(struct capture_source *source, uint64_t *limit)
{
    if (source->has_record)
        return;
    switch (capture_ring_peek(&source->ring, &source->record, &source->payload)) {
    case CAPTURE_ENTRY:
        /* A process records before its answer is read: others' later records must not overtake it. */
        if (source->state == SOURCE_ASKED)
            begin(source, source->time);
        source->has_record = true;
        source->unfilled_since = 0;
        /* A thread takes the time after its place in the ring, and may lose the processor between the two. */
        source->time = max_of(source->time, source->record.time - (uint64_t)source->clock_ahead);
        return;
    case CAPTURE_UNFILLED:
        wait_for_filling(source, limit);
        return;
    case CAPTURE_NONSENSE:
        if (source->socket >= 0) {
            fprintf(stderr,
                    "softhca: the capture buffer of process %s is corrupt: its capture has ended, and what "
                    "was written so "
                    "far is valid\n",
                    source->name);
            end(source);
        }
        return;
    case CAPTURE_NOTHING:
        return;
    }
}

void source_next(struct capture_source *source)
{
    capture_ring_next(&source->ring, &source->record);
    source->has_record = false;
}
