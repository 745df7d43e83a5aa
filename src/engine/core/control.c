/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/control.h"

#include <errno.h>

#include "engine/core/capture.h"
#include "engine/core/faults.h"

int control_decide(enum control_subject subject, int file, char *why, size_t size)
{
    switch (subject) {
    case CONTROL_CAPTURE:
        return capture_attach(file, why, size);
    case CONTROL_FAULTS:
        return faults_requested(file, why, size);
    }
    return -ENOSYS; /* `why` says so already */
}

void control_end(enum control_subject subject)
{
    switch (subject) {
    case CONTROL_CAPTURE:
        capture_detach();
        return;
    case CONTROL_FAULTS: /* do not last */
        break;
    }
}
