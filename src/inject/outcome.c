/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which completions can arise: status, opcode, side (IBA 11.6.2 and 9.9; verbs.md §3.10). */
#include "base/verbs.h"
#include "inject/names.h"
#include "rules/flush.h"
#include "rules/verdict.h"

#define BIT(opcode) (1u << (opcode))
#define SENDS       (BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_SEND_WITH_INV))
#define WRITES      (BIT(IBV_WR_RDMA_WRITE) | BIT(IBV_WR_RDMA_WRITE_WITH_IMM))
#define ATOMICS     (BIT(IBV_WR_ATOMIC_CMP_AND_SWP) | BIT(IBV_WR_ATOMIC_FETCH_AND_ADD))
#define READS       BIT(IBV_WR_RDMA_READ)
#define NEWER       (BIT(IBV_WR_ATOMIC_WRITE) | BIT(WR_FLUSH))
#define LOCALS      (BIT(IBV_WR_LOCAL_INV) | BIT(IBV_WR_BIND_MW))
#define ON_THE_WIRE (SENDS | WRITES | ATOMICS | READS | NEWER)

const char *const inject_outcome_names[INJECT_OUTCOMES] = {
    [OUTCOME_LOC_LEN_ERR] = "LOC_LEN_ERR",
    [OUTCOME_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR",
    [OUTCOME_LOC_PROT_ERR] = "LOC_PROT_ERR",
    [OUTCOME_MW_BIND_ERR] = "MW_BIND_ERR",
    [OUTCOME_BAD_RESP_ERR] = "BAD_RESP_ERR",
    [OUTCOME_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
    [OUTCOME_REM_ACCESS_ERR] = "REM_ACCESS_ERR",
    [OUTCOME_REM_OP_ERR] = "REM_OP_ERR",
    [OUTCOME_RETRY_EXC_ERR] = "RETRY_EXC_ERR",
    [OUTCOME_RNR_RETRY_EXC_ERR] = "RNR_RETRY_EXC_ERR",
    [OUTCOME_DELAYED] = "delayed",
    [OUTCOME_NEVER] = "never",
};

/* REM_ACCESS_ERR has no verdict of its own: the request goes out with another rkey, and the peer refuses it. A receive
 * goes out shortened, or with another lkey. So the peer's QP and completions are what its own checks make of them. */
const struct inject_outcome_row inject_outcomes_table[INJECT_OUTCOMES] = {
    [OUTCOME_LOC_LEN_ERR] = {VERDICT_LOCAL_LENGTH, SENDS | WRITES | READS, true, false, NULL},
    [OUTCOME_LOC_QP_OP_ERR] = {VERDICT_LOCAL_QP_OPERATION, ON_THE_WIRE | LOCALS, false, false, NULL},
    [OUTCOME_LOC_PROT_ERR] = {VERDICT_LOCAL_PROTECTION, SENDS | WRITES | READS | ATOMICS, true, false, NULL},
    [OUTCOME_MW_BIND_ERR] = {VERDICT_MW_BIND, LOCALS, false, false, NULL},
    [OUTCOME_BAD_RESP_ERR] = {VERDICT_BAD_RESPONSE, READS | ATOMICS | NEWER, false, true, NULL},
    [OUTCOME_REM_INV_REQ_ERR] =
        {VERDICT_OK, 0, false, true,
         "'completion=LOC_LEN_ERR side=receive' there, which makes its receive too small"},
    [OUTCOME_REM_ACCESS_ERR] = {VERDICT_OK, WRITES | READS | ATOMICS | NEWER, false, true, NULL},
    [OUTCOME_REM_OP_ERR] = {VERDICT_OK, 0, false, true,
                            "'completion=LOC_PROT_ERR side=receive' there, which gives its receive an lkey "
                            "that is not valid"},
    [OUTCOME_RETRY_EXC_ERR] = {VERDICT_RETRY_EXCEEDED, ON_THE_WIRE, false, true, NULL},
    [OUTCOME_RNR_RETRY_EXC_ERR] = {VERDICT_RNR_RETRY_EXCEEDED, SENDS | BIT(IBV_WR_RDMA_WRITE_WITH_IMM), false,
                                   true, NULL},
    [OUTCOME_DELAYED] = {VERDICT_OK, ON_THE_WIRE | LOCALS, true, false, NULL},
    [OUTCOME_NEVER] = {VERDICT_OK, ON_THE_WIRE | LOCALS, false, false, NULL},
};
