/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca top: rows (top_rows.c), what is seen of them (top_view.c), and the screen (top_draw.c). */
#ifndef SOFTHCA_TOP_H
#define SOFTHCA_TOP_H

#include <stdbool.h>
#include <stdint.h>

#include "counters.h"
#include "explain/out.h"
#include "screen.h"

/* Per second, since the reading before. */
struct top_rates {
    double messages_out, bytes_out, messages_in, bytes_in, retries, rnr_received, rnr_sent, drops;
    uint64_t p50_ns, p99_ns; /* 0: none was measured */
};

struct top_row {
    const struct stats_process *process;
    const struct stats_qp *qp; /* NULL: the process */
    struct top_rates rates;
    bool known;                 /* it was there at the reading before */
    struct traffic_rare recent; /* latencies since then */
};

struct top_rows {
    struct top_row *list;
    unsigned count;
};

/* All processes, or all QPs (of a process, by its instance; NULL: of all). before: may be empty. False: no memory. */
bool top_rows(const struct counted *now, const struct counted *before, bool qps, const uint8_t *instance,
              struct top_rows *ret);
void top_rows_free(struct top_rows *rows);

enum top_column {
    TOP_PID,
    TOP_PROGRAM,
    TOP_QPN,
    TOP_TYPE,
    TOP_STATE,
    TOP_PATH,
    TOP_PEER,
    TOP_QPS,
    TOP_MESSAGES_OUT,
    TOP_BYTES_OUT,
    TOP_MESSAGES_IN,
    TOP_BYTES_IN,
    TOP_P50,
    TOP_P99,
    TOP_RETRIES,
    TOP_RNR,
    TOP_CQ,
    TOP_EVENTS,
    TOP_SENDS,
    TOP_RECEIVES,
    TOP_DROPS,
    TOP_FAILED,
    TOP_REGISTERED,
    TOP_MAPPED,
    TOP_UP,
    TOP_COLUMNS,
};
const char *top_title(enum top_column column);
int top_width(enum top_column column); /* below 0: of text, at the left */
bool top_is_shown(enum top_column column, bool qps);
/* The text of a cell; it returns whether it is of something wrong. */
bool top_cell(const struct top_row *row, enum top_column column, char *text, size_t size);
void top_sort(struct top_rows *rows, enum top_column column, bool reversed);
/* Keeps rows of which a cell has the text. */
void top_filter(struct top_rows *rows, const char *text);
/* What the process's QPs use, most of them first: "mapped", "ring+2" */
void top_path_of(const struct stats_process *process, char *text, size_t size);
/* 12.3M, 4.0 GiB/s ... */
void top_scaled(double value, bool bytes, char *text, size_t size);
void top_duration(uint64_t ns, char *text, size_t size);

/* top.c: everything that was counted; before: NULL: without rates. */
void top_json(struct out *out, const struct counted *now);
void top_json_rates(struct out *out, const struct counted *now, const struct counted *before);

/* Shows until the user ends it; the exit status. */
int top_view(const struct screen *screen, int delay_ms);

#endif
