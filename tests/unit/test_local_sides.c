/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "test_local_sides.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "side_time.h"

struct board *board;
struct seen seen;
void (*on_packet)(struct lane *lane, const struct packet *packet);
int (*on_control)(enum control_subject subject, int file, char *why, size_t size);
void (*on_control_ended)(enum control_subject subject);

void board_clear(void)
{
    if (!board)
        board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    memset(board, 0, sizeof(*board));
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

void own_network(void)
{
    char map[64];
    uid_t user = geteuid();
    gid_t group = getegid();

    if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return;
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof(map), "1000 %u 1", (unsigned)user);
    write_file("/proc/self/uid_map", map);
    snprintf(map, sizeof(map), "1000 %u 1", (unsigned)group);
    write_file("/proc/self/gid_map", map);
}

/* --- callbacks of local --------------------------------------------------------------------------------- */

static void note_packet(struct lane *lane, const struct packet *packet)
{
    seen.packets++;
    seen.last = *packet;
    seen.lane = lane;
    if (packet->payload)
        memcpy(seen.payload, packet->payload, packet->payload_length);
    if (packet->reference_count)
        memcpy(seen.references, packet->reference, packet->reference_count * sizeof(*packet->reference));
    if (on_packet)
        on_packet(lane, packet);
}

static void note_batch_end(struct lane *lane)
{
    seen.batches++;
}

static void note_resolved(uint32_t block, struct link *link)
{
    seen.resolved++;
    seen.block = block;
    seen.link = link;
    if (seen.awaits == block) { /* others may be answered in the same turn */
        seen.found = link;
        seen.awaits = NO_BLOCK;
    }
}

static void note_found(uint64_t cookie, struct link *link)
{
    seen.searches++;
    seen.cookie = cookie;
    seen.holder = link;
}

static void note_down(struct link *link)
{
    seen.downs++;
    seen.down = link;
}

static void note_settled(void)
{
    seen.settled++;
}

static void note_writable(struct lane *lane)
{
    seen.writable++;
}

/* Something to be recognised by. */
static int published(int ret_fds[SEGMENT_REQUEST_FILES])
{
    ret_fds[0] = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    ret_fds[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return 0;
}

static bool knows_segment(const uint8_t secret[LINK_SECRET_BYTES])
{
    return memcmp(secret, SEGMENT_SECRET, LINK_SECRET_BYTES) == 0;
}

static int note_control(enum control_subject subject, int file, char *why, size_t size)
{
    return on_control ? on_control(subject, file, why, size) : -ENOSYS;
}

static void note_control_ended(enum control_subject subject)
{
    if (on_control_ended)
        on_control_ended(subject);
}

static int open_file(enum link_file which)
{
    return open("/dev/zero", O_RDONLY | O_CLOEXEC);
}

static void note_file(struct link *link, enum link_file which, int fd)
{
    seen.files += fd >= 0;
    fd_close(fd);
}

static const struct local_ops ops = {.packet = note_packet,
                                     .batch_end = note_batch_end,
                                     .resolved = note_resolved,
                                     .settled = note_settled,
                                     .found = note_found,
                                     .link_down = note_down,
                                     .lane_writable = note_writable,
                                     .published = published,
                                     .open_file = open_file,
                                     .file_came = note_file,
                                     .knows_segment = knows_segment,
                                     .control = note_control,
                                     .control_ended = note_control_ended};

/* --- sides ---------------------------------------------------------------------------------------------- */

void side_up(void)
{
    memset(&seen, 0, sizeof(seen));
    seen.awaits = NO_BLOCK;
    CHECK(local_start(&ops) == 0);
}

static pid_t start(side_fn *fn, unsigned number, bool bare)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGALRM, SIG_DFL);
    alarm(side_seconds());
    if (!bare)
        side_up();
    fn(number);
    _exit(0);
}

pid_t side_start(side_fn *fn, unsigned number)
{
    return start(fn, number, false);
}

pid_t side_start_bare(side_fn *fn, unsigned number)
{
    return start(fn, number, true);
}

void side_finish(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("side %d ended with status %#x", (int)pid, (unsigned)status);
}

void side_kill(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

void run_sides(side_fn *const *sides, unsigned count)
{
    pid_t pids[24];

    assert_true(count <= array_size(pids));
    for (unsigned i = 0; i < count; i++)
        pids[i] = side_start(sides[i], i);
    for (unsigned i = 0; i < count; i++)
        side_finish(pids[i]);
}

void turn_deaf(int timeout_ms)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

    if (poll(&event, 1, timeout_ms) > 0)
        local_dispatch(&(bool){false});
}

unsigned turn(int timeout_ms)
{
    unsigned taken;

    turn_deaf(timeout_ms);
    rundown_enter();
    taken = local_poll_is_idle() ? 0 : local_poll(16); /* as a program's polls do */
    rundown_exit();
    return taken;
}

uint32_t publish_qpn(unsigned number)
{
    uint32_t qpn;

    CHECK(local_qpn_allocate(&qpn) == 0);
    atomic_store(&board->qpn[number], qpn);
    return qpn;
}

uint32_t await_qpn(unsigned number)
{
    UNTIL(atomic_load(&board->qpn[number]) != 0);
    return atomic_load(&board->qpn[number]);
}

struct link *find_link(uint32_t qpn)
{
    struct link *link;

    rundown_enter();
    link = local_resolve(qpn);
    rundown_exit();
    if (link)
        return link;
    seen.awaits = qpn / LOCAL_BLOCK_QPNS;
    UNTIL(seen.awaits == NO_BLOCK);
    return seen.found;
}

struct packet small_packet(uint32_t dest_qpn, uint32_t src_qpn)
{
    return (struct packet){
        .opcode = 0x04 /* RC SEND only */, .pkey = 0xffff, .dest_qpn = dest_qpn, .src_qpn = src_qpn};
}

void send_text(struct lane *lane, uint32_t dest_qpn, uint32_t src_qpn, const char *text)
{
    struct packet packet = small_packet(dest_qpn, src_qpn);
    struct iovec gather = {(void *)(uintptr_t)text, strlen(text) + 1};
    int result;

    packet.payload_length = (uint32_t)gather.iov_len;
    do {
        rundown_enter();
        result = lane_send(lane, &packet, &gather, 1);
        lane_ring(lane);
        rundown_exit();
        if (result == -EAGAIN)
            turn(1);
    } while (result == -EAGAIN);
    CHECK(result == 0);
}

void meet(unsigned word, unsigned sides)
{
    atomic_fetch_add(&board->word[word], 1);
    UNTIL(atomic_load(&board->word[word]) >= sides);
}

unsigned count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

unsigned count_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned count = 0;
    int c;

    CHECK(maps);
    while ((c = getc(maps)) != EOF)
        count += c == '\n';
    fclose(maps);
    return count;
}
