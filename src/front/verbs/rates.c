/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Conversions of the static rate (verbs.md §10.12). The reverse functions map exactly the listed values. */

#include "base/types.h"
#include "base/verbs.h"
#include "front/verbs/export.h"

#define NO_MULTIPLE (-1)

static const struct rate {
    enum ibv_rate rate;
    int multiple; /* in units of 2.5 Gbit/s */
    int mbps;
} rates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},
    {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},
    {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},
    {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, NO_MULTIPLE, 14062},
    {IBV_RATE_56_GBPS, NO_MULTIPLE, 56250},
    {IBV_RATE_112_GBPS, NO_MULTIPLE, 112500},
    {IBV_RATE_168_GBPS, NO_MULTIPLE, 168750},
    {IBV_RATE_25_GBPS, NO_MULTIPLE, 25781},
    {IBV_RATE_100_GBPS, NO_MULTIPLE, 103125},
    {IBV_RATE_200_GBPS, NO_MULTIPLE, 206250},
    {IBV_RATE_300_GBPS, NO_MULTIPLE, 309375},
    {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},
    {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

VERBS_EXPORT int ibv_rate_to_mult(enum ibv_rate rate)
{
    for (size_t i = 0; i < array_size(rates); i++) {
        if (rates[i].rate == rate)
            return rates[i].multiple;
    }
    return -1;
}

VERBS_EXPORT enum ibv_rate mult_to_ibv_rate(int multiple)
{
    for (size_t i = 0; i < array_size(rates); i++) {
        if (multiple != NO_MULTIPLE && rates[i].multiple == multiple)
            return rates[i].rate;
    }
    return IBV_RATE_MAX;
}

VERBS_EXPORT int ibv_rate_to_mbps(enum ibv_rate rate)
{
    for (size_t i = 0; i < array_size(rates); i++) {
        if (rates[i].rate == rate)
            return rates[i].mbps;
    }
    return -1;
}

VERBS_EXPORT enum ibv_rate mbps_to_ibv_rate(int mbps)
{
    for (size_t i = 0; i < array_size(rates); i++) {
        if (rates[i].mbps == mbps)
            return rates[i].rate;
    }
    return IBV_RATE_MAX;
}
