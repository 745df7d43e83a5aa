/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Room for the payload of datagrams that wait (transport/ud.c). */
#include <sys/mman.h>

#include "base/log.h"
#include "base/sys.h"
#include "object/qp/qp_internal.h"
#include "rules/limits.h"

/* 16 MiB of a QP with a long send queue; what does not fit is lost. */
#define DATAGRAM_COPIES_MAX 4096u

/* transport_ports.alloc_copies. Not of malloc(): the QP's lock is held, and programs have hooks there. */
bool datagram_copies_begin(struct transport_qp *transport)
{
    uint32_t places = min_of(transport->send_mask + 1, DATAGRAM_COPIES_MAX);
    char *at = sys_mmap(NULL, (size_t)places * LIMIT_UD_PAYLOAD, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, NULL);

    if (!at) {
        log_warn("no memory for datagrams that wait: they are lost");
        return false;
    }
    (void)sys_madvise(at, (size_t)places * LIMIT_UD_PAYLOAD, MADV_DONTFORK); /* of no use to a child */
    transport->copies_mask = places - 1;
    transport->copies = at;
    return true;
}

void datagram_copies_end(struct transport_qp *transport)
{
    if (transport->copies)
        (void)sys_munmap(transport->copies, ((size_t)transport->copies_mask + 1) * LIMIT_UD_PAYLOAD);
    transport->copies = NULL;
}
