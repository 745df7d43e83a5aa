/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/reference.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/user.h"
#include "local/start.h"

/* Bytes at which process_vm_readv() (a system call, page table walks, one copy) and the ring (two copies, on two
 * processors) take equally long between two cores: the ring is 10 % faster at 8 KiB and 6 % slower at 32 KiB. */
#define REFERENCE_FROM_DEFAULT 16384u
/* iovecs per system call; the kernel accepts up to 1024. */
#define PIECES 64

uint32_t local_reference_from(void)
{
    switch (local.mechanism) {
    case MECHANISM_RING:
        return UINT32_MAX;
    case MECHANISM_CMA:
        return 1;
    case MECHANISM_AUTO:
    case MECHANISM_COPY:
    case MECHANISM_MAPPED:
        break;
    }
    return REFERENCE_FROM_DEFAULT;
}

bool reference_same_user(uid_t uid)
{
    return user_is_own(uid);
}

void reference_permit(void)
{
    char scope[16];

    if (fd_read_text("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof(scope)) <= 0 || scope[0] != '1')
        return;
    if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) < 0)
        log_info("prctl(PR_SET_PTRACER): %m: peers cannot read the memory of this process "
                 "(kernel.yama.ptrace_scope is 1); large payloads go through the ring");
}

bool reference_probe(pid_t pid, const struct handshake_message *message)
{
    uint8_t seen[sizeof(message->nonce)];
    struct iovec here = {seen, sizeof(seen)};
    struct iovec there = {(void *)(uintptr_t)message->nonce_address, sizeof(seen)};
    ssize_t length;

    if (pid <= 0)
        return false;
    length = sys_process_vm_readv(pid, &here, 1, &there, 1);
    if (length == (ssize_t)sizeof(seen) && memcmp(seen, message->nonce, sizeof(seen)) == 0)
        return true;
    log_info("process_vm_readv of peer process %d failed (%s): large payloads go through the ring", (int)pid,
             length < 0 ? strerror((int)-length)
                        : "it read unexpected data; does the PID mean another process here (PID namespace)?");
    return false;
}

/* --- copying -------------------------------------------------------------------------------------------- */

/* One side of a copy, consumed from the front: references or, if that is NULL, vectors. */
struct pieces {
    const struct packet_reference *references;
    const struct iovec *vectors;
    unsigned count;
    size_t done; /* bytes of the first piece */
};

static struct iovec piece_at(const struct pieces *pieces, unsigned index)
{
    struct iovec piece;

    if (pieces->references) {
        piece.iov_base = (void *)(uintptr_t)pieces->references[index].address;
        piece.iov_len = pieces->references[index].length;
    } else {
        piece = pieces->vectors[index];
    }
    if (index == 0) {
        piece.iov_base = (void *)((uintptr_t)piece.iov_base + pieces->done);
        piece.iov_len -= pieces->done;
    }
    return piece;
}

/* Fills vectors with the next pieces, at most `limit` bytes; returns their number. */
static unsigned next_vectors(const struct pieces *pieces, size_t limit, struct iovec vectors[PIECES])
{
    unsigned filled = 0;

    for (unsigned i = 0; i < pieces->count && filled < PIECES && limit; i++) {
        struct iovec piece = piece_at(pieces, i);

        piece.iov_len = min_of(piece.iov_len, limit);
        limit -= piece.iov_len;
        if (piece.iov_len)
            vectors[filled++] = piece;
    }
    return filled;
}

static void consume(struct pieces *pieces, size_t bytes)
{
    for (;;) {
        size_t left;

        if (!pieces->count)
            return;
        left = piece_at(pieces, 0).iov_len;
        if (bytes < left) {
            pieces->done += bytes;
            return;
        }
        bytes -= left;
        pieces->done = 0;
        pieces->count--;
        if (pieces->references)
            pieces->references++;
        else
            pieces->vectors++;
    }
}

static uint64_t total_of(const struct pieces *pieces)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < pieces->count; i++)
        total += piece_at(pieces, i).iov_len;
    return total;
}

/* Once the process is dead or has closed the link's socket (exec), its pid may name another process or program. */
bool link_peer_is_there(const struct link *link)
{
    struct pollfd watched[2] = {{.fd = link->socket.fd, .events = POLLRDHUP},
                                {.fd = link->pidfd.fd, .events = POLLIN}};
    int ready = sys_poll_now(watched, 2);

    return ready >= 0 && !(watched[0].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) &&
           !(watched[1].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL));
}

/* Without a pidfd the closed socket has to do. */
bool link_peer_is_dead(const struct link *link)
{
    struct pollfd watched = {.fd = link->pidfd.fd, .events = POLLIN};

    if (link->pidfd.fd < 0)
        return !link_peer_is_there(link);
    return sys_poll_now(&watched, 1) > 0 && (watched.revents & POLLIN);
}

ssize_t link_copy(const struct link *link, bool to_peer, const struct iovec *here, unsigned here_count,
                  const struct iovec *there, unsigned there_count)
{
    return to_peer ? sys_process_vm_writev(link->peer_pid, here, here_count, there, there_count)
                   : sys_process_vm_readv(link->peer_pid, here, here_count, there, there_count);
}

/* Where a thread is kept by the kernel at the end of a system call, or between two. */
static bool is_parked(const char *wchan)
{
    static const char *const places[] = {"do_freezer_trap", "__refrigerator",     "do_signal_stop",
                                         "ptrace_stop",     "coredump_task_exit", "do_exit"};

    for (size_t i = 0; i < array_size(places); i++) {
        if (strcmp(wchan, places[i]) == 0)
            return true;
    }
    return false;
}

