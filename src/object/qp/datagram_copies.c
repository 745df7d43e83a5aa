/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory for payload copies of UD SENDs that are posted but not sent yet (transport/ud.c). */
#include <sys/mman.h>

#include "base/log.h"
#include "base/sys.h"
#include "object/qp/qp_internal.h"
#include "rules/limits.h"

/* Copies per QP, at most: 16 MiB. Datagrams beyond that are dropped. */
#define DATAGRAM_COPIES_MAX 4096u

/* transport_ports.alloc_copies. By mmap() and not malloc(): the QP's lock is held, and a program's malloc() hooks may
 * do anything. */
bool datagram_copies_begin(struct transport_qp *transport)
{
    uint32_t places = min_of(transport->send_mask + 1, DATAGRAM_COPIES_MAX);
    char *at = sys_mmap(NULL, (size_t)places * LIMIT_UD_PAYLOAD, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, NULL);

    if (!at) {
        log_warn("out of memory: UD datagrams that cannot be sent immediately are dropped");
        return false;
    }
    (void)sys_madvise(at, (size_t)places * LIMIT_UD_PAYLOAD, MADV_DONTFORK); /* a child does not send them */
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
