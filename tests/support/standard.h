/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs run with stdin, stdout and stderr closed, and print all the same. */
#ifndef TESTS_SUPPORT_STANDARD_H
#define TESTS_SUPPORT_STANDARD_H

/* Closes them, on the near and the far side. */
void standard_close(void);
/* Opens them again, and complains of those that were open on either side. */
void standard_check(void);

#endif
