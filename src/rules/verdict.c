/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/verdict.h"

#include "base/types.h"

#define NO_NAK (-1)

struct verdict_row {
    const char *name;
    enum ibv_wc_status status;
    int nak; /* enum nak_code, or NO_NAK */
};

/* RECEIVER_NOT_READY completes no work request (the requester retries) and is a kind of syndrome of its own, not a
 * NAK code. LOCAL_ACCESS: the receive reports that the peer's rkey failed, and the peer gets a remote access NAK (IBA
 * 9.9, class C). Verdicts of a requester have no NAK code. */
static const struct verdict_row rows[] = {
    [VERDICT_OK] = {"ok", IBV_WC_SUCCESS, NO_NAK},
    [VERDICT_LOCAL_LENGTH] = {"local length", IBV_WC_LOC_LEN_ERR, NAK_INVALID_REQUEST},
    [VERDICT_LOCAL_QP_OPERATION] = {"local QP operation", IBV_WC_LOC_QP_OP_ERR, NAK_REMOTE_OPERATION},
    [VERDICT_LOCAL_PROTECTION] = {"local protection", IBV_WC_LOC_PROT_ERR, NAK_REMOTE_OPERATION},
    [VERDICT_LOCAL_ACCESS] = {"local access", IBV_WC_LOC_ACCESS_ERR, NAK_REMOTE_ACCESS},
    [VERDICT_MW_BIND] = {"MW bind", IBV_WC_MW_BIND_ERR, NO_NAK},
    [VERDICT_INVALID_REQUEST] = {"invalid request", IBV_WC_REM_INV_REQ_ERR, NAK_INVALID_REQUEST},
    [VERDICT_REMOTE_ACCESS] = {"remote access", IBV_WC_REM_ACCESS_ERR, NAK_REMOTE_ACCESS},
    [VERDICT_REMOTE_OPERATION] = {"remote operation", IBV_WC_REM_OP_ERR, NAK_REMOTE_OPERATION},
    [VERDICT_RECEIVER_NOT_READY] = {"receiver not ready", IBV_WC_GENERAL_ERR, NO_NAK},
    [VERDICT_RETRY_EXCEEDED] = {"retries exceeded", IBV_WC_RETRY_EXC_ERR, NO_NAK},
    [VERDICT_RNR_RETRY_EXCEEDED] = {"RNR retries exceeded", IBV_WC_RNR_RETRY_EXC_ERR, NO_NAK},
    [VERDICT_BAD_RESPONSE] = {"bad response", IBV_WC_BAD_RESP_ERR, NO_NAK},
    [VERDICT_FLUSHED] = {"flushed", IBV_WC_WR_FLUSH_ERR, NO_NAK},
    [VERDICT_FATAL] = {"fatal", IBV_WC_FATAL_ERR, NAK_REMOTE_OPERATION},
    [VERDICT_RENDEZVOUS_INCOMPLETE] = {"rendezvous incomplete", IBV_WC_TM_RNDV_INCOMPLETE, NO_NAK},
    [VERDICT_TAG] = {"tag", IBV_WC_TM_ERR, NO_NAK},
};
_Static_assert(array_size(rows) == VERDICT_COUNT, "a row for each verdict");

/* A verdict may come from a published record that another process wrote. */
static const struct verdict_row *row_of(enum verdict verdict)
{
    return (unsigned)verdict < VERDICT_COUNT ? &rows[verdict] : &rows[VERDICT_FATAL];
}

const char *verdict_name(enum verdict verdict)
{
    return row_of(verdict)->name;
}

enum ibv_wc_status verdict_wc_status(enum verdict verdict)
{
    return row_of(verdict)->status;
}

int verdict_nak_code(enum verdict verdict)
{
    return row_of(verdict)->nak;
}

enum verdict verdict_of_nak(uint8_t code)
{
    switch (code) {
    case NAK_SEQUENCE:
        return VERDICT_OK;
    case NAK_INVALID_REQUEST:
        return VERDICT_INVALID_REQUEST;
    case NAK_REMOTE_ACCESS:
        return VERDICT_REMOTE_ACCESS;
    case NAK_REMOTE_OPERATION:
        return VERDICT_REMOTE_OPERATION;
    default:
        /* Invalid RD request and the reserved codes, which no RC responder sends. */
        return VERDICT_BAD_RESPONSE;
    }
}
