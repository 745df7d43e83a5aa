/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "import_scene.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { DM_LENGTH = 8192 };

/* --- the owner ------------------------------------------------------------------------------------------ */

void make_here(void *arg)
{
    struct ibv_alloc_dm_attr attr = {.length = DM_LENGTH};
    struct part *part = arg;

    prctl(PR_SET_DUMPABLE, 1);
    part->owner = getpid();
    part->context = open_the_device();
    part->cmd_fd = part->context->cmd_fd;
    part->pd = ibv_alloc_pd(part->context);
    part->dm = ibv_alloc_dm(part->context, &attr);
    CHECK(part->pd && part->dm, "PD and device memory: %s", strerror(errno));
    part->pd_handle = part->pd->handle;
    part->dm_handle = newest_dm_handle(part->dm);
}

/* --- the importer --------------------------------------------------------------------------------------- */

int open_of(pid_t owner, int fd)
{
    char path[64];
    int ours;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)owner, fd);
    ours = open(path, O_RDWR | O_CLOEXEC);
    CHECK(ours >= 0, "open %s: %s", path, strerror(errno));
    return ours;
}

/* As one who was given the descriptor. Another user has it before he becomes that. */
void import_here(void *arg)
{
    struct part *part = arg;
    int fd = open_of(part->owner, part->cmd_fd);

    if (part->user) {
        CHECK(!setresgid(part->user, part->user, part->user) &&
                  !setresuid(part->user, part->user, part->user),
              "setresuid: %s", strerror(errno));
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* what that has taken away */
        prctl(PR_SET_DUMPABLE, 1);
    }
    part->context = ibv_import_device(fd);
    CHECK(part->context, "ibv_import_device: %s", strerror(errno));
    part->pd = ibv_import_pd(part->context, part->pd_handle);
    CHECK(part->pd, "ibv_import_pd: %s", strerror(errno));
    CHECK(part->pd->handle == part->pd_handle, "the handle is %u", part->pd->handle);
    part->dm = ibv_import_dm(part->context, part->dm_handle);
    CHECK(part->dm, "ibv_import_dm: %s", strerror(errno));
}

void import_at(struct side *side, struct part *part, const struct part *of)
{
    *part = (struct part){.owner = of->owner,
                          .cmd_fd = of->cmd_fd,
                          .pd_handle = of->pd_handle,
                          .dm_handle = of->dm_handle,
                          .user = part->user};
    side_call(side, import_here, part, sizeof(*part));
}

void unimport_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_dm(part->dm);
    ibv_unimport_pd(part->pd);
    CHECK_ZERO(ibv_close_device(part->context));
}

/* --- what either does ----------------------------------------------------------------------------------- */

char memory[4096];

void register_here(void *arg)
{
    struct part *part = arg;

    errno = 0;
    part->mr = ibv_reg_mr(part->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    part->error = part->mr ? 0 : errno;
    if (part->mr)
        part->mr_handle = part->mr->handle;
}

void register_dm_here(void *arg)
{
    struct part *part = arg;

    errno = 0;
    part->mr = ibv_reg_dm_mr(part->pd, part->dm, 0, DM_LENGTH,
                             IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    part->error = part->mr ? 0 : errno;
    if (part->mr)
        part->mr_handle = part->mr->handle;
}

void deregister_here(void *arg)
{
    struct part *part = arg;

    CHECK_ZERO(ibv_dereg_mr(part->mr));
}

void dealloc_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_dealloc_pd(part->pd);
}

void free_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_free_dm(part->dm);
}

void read_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_memcpy_from_dm(&part->word, part->dm, 64, sizeof(part->word));
}

void write_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_memcpy_to_dm(part->dm, 64, &part->word, sizeof(part->word));
}

void close_here(void *arg)
{
    struct part *part = arg;

    CHECK_ZERO(ibv_close_device(part->context));
}

void unimport_pd_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_pd(part->pd);
}

void unimport_dm_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_dm(part->dm);
}

int result_at(struct side *side, side_fn *fn, struct part *part)
{
    side_call(side, fn, part, sizeof(*part));
    return part->error;
}

void at(struct side *side, side_fn *fn, struct part *part)
{
    side_call(side, fn, part, sizeof(*part));
}