static ssize_t read_of_thread(const struct link *link, pid_t thread, const char *name, char *text,
                              size_t size)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)link->peer_pid, (int)thread, name);
    return fd_read_text(path, text, size);
}

/* The files are read in this order: a thread that is seen outside of the call may enter it afterwards, but then it
 * finds the lengths that the caller has set to 0. */
bool link_peer_thread_may_copy(const struct link *link, pid_t thread)
{
    char path[64], text[512], *name_end;
    ssize_t length = read_of_thread(link, thread, "stat", text, sizeof(text));
    long call;

    if (length == -ENOENT || length == -ESRCH) {
        /* The thread has ended, unless this process may see nothing of the peer (hidepid=2). */
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)link->peer_pid);
        return fd_read_text(path, text, sizeof(text)) <= 0;
    }
    name_end = strrchr(text, ')');
    if (length > 0 && name_end && name_end[1] == ' ' && strchr("TtZX", name_end[2]))
        return false;
    if (read_of_thread(link, thread, "syscall", text, sizeof(text)) <= 0 || strncmp(text, "running", 7) == 0)
        return true;
    call = strtol(text, NULL, 10);
    if (call != SYS_process_vm_readv && call != SYS_process_vm_writev)
        return false;
    return read_of_thread(link, thread, "wchan", text, sizeof(text)) <= 0 || !is_parked(text);
}

/* The kernel has refused process_vm_readv() since the handshake: the program has installed a seccomp filter. The peer
 * goes on to send by reference, so the bytes come through a file, for which the kernel checks the same permission. */
static int read_through_file(const struct link *link, struct pieces *to, struct pieces *from)
{
    char path[32];
    int error = 0, fd;

    snprintf(path, sizeof(path), "/proc/%d/mem", (int)link->peer_pid);
    fd = sys_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return link_peer_is_there(link) ? -EPERM : -ESRCH;
    consume(to, 0); /* a first piece without bytes */
    consume(from, 0);
    while (to->count && from->count && !error) {
        struct iovec into = piece_at(to, 0), out = piece_at(from, 0);
        ssize_t length =
            sys_pread(fd, into.iov_base, min_of(into.iov_len, out.iov_len), (off_t)(uintptr_t)out.iov_base);

        if (length > 0) {
            consume(to, (size_t)length);
            consume(from, (size_t)length);
        } else {
            error = -EFAULT;
        }
    }
    fd_close(fd);
    return error;
}

static void copy_here(struct pieces *to, struct pieces *from)
{
    while (to->count && from->count) {
        struct iovec into = piece_at(to, 0), out = piece_at(from, 0);
        size_t length = min_of(into.iov_len, out.iov_len);

        memmove(into.iov_base, out.iov_base, length);
        consume(to, length);
        consume(from, length);
    }
}

int link_pull(struct link *link, const struct packet_reference *from, unsigned from_count,
              const struct iovec *to, unsigned to_count)
{
    struct pieces here = {.vectors = to, .count = to_count};
    struct pieces there = {.references = from, .count = from_count};
    uint64_t left = total_of(&here);

    if (left != total_of(&there))
        return -EINVAL;
    if (!link->may_pull)
        return -EPERM;
    if (link->is_self) {
        copy_here(&here, &there);
        return 0;
    }
    while (left) {
        struct iovec ours[PIECES], theirs[PIECES];
        unsigned our_count = next_vectors(&here, left, ours);
        unsigned their_count = next_vectors(&there, left, theirs);
        ssize_t length = sys_process_vm_readv(link->peer_pid, ours, our_count, theirs, their_count);

        if (length == -ENOSYS || length == -EPERM) {
            int error = read_through_file(link, &here, &there);

            if (error)
                return error;
            break;
        }
        if (length < 0)
            return length == -ENOMEM ? -EFAULT : (int)length;
        if (length == 0)
            return -EFAULT;
        consume(&here, (size_t)length);
        consume(&there, (size_t)length);
        left -= (uint64_t)length;
    }
    return link_peer_is_there(link) ? 0 : -ESRCH;
}

/* On the link to ourselves: either this sees the revocation, or lane_revoke() sees lane.copies and waits. */
static int copy_in_process(struct lane *lane, const struct packet *packet, const struct iovec *to,
                           unsigned to_count)
{
    int error = -ESTALE;

    atomic_store_explicit(&lane->copies, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* partner: the fence in ring_revoke() */
    if (!ring_has_revoked(&lane->reader, packet->reference_epoch))
        error = link_pull(lane->link, packet->reference, packet->reference_count, to, to_count);
    atomic_store_explicit(&lane->copies, false, memory_order_release);
    return error;
}

int lane_pull(struct lane *lane, const struct packet *packet, const struct packet_reference *mapped,
              const struct iovec *to, unsigned to_count)
{
    int error = 0;

    if (lane->link->is_self)
        return copy_in_process(lane, packet, to, to_count);
    if (unlikely(ring_has_revoked(&lane->reader, packet->reference_epoch)))
        return -ESTALE; /* no copy is needed */
    if (mapped)
        copy_here(&(struct pieces){.vectors = to, .count = to_count},
                  &(struct pieces){.references = mapped, .count = packet->reference_count});
    else
        error = link_pull(lane->link, packet->reference, packet->reference_count, to, to_count);

    /* After a revocation the memory may also be unmapped (-EFAULT), which is no error of the sender. */
    if (error != -ESRCH && unlikely(ring_has_revoked(&lane->reader, packet->reference_epoch)))
        return -ESTALE;
    return error;
}
