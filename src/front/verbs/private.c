/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/verbs/private.h"

#include "engine/cm/agent.h"
#include "front/verbs/export.h"

VERBS_EXPORT const struct cm_agent_calls *softhca_communication(void)
{
    return &cm_agent_calls;
}
