/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef RULES_EVENT_NAME_H
#define RULES_EVENT_NAME_H

#include <stdint.h>

/* "IBV_EVENT_QP_FATAL"; "?" for what is no event. */
const char *event_name(uint32_t type);

#endif
