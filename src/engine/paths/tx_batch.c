/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/paths/tx_batch.h"

#include <stdbool.h>

static void count_request(struct tx_batch *batch, uint32_t polls)
{
    if (batch->polls_seen != polls) {
        if (batch->unpolled < BATCH_BURST)
            batch->bursts = 0;
        else if (batch->bursts < BATCH_BURSTS_TO_TRUST)
            batch->bursts++;
        batch->polls_seen = polls;
        batch->unpolled = 0;
    }
    if (batch->unpolled < BATCH_MAX_UNPOLLED)
        batch->unpolled++;
}

static bool may_wait(struct tx_batch *batch, const struct tx_batch_counters *counters)
{
    uint32_t min_inflight;

    count_request(batch, counters->polls);
    min_inflight = batch->bursts < BATCH_BURSTS_TO_TRUST ? BATCH_MIN_INFLIGHT : 1;
    if (batch->flushes_seen != counters->flushes) {
        batch->flushes_seen = counters->flushes;
        batch->batched = 0;
    }
    return counters->inflight >= (int32_t)(min_inflight + batch->batched) && batch->batched < BATCH_MAX &&
           batch->unpolled < BATCH_MAX_UNPOLLED;
}

enum tx_batch_decision tx_batch_step(struct tx_batch *batch, enum tx_batch_event event,
                                     const struct tx_batch_counters *counters)
{
    if (event != TX_BATCH_REQUEST || !may_wait(batch, counters)) {
        batch->batched = 0;
        return TX_BATCH_FLUSH;
    }
    batch->batched++;
    return TX_BATCH_WAIT;
}
