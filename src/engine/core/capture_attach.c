/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The tool's ring: attached and taken away, and which QPs are captured. */
#include "engine/core/capture_attached.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/paths/paths.h"
#include "local/local.h"

/* Both are written by one thread at a time (capture_attach()), and read in rundown sections. QPs that are connected
 * from now on are captured by `chosen`. It is set later and taken back earlier than capture_attached, so that a
 * captured QP always finds the latter. */
_Atomic(struct capture *) capture_attached;
static _Atomic(struct capture *) chosen;

/* What a delegate does is recorded where its QP is. */
static bool may_be_captured(const struct qp *qp)
{
    return !qp->origin && !qp->handle && !qp->spreads_over;
}

bool capture_wants(const struct qp *qp)
{
    const struct capture *capture = atomic_load_explicit(&chosen, memory_order_acquire);

    return capture && may_be_captured(qp) &&
           (capture_wants_qpn(capture, qp->ibv.qp_num) ||
            (is_connected(qp->record) && capture_wants_qpn(capture, qp->record->attributes.dest_qpn)));
}

static void choose_all_anew(struct capture *capture)
{
    /* Release: who sees a capture here sees capture_attached. Who reads the old value holds the lock of a QP that is
     * not visited yet. */
    atomic_store_explicit(&chosen, capture, memory_order_release);
    by_packets_choose_all();
}

/* ring_bytes: what the size of the file leaves. */
static bool is_good(const struct capture_header *header, uint32_t ring_bytes)
{
    return header->magic == CAPTURE_MAGIC && header->version == CAPTURE_VERSION &&
           __atomic_load_n(&header->ring_bytes, __ATOMIC_RELAXED) == ring_bytes &&
           !(ring_bytes & (ring_bytes - 1));
}

static void capture_free(struct capture *capture)
{
    if (capture->header)
        sys_munmap(capture->header, CAPTURE_DATA + (size_t)capture->ring_bytes);
    free(capture);
}

/* The tool can change what it has written at any time: only the copies are used. */
static int read_header(struct capture *capture)
{
    const struct capture_header *header = capture->header;

    if (!is_good(header, capture->ring_bytes))
        return -EINVAL;
    capture->ring = (uint8_t *)capture->header + CAPTURE_DATA;
    capture->snap = __atomic_load_n(&header->snap, __ATOMIC_RELAXED);
    capture->qpn_count = __atomic_load_n(&header->qpn_count, __ATOMIC_RELAXED);
    memcpy(capture->qpns, header->qpns, sizeof(capture->qpns));
    return capture->qpn_count <= CAPTURE_QPNS ? 0 : -EINVAL;
}

static int map_file(int file, struct capture *capture)
{
    uint64_t size;
    int error = file < 0 ? -EINVAL : memory_file_check(file, &size);

    if (error)
        return error;
    if (size < CAPTURE_DATA + CAPTURE_RING_MIN || size > CAPTURE_DATA + (uint64_t)CAPTURE_RING_MAX)
        return -EINVAL;
    capture->ring_bytes = (uint32_t)(size - CAPTURE_DATA);
    capture->header = sys_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0, &error);
    if (error)
        return error;
    /* A forked child must not write into its parent's capture. */
    error = sys_madvise(capture->header, size, MADV_DONTFORK);
    return error ? error : read_header(capture);
}

static void introduce(struct capture_header *header)
{
    header->pid = getpid();
    snprintf(header->program, sizeof(header->program), "%s", program_invocation_short_name);
    header->attached_at = sys_now();
}

int capture_attach(int file, char *why, size_t size)
{
    struct capture *capture;
    int error;

    if (capture_current()) {
        snprintf(why, size, "the process is being captured already");
        return -EBUSY;
    }
    capture = calloc(1, sizeof(*capture));
    error = capture ? map_file(file, capture) : -ENOMEM;
    if (error) {
        snprintf(why, size, "the process cannot use the capture buffer that softhca gives it: %s",
                 strerror(-error));
        if (capture)
            capture_free(capture);
        return error;
    }
    introduce(capture->header);
    atomic_store_explicit(&capture_attached, capture, memory_order_release);
    choose_all_anew(capture);
    return 1;
}

void capture_detach(void)
{
    struct capture *capture = capture_current();

    if (!capture)
        return;
    choose_all_anew(NULL);
    atomic_store_explicit(&capture_attached, NULL, memory_order_release);
    rundown_wait(); /* for packets without a QP */
    capture_free(capture);
}

void capture_start(void)
{
    const char *name = secure_getenv("SOFTHCA_CAPTURE");

    if (name && *name)
        local_invite_control(name);
}

/* The parent's ring is not mapped here. */
void capture_after_fork_in_child(void)
{
    atomic_store_explicit(&chosen, NULL, memory_order_relaxed);
    atomic_store_explicit(&capture_attached, NULL, memory_order_relaxed);
}
