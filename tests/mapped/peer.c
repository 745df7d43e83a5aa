/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The peer's side: what it accepts, what it keeps mapped, and a peer in another process that writes while the
 * owner changes its mind. */
#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* --- what is accepted -------------------------------------------------------------------------------- */

static struct mapped_file_description arena_description(int fd)
{
    struct mapped_file_description description = {
        .kind = MAPPED_KIND_ARENA, .writable = true, .size = MAPPED_ARENA_SIZE};
    struct stat file;

    CHECK(fstat(fd, &file) == 0, "fstat: %m");
    description.inode = file.st_ino;
    description.device = file.st_dev;
    return description;
}

static int accept_error(int fd, const struct mapped_file_description *description)
{
    int error = 0;
    struct mapped_file *file = mapped_file_accept(fd, description, true, false, &error);

    CHECK(!file, "accepted");
    return error;
}

static int fake_arena(off_t size, int seals)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, size) == 0, "memfd: %m");
    CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0, "seals: %m");
    return fd;
}

static void what_is_not_announced_is_refused(void **state)
{
    const off_t size = (off_t)MAPPED_ARENA_SIZE;
    struct mapped_file_description description;
    int fd, error = 0;

    begin(0);
    fd = fake_arena(size, F_SEAL_GROW | F_SEAL_SEAL);
    description = arena_description(fd);
    CHECK(accept_error(fd, &description) == -EPERM, "it can shrink");
    fd = fake_arena(size, F_SEAL_SHRINK);
    description = arena_description(fd);
    CHECK(accept_error(fd, &description) == -EPERM, "it could grow");
    fd = fake_arena(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    description = arena_description(fd);
    CHECK(accept_error(fd, &description) == -EBADF, "it is too small");
    fd = fake_arena(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    description = arena_description(fd);
    description.inode++;
    CHECK(accept_error(fd, &description) == -EBADF, "it is another file");
    CHECK(accept_error(-1, &description) < 0 && accept_error(4711, &description) < 0, "it is none");
    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    description = arena_description(fd);
    CHECK(accept_error(fd, &description) < 0, "it is no memory");
    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    description = arena_description(fd);
    CHECK(accept_error(fd, &description) == -EBADF, "it is a device");
    fd = fake_arena(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    description = arena_description(fd);
    if (geteuid() == 0) {
        CHECK(fchown(fd, 12345, 0) == 0, "fchown: %m");
        CHECK(accept_error(fd, &description) == -EBADF, "it is somebody else's");
        CHECK(fchown(fd, 0, 0) == 0, "fchown: %m");
    }
    CHECK(mapped_file_accept(fd, &description, true, false, &error), "it is what it is: %d", error);
    CHECK(arena_blocks() == 0, "nothing was populated");
}

static void ranges_are_checked(void **state)
{
    struct mapped_file_description description;
    struct mapped_file *file;
    int error = 0;

    begin(0);
    CHECK_ZERO(mapped_file_describe(0, &description));
    file = mapped_file_accept(mapped_file_open(0, true), &description, true, false, &error);
    CHECK(file, "%d", error);
    CHECK(!mapped_attach(file, 0, 0, &error) && error == -ERANGE, "nothing");
    CHECK(!mapped_attach(file, 1, PAGE, &error) && error == -ERANGE, "no page");
    CHECK(!mapped_attach(file, 0, PAGE + 1, &error) && error == -ERANGE, "parts of a page");
    CHECK(!mapped_attach(file, MAPPED_ARENA_SIZE, PAGE, &error) && error == -ERANGE, "behind the end");
    CHECK(!mapped_attach(file, MAPPED_ARENA_SIZE - PAGE, 2 * PAGE, &error) && error == -ERANGE,
          "over the end");
    CHECK(!mapped_attach(file, UINT64_MAX - PAGE + 1, PAGE, &error) && error == -ERANGE, "far behind");
    CHECK(!mapped_attach(file, PAGE, UINT64_MAX - PAGE + 1, &error) && error == -ERANGE, "wraps");
    mapped_file_drop(file);
    mapped_file_drop(NULL);
}

static void views_are_kept_and_bounded(void **state)
{
    struct mapped_file_description description;
    struct mapped_view *view, *inside, *many[5000];
    struct mapped_file *file;
    unsigned before, count = 0;
    int error = 0;

    begin(0);
    CHECK_ZERO(mapped_file_describe(0, &description));
    file = mapped_file_accept(mapped_file_open(0, true), &description, true, false, &error);
    view = mapped_attach(file, 64 * PAGE, 16 * PAGE, &error);
    inside = mapped_attach(file, 66 * PAGE, PAGE, &error);
    CHECK(view && inside == view, "what is mapped already serves");
    CHECK((char *)mapped_view_address(view, 66 * PAGE) ==
              (char *)mapped_view_address(view, 64 * PAGE) + 2 * PAGE,
          "addresses");
    mapped_detach(inside);
    mapped_detach(view);
    CHECK(mapped_attach(file, 64 * PAGE, 16 * PAGE, &error) == view, "kept for later");
    mapped_detach(view);
    before = count_maps();
    for (uint64_t i = 0; i < 1000; i++)
        mapped_detach(mapped_attach(file, i << 30, PAGE, &error));
    CHECK(count_maps() < before + 70, "%u mappings, %u before", count_maps(), before);
    while (count < COUNT(many) &&
           (many[count] = mapped_attach(file, (uint64_t)count << 30, PAGE, &error)) != NULL)
        count++;
    CHECK(count >= 4000 && count < COUNT(many) && error == -EMFILE, "%u in use, %d", count, error);
    while (count)
        mapped_detach(many[--count]);
    CHECK(count_maps() < before + 70, "%u mappings, %u before", count_maps(), before);
    mapped_file_drop(file);
    CHECK(arena_blocks() == 0, "nothing was populated");
}

static void who_may_only_read_cannot_write(void **state)
{
    char *memory = map(4 * PAGE), *peer;
    struct mapped_file_description description;
    struct mapped_region *region;
    struct mapped_piece piece;
    struct mapped_file *file;
    int fd, error = 0, zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    begin(4 * PAGE);
    fill(memory, 4 * PAGE, 1);
    region = mapped_add((uintptr_t)memory, 4 * PAGE, MAPPED_PEERS_READ);
    CHECK(mapped_pieces(region, &piece, 1) == 1, "one piece");
    CHECK_ZERO(mapped_file_describe(piece.file, &description));
    CHECK(!description.writable && mapped_file_open(piece.file, true) == -EACCES,
          "no descriptor for writing");
    fd = mapped_file_open(piece.file, false);
    CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY, "one for reading");
    file = mapped_file_accept(fd, &description, false, false, &error);
    CHECK(file, "%d", error);
    peer = mapped_view_address(mapped_attach(file, piece.offset, piece.length, &error), piece.offset);
    CHECK(filled(peer, 4 * PAGE, 1), "contents");
    CHECK(read(zero, peer, 1) == -1 && errno == EFAULT, "it can be written");
    CHECK(mprotect(peer, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES, "it can be made writable");
    memory[0] = 'o';
    CHECK(peer[0] == 'o', "the owner may write");
    mapped_remove(region, false);
}

/* --- a peer in another process ----------------------------------------------------------------------- */

struct board {
    struct mapped_file_description description;
    struct mapped_piece piece;
    _Atomic uint64_t rounds; /* of the peer */
    atomic_int stop;
};

static struct board *make_board(void)
{
    return (struct board *)map_with(sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED);
}

static void send_descriptor(int socket, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1, "sendmsg: %m");
}

static int receive_descriptor(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        _exit(2);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

typedef void peer_fn(char *memory, size_t length, struct board *board);

static _Noreturn void be_the_peer(int socket, struct board *board, peer_fn *fn)
{
    struct mapped_file *file;
    struct mapped_view *view;
    int error = 0, fd = receive_descriptor(socket);

    file = mapped_file_accept(fd, &board->description, true, false, &error);
    close(fd);
    if (!file)
        _exit(3);
    view = mapped_attach(file, board->piece.offset, board->piece.length, &error);
    if (!view)
        _exit(4);
    fn(mapped_view_address(view, board->piece.offset), board->piece.length, board);
    _exit(0);
}

struct peer {
    pid_t pid;
    int socket;
};

/* Before anything of the room was used here: the peer is a process of its own. */
static struct peer start_peer(struct board *board, peer_fn *fn)
{
    int pair[2];
    struct peer peer;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair: %m");
    peer.pid = fork();
    if (peer.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_the_peer(pair[1], board, fn);
    }
    close(pair[1]);
    peer.socket = pair[0];
    return peer;
}

static void tell_peer(const struct peer *peer, struct board *board, const struct mapped_region *region)
{
    int fd;

    CHECK(mapped_pieces(region, &board->piece, 1) == 1, "one piece");
    CHECK_ZERO(mapped_file_describe(board->piece.file, &board->description));
    fd = mapped_file_open(board->piece.file, true);
    CHECK(fd >= 0, "no descriptor: %d", fd);
    send_descriptor(peer->socket, fd);
    close(fd);
}

static void wait_for_rounds(struct board *board, uint64_t more)
{
    uint64_t until = atomic_load(&board->rounds) + more;

    while (atomic_load(&board->rounds) < until)
        sched_yield();
}

static void end_peer(const struct peer *peer)
{
    int status = 0;

    CHECK(waitpid(peer->pid, &status, 0) == peer->pid, "waitpid: %m");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the peer ended with %#x", (unsigned)status);
}

static void add_atomically(char *memory, size_t length, struct board *board)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)memory;

    while (!atomic_load(&board->stop)) {
        for (size_t i = 0; i < length / sizeof *words; i += 8)
            atomic_fetch_add(&words[i], 1);
        atomic_fetch_add(&board->rounds, 1);
    }
}

static void atomics_of_both_sides(void **state)
{
    struct board *board = make_board();
    struct peer peer = start_peer(board, add_atomically);
    size_t length = 4 * PAGE;
    _Atomic uint64_t *words;
    struct mapped_region *region;
    char *memory = map(length);

    begin(length);
    words = (_Atomic uint64_t *)(void *)memory;
    memset(memory, 0, length);
    region = add(memory, length);
    tell_peer(&peer, board, region);
    wait_for_rounds(board, 10);
    for (int round = 0; round < 1000; round++) {
        for (size_t i = 0; i < length / sizeof *words; i += 8)
            atomic_fetch_add(&words[i], 1);
    }
    atomic_store(&board->stop, 1);
    end_peer(&peer);
    for (size_t i = 0; i < length / sizeof *words; i += 8)
        CHECK(words[i] == 1000 + atomic_load(&board->rounds), "word %zu: %llu", i,
              (unsigned long long)words[i]);
    mapped_remove(region, false);
}

static void write_for_ever(char *memory, size_t length, struct board *board)
{
    for (uint64_t round = 1;; round++) {
        for (size_t i = 0; i < length; i += 64)
            *(volatile uint64_t *)(void *)(memory + i) = round;
        atomic_store(&board->rounds, round);
    }
}

static void snapshot_stays(const char *memory, size_t length, struct board *board, uint64_t rounds)
{
    char *snapshot = malloc(length);

    memcpy(snapshot, memory, length);
    wait_for_rounds(board, rounds);
    CHECK(memcmp(snapshot, memory, length) == 0, "memory has changed afterwards");
    free(snapshot);
}

/* An initiator is stopped in the middle of a copy; the owner takes its memory back, and uses it. */
static void a_stopped_peer_hits_nothing(void **state)
{
    struct board *board = make_board();
    struct peer peer = start_peer(board, write_for_ever);
    size_t length = 64 * PAGE;
    struct mapped_region *region, *again;
    struct mapped_counts counts;
    char *memory = map(length);

    begin(length);
    region = add(memory, length);
    tell_peer(&peer, board, region);
    wait_for_rounds(board, 10);
    CHECK(kill(peer.pid, SIGSTOP) == 0, "kill: %m");
    CHECK(waitpid(peer.pid, NULL, WUNTRACED) == peer.pid, "waitpid: %m");
    mapped_remove(region, true);
    fill(memory, length, 1); /* the program's own again */
    CHECK(kill(peer.pid, SIGCONT) == 0, "kill: %m");
    wait_for_rounds(board, 10);
    CHECK(filled(memory, length, 1), "memory has changed afterwards");
    again = add(memory, length); /* at another place in the arena */
    wait_for_rounds(board, 10);
    CHECK(filled(memory, length, 1), "memory has changed afterwards");
    mapped_count(&counts);
    CHECK(counts.orphaned == length, "%llu bytes out of use", (unsigned long long)counts.orphaned);
    kill(peer.pid, SIGKILL);
    waitpid(peer.pid, NULL, 0);
    mapped_forget_orphans();
    CHECK(arena_blocks() <= length, "%llu bytes in the arenas", (unsigned long long)arena_blocks());
    mapped_remove(again, false);
    CHECK(filled(memory, length, 1) && arena_blocks() == 0, "contents");
}

static void memory_moves_from_under_a_writing_peer(void **state)
{
    struct board *board = make_board();
    struct peer peer = start_peer(board, write_for_ever);
    size_t length = 64 * PAGE;
    struct mapped_region *region;
    char *memory = map(length);

    begin(length);
    region = add(memory, length);
    tell_peer(&peer, board, region);
    wait_for_rounds(board, 10);
    CHECK(*(uint64_t *)(void *)memory > 0, "the peer reaches it");
    CHECK_ZERO(mapped_move((uintptr_t)memory, length));
    snapshot_stays(memory, length, board, 10);
    kill(peer.pid, SIGKILL);
    waitpid(peer.pid, NULL, 0);
    mapped_remove(region, false);
}

static void a_killed_peer_leaves_nothing(void **state)
{
    size_t length = 16 * PAGE;
    char *memory = NULL;
    unsigned before = 0;

    CHECK_ZERO(pthread_atfork(mapped_fork_prepare, mapped_fork_parent, mapped_fork_child));
    for (unsigned i = 0; i < 5; i++) {
        struct board *board = make_board();
        struct peer peer = start_peer(board, write_for_ever); /* a child of a process that maps memory */
        struct mapped_region *region;

        if (i == 0) {
            begin(length);
            memory = map(length);
        }
        region = add(memory, length);
        tell_peer(&peer, board, region);
        wait_for_rounds(board, 3);
        kill(peer.pid, SIGKILL);
        waitpid(peer.pid, NULL, 0);
        mapped_remove(region, false);
        fill(memory, length, i);
        CHECK(filled(memory, length, i), "contents");
        close(peer.socket);
        munmap(board, sizeof *board);
        if (i == 0)
            before = count_maps();
    }
    CHECK(count_maps() == before && arena_blocks() == 0, "%u mappings, %u before", count_maps(), before);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(what_is_not_announced_is_refused, .fars = 0),
        TEST_WITH(ranges_are_checked, .fars = 0),
        TEST_WITH(views_are_kept_and_bounded, .fars = 0),
        TEST_WITH(who_may_only_read_cannot_write, .fars = 0),
        TEST_WITH(atomics_of_both_sides, .fars = 0),
        TEST_WITH(a_stopped_peer_hits_nothing, .fars = 0),
        TEST_WITH(memory_moves_from_under_a_writing_peer, .fars = 0),
        TEST_WITH(a_killed_peer_leaves_nothing, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
