/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/event_name.h"

#include "base/types.h"
#include "base/verbs.h"

const char *event_name(uint32_t type)
{
    static const char *const names[] = {
        [IBV_EVENT_CQ_ERR] = "IBV_EVENT_CQ_ERR",
        [IBV_EVENT_QP_FATAL] = "IBV_EVENT_QP_FATAL",
        [IBV_EVENT_QP_REQ_ERR] = "IBV_EVENT_QP_REQ_ERR",
        [IBV_EVENT_QP_ACCESS_ERR] = "IBV_EVENT_QP_ACCESS_ERR",
        [IBV_EVENT_COMM_EST] = "IBV_EVENT_COMM_EST",
        [IBV_EVENT_SQ_DRAINED] = "IBV_EVENT_SQ_DRAINED",
        [IBV_EVENT_PATH_MIG] = "IBV_EVENT_PATH_MIG",
        [IBV_EVENT_PATH_MIG_ERR] = "IBV_EVENT_PATH_MIG_ERR",
        [IBV_EVENT_DEVICE_FATAL] = "IBV_EVENT_DEVICE_FATAL",
        [IBV_EVENT_PORT_ACTIVE] = "IBV_EVENT_PORT_ACTIVE",
        [IBV_EVENT_PORT_ERR] = "IBV_EVENT_PORT_ERR",
        [IBV_EVENT_LID_CHANGE] = "IBV_EVENT_LID_CHANGE",
        [IBV_EVENT_PKEY_CHANGE] = "IBV_EVENT_PKEY_CHANGE",
        [IBV_EVENT_SM_CHANGE] = "IBV_EVENT_SM_CHANGE",
        [IBV_EVENT_SRQ_ERR] = "IBV_EVENT_SRQ_ERR",
        [IBV_EVENT_SRQ_LIMIT_REACHED] = "IBV_EVENT_SRQ_LIMIT_REACHED",
        [IBV_EVENT_QP_LAST_WQE_REACHED] = "IBV_EVENT_QP_LAST_WQE_REACHED",
        [IBV_EVENT_CLIENT_REREGISTER] = "IBV_EVENT_CLIENT_REREGISTER",
        [IBV_EVENT_GID_CHANGE] = "IBV_EVENT_GID_CHANGE",
        [IBV_EVENT_WQ_FATAL] = "IBV_EVENT_WQ_FATAL",
    };

    return type < array_size(names) && names[type] ? names[type] : "?";
}
