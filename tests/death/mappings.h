/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which memory of the victim another process may have mapped, too. */
#ifndef DEATH_MAPPINGS_H
#define DEATH_MAPPINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct access_of;

/* What is known is read again when it is asked for next. */
void mappings_forget(void);
/* The instruction may store where others see it. */
bool mappings_others_see(pid_t pid, const struct access_of *access);

#endif
