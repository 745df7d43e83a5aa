/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* usage: iscsi_copy read|write URL INITIATOR FILE
 * Copies a file to the blocks of a target, or back, with requests of many sizes of which many are in flight.
 * None is larger than 256 KiB, and not more than 256 are in flight: libiscsi 1.19 can do no more over iSER.
 */
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, DEPTH = 64 };

static const unsigned sizes[] = {1, 8, 512, 3, 64, 511, 128, 2};

static struct iscsi_context *iscsi;
static unsigned in_flight;

struct request {
    struct scsi_iovec iov;
};

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, iscsi ? iscsi_get_error(iscsi) : "");
    exit(1);
}

static void done(struct iscsi_context *context, int status, void *command, void *request)
{
    struct scsi_task *task = command;

    (void)context;
    if (status != SCSI_STATUS_GOOD || task->residual_status != SCSI_RESIDUAL_NO_RESIDUAL)
        fail("a request failed");
    scsi_free_scsi_task(task);
    free(request);
    in_flight--;
}

static void serve(void)
{
    struct pollfd p = {.fd = iscsi_get_fd(iscsi), .events = (short)iscsi_which_events(iscsi)};

    if (poll(&p, 1, -1) < 0 || iscsi_service(iscsi, p.revents))
        fail("service");
}

static void begin(int writes, int lun, uint32_t block, uint32_t blocks, unsigned char *data)
{
    struct request *request = malloc(sizeof(*request));
    struct scsi_task *task;

    if (!request)
        fail("memory");
    request->iov = (struct scsi_iovec){.iov_base = data, .iov_len = (size_t)blocks * BLOCK};
    if (writes)
        task = iscsi_write10_iov_task(iscsi, lun, block, NULL, blocks * BLOCK, BLOCK, 0, 0, 0, 0, 0, done,
                                      request, &request->iov, 1);
    else
        task = iscsi_read10_iov_task(iscsi, lun, block, blocks * BLOCK, BLOCK, 0, 0, 0, 0, 0, done, request,
                                     &request->iov, 1);
    if (!task)
        fail("a request was not queued");
    in_flight++;
}

int main(int argc, char **argv)
{
    int writes = argc == 5 && !strcmp(argv[1], "write");
    struct iscsi_url *url;
    unsigned char *data;
    uint32_t blocks;
    FILE *file;
    long size;

    if (argc != 5)
        return 2;
    file = fopen(argv[4], writes ? "rb" : "r+b");
    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
        fail(argv[4]);
    blocks = (uint32_t)size / BLOCK;
    data = calloc(blocks, BLOCK);
    if (!data || (writes && fread(data, BLOCK, blocks, file) != blocks))
        fail(argv[4]);
    iscsi = iscsi_create_context(argv[3]);
    url = iscsi ? iscsi_parse_full_url(iscsi, argv[2]) : NULL;
    if (!url || iscsi_init_transport(iscsi, ISER_TRANSPORT))
        fail(argv[2]);
    iscsi_set_targetname(iscsi, url->target);
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE);
    if (iscsi_full_connect_sync(iscsi, url->portal, url->lun))
        fail("connect");
    for (uint32_t at = 0, i = 0; at < blocks; i++) {
        uint32_t some = sizes[i % (sizeof(sizes) / sizeof(*sizes))];

        if (some > blocks - at)
            some = blocks - at;
        while (in_flight >= DEPTH)
            serve();
        begin(writes, url->lun, at, some, data + (size_t)at * BLOCK);
        at += some;
    }
    while (in_flight)
        serve();
    if (iscsi_logout_sync(iscsi))
        fail("logout");
    iscsi_destroy_context(iscsi);
    if (!writes && fwrite(data, BLOCK, blocks, file) != blocks)
        fail(argv[4]);
    if (fclose(file))
        fail(argv[4]);
    printf("%u blocks\n", blocks);
    return 0;
}
