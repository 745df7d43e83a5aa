/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/files.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "local/doorbell.h"
#include "local/ptrace_access.h"
#include "local/reference.h"
#include "local/start.h"

bool files_wants_direct(const struct link *link)
{
    return local_wants_direct() && reference_same_user(link->peer_uid);
}

bool files_may_be_opened(const struct link *link)
{
    return link->may_refer || (files_wants_direct(link) && link->peer_pid > 0);
}

/* --- owner ---------------------------------------------------------------------------------------------- */

bool ptrace_access_or_secret(int socket, const uint8_t secret[LINK_SECRET_BYTES])
{
    static const uint8_t none[LINK_SECRET_BYTES];

    return (memcmp(secret, none, sizeof(none)) != 0 && local.ops->knows_segment &&
            local.ops->knows_segment(secret)) ||
           ptrace_access_of_peer(socket);
}

static int open_file(enum link_file which)
{
    return max_of(fd_own(local.ops->open_file(which)), -1);
}

/* The descriptor, or -1. */
static int open_for(const struct link *link, enum link_file which, const struct link_question *question)
{
    if (which >= LINK_FILES || (link->files_given & (1u << which)) || !local.ops->open_file)
        return -1;
    if (!files_wants_direct(link) || !ptrace_access_or_secret(link->socket.fd, question->secret)) {
        log_info(
            "process %d (uid %u) may not map memory of this process, because its ptrace access cannot be "
            "verified (required: both processes have the same user, group, user namespace and capabilities, "
            "and this one is dumpable); its requests go through the ring instead (slower)",
            (int)link->peer_pid, (unsigned)link->peer_uid);
        return -1;
    }
    return open_file(which);
}

/* Permitted. False: the kernel does not take it now. */
static bool give(struct link *link, enum link_file which, int fd)
{
    const struct link_offer answer = {.type = LINK_ANSWERS_FILE, .channel = (uint8_t)which};

    link_watch(link); /* before the peer can take an access slot */
    if (!notify_send(link, &answer, fd))
        return false;
    link->files_given |= (uint8_t)(1u << which);
    return true;
}

void files_answer(struct link *link, const struct link_question *question)
{
    const struct link_offer refusal = {.type = LINK_ANSWERS_FILE, .channel = question->offer.channel};
    enum link_file which = (enum link_file)question->offer.channel;
    int fd = open_for(link, which, question);

    if (fd >= 0 && !give(link, which, fd)) {
        link->files_owed |= (uint8_t)(1u << which);
        doorbell_owe(link);
    }
    /* If this send fails, the peer does without. */
    if (fd < 0 && event_is_intact(&link->socket))
        (void)sys_send(link->socket.fd, &refusal, sizeof(refusal), MSG_DONTWAIT | MSG_NOSIGNAL);
    fd_close(fd);
}

bool files_give_owed(struct link *link)
{
    for (unsigned which = 0; link->files_owed >> which; which++) {
        int fd = -1;

        if (!(link->files_owed >> which & 1))
            continue;
        if (link_is_up(link))
            fd = open_file((enum link_file)which);
        if (fd < 0 || give(link, (enum link_file)which, fd))
            link->files_owed &= (uint8_t) ~(1u << which);
        fd_close(fd);
    }
    return !link->files_owed;
}

/* --- requester ------------------------------------------------------------------------------------------ */

bool link_ask_file(struct link *link, enum link_file which, const uint8_t *secret)
{
    struct link_question question = {.offer = {.type = LINK_WANTS_FILE, .channel = (uint8_t)which}};

    if ((link->files_asked & (1u << which)) || !event_is_intact(&link->socket))
        return false;
    if (secret)
        memcpy(question.secret, secret, sizeof(question.secret));
    if (sys_send(link->socket.fd, &question, sizeof(question), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        sizeof(question))
        return false;
    link->files_asked |= (uint8_t)(1u << which);
    return true;
}

void files_accept(struct link *link, const struct link_offer *offer, int fd)
{
    enum link_file which = (enum link_file)offer->channel;

    if (which >= LINK_FILES || !(link->files_asked & (1u << which))) {
        fd_close(fd);
        return;
    }
    link->files_asked &= (uint8_t) ~(1u << which);
    local.ops->file_came(link, which, fd);
}

int link_open_descriptor(const struct link *link, int number)
{
    int fd = -EBADF;

    if (link->pidfd.fd >= 0 && number >= 0 && event_is_intact(&link->pidfd))
        fd = sys_pidfd_getfd(link->pidfd.fd, number);
    return fd_own(fd);
}
