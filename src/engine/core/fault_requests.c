/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that `softhca fault` loads and removes while the process runs (published/fault_request.h). */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory_file.h"
#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "published/fault_request.h"

/* The file may change at any time: a copy is checked and used. NULL: `why` says what is wrong. */
static struct fault_request *copy_request(int file, char *why, size_t size)
{
    struct fault_request *request;
    uint64_t length;

    if (file < 0 || memory_file_check(file, &length) != 0 || length < sizeof(*request)) {
        snprintf(
            why, size,
            "the request came without its file of faults (a memfd sealed against shrinking and growing)");
        return NULL;
    }
    request = malloc(sizeof(*request));
    if (!request || pread(file, request, sizeof(*request), 0) != (ssize_t)sizeof(*request)) {
        snprintf(
            why, size,
            "the faults of the request cannot be read: out of memory, or the file was changed meanwhile");
        free(request);
        return NULL;
    }
    request->specs[sizeof(request->specs) - 1] = '\0';
    request->answer[0] = '\0';
    if (request->version == FAULT_REQUEST_VERSION)
        return request;
    snprintf(why, size,
             "the process runs another release of SoftHCA: it takes fault requests of format %u, and this "
             "softhca command sends format %u: use the softhca command of that release",
             FAULT_REQUEST_VERSION, request->version);
    free(request);
    return NULL;
}

int faults_requested(int file, char *why, size_t size)
{
    struct fault_request *request = copy_request(file, why, size);
    int result = 0;

    if (!request)
        return -EINVAL;
    switch ((enum fault_operation)request->operation) {
    case FAULTS_LIST:
        faults_list(request->answer, sizeof(request->answer));
        break;
    case FAULTS_ADD:
        result = faults_add(request->specs, why, size);
        break;
    case FAULTS_CLEAR:
        faults_list(request->answer, sizeof(request->answer));
        faults_clear();
        break;
    default:
        snprintf(why, size,
                 "the process runs another release of SoftHCA, which does not know this kind of fault "
                 "request: use the softhca command of that release");
        result = -EINVAL;
    }
    /* Without the answer, what was asked for is done all the same. */
    if (!result && pwrite(file, request->answer, strlen(request->answer) + 1,
                          offsetof(struct fault_request, answer)) < 0)
        log_info("softhca fault: the request was executed, but its answer cannot be written: %s",
                 strerror(errno));
    free(request);
    return result;
}
