/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What capture_attach.c has attached and capture.c records into. */
#ifndef ENGINE_CORE_CAPTURE_ATTACHED_H
#define ENGINE_CORE_CAPTURE_ATTACHED_H

#include "engine/core/capture.h"

/* What is read from the header once, when the tool attaches. */
struct capture {
    struct capture_header *header;
    uint8_t *ring;
    uint32_t ring_bytes, snap, qpn_count;
    uint32_t qpns[CAPTURE_QPNS];
    /* By block of QP numbers: has this process recorded a packet that it has sent from there? */
    _Atomic uint64_t blocks[CAPTURE_BLOCKS / 64];
};

static inline struct capture *capture_current(void)
{
    return atomic_load_explicit(&capture_attached, memory_order_acquire);
}

static inline bool capture_wants_qpn(const struct capture *capture, uint32_t qpn)
{
    for (uint32_t i = 0; i < capture->qpn_count; i++) {
        if (capture->qpns[i] == qpn)
            return true;
    }
    return !capture->qpn_count;
}

#endif
