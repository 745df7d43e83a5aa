/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The input of targets that simulate what is around the code, and the time that passes there. The target is linked with
 * --wrap=sys_now. */
#ifndef TESTS_FUZZ_SIMULATED_H
#define TESTS_FUZZ_SIMULATED_H

#include "base/sys.h"
#include "input.h"

static struct input input;
static ns_t now;

ns_t __wrap_sys_now(void);

ns_t __wrap_sys_now(void)
{
    return now;
}

#endif
