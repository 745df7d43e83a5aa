/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What every cmocka program begins with, in the order cmocka wants it. */
#ifndef TESTS_UNIT_UNIT_H
#define TESTS_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/types.h"

#define run_unit_tests(name, tests)                                                                          \
    (cmocka_set_message_output(CM_OUTPUT_TAP), cmocka_run_group_tests_name(name, tests, NULL, NULL))

#endif
