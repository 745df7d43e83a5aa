/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Seconds until a side that hangs is ended: nothing takes that long, wherever others want the processors. */
#ifndef TESTS_UNIT_SIDE_TIME_H
#define TESTS_UNIT_SIDE_TIME_H

#include <stdlib.h>

/* SOFTHCA_TEST_SLOW: how many times as long everything takes, as for the tests of behaviour. */
static inline unsigned side_seconds(void)
{
    const char *text = getenv("SOFTHCA_TEST_SLOW");
    const int factor = text ? atoi(text) : 1;

    return 240u * (factor > 1 ? (unsigned)factor : 1u);
}

#endif
