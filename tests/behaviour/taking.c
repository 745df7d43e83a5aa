/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "taking.h"

#include "work.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

void need_copies(void)
{
    char here, there = 0;
    struct iovec to = {&here, 1}, from = {&there, 1};

    if (process_vm_readv(FAR->pid, &to, 1, &from, 1, 0) < 0 && errno != EFAULT)
        skip_because("process_vm_readv: %s", strerror(errno));
}

void take_back(struct end *end, enum taking how)
{
    static uint8_t elsewhere[8192] __attribute__((aligned(4096)));

    switch (how) {
    case DEREGISTERS:
        CHECK_ZERO(ibv_dereg_mr(end->mr));
        end->mr = NULL;
        return;
    case REREGISTERS:
        CHECK_ZERO(
            ibv_rereg_mr(end->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, elsewhere, sizeof(elsewhere), 0));
        return;
    case ENTERS_ERR:
        CHECK_ZERO(end_to_state(end, IBV_QPS_ERR));
        return;
    case ENTERS_RESET:
        CHECK_ZERO(end_to_state(end, IBV_QPS_RESET));
        return;
    case DESTROYS_QP:
        CHECK_ZERO(ibv_destroy_qp(end->qp));
        end->qp = NULL;
        return;
    case TAKINGS:
        break;
    }
}
