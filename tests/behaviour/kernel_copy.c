/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* WRITE and READ that the requester executes by the kernel's copy (engine/direct/copy.c): a requester that is stopped
 * exactly at its system call, the order of bytes of a WRITE, and a kernel that refuses the call. */
#include "taking.h"
#include "work.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 16 };

static void connect(struct pair *p)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = 2 * SIZE;
    attr.timeout = 10;
    attr.retry_cnt = 1;
    end_open(&p->a, NEAR, &attr);
    end_open(&p->b, FAR, &attr);
    end_connect(&p->a, &p->b);
    need_copies();
}

/* --- stopped at the call ------------------------------------------------------------------------------ */

struct stream {
    struct end to;
    size_t length;
    bool reads;
    uint64_t last; /* what READs end with */
};

/* Requests until one fails. The first may go as packets. */
static void stream(struct end *end, void *arg)
{
    const struct stream *what = arg;
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

    for (unsigned int i = 0; wc.status == IBV_WC_SUCCESS; i++) {
        if (what->reads)
            end_send(end, a_read(end, i, 0, what->length, &what->to, 0));
        else
            end_send(end, a_write(end, i, 0, what->length, &what->to, 0));
        while (ibv_poll_cq(end->send_cq, 1, &wc) == 0) {
        }
        CHECK(!what->reads || wc.status != IBV_WC_SUCCESS ||
                  end_peek64(end, what->length - sizeof(uint64_t)) == what->last,
              "read what was written after the memory was given back");
    }
}

static void trace(pid_t thread, long request, uintptr_t argument)
{
    CHECK(ptrace((enum __ptrace_request)request, thread, NULL, (void *)argument) == 0, "ptrace %ld of %d: %s",
          request, (int)thread, strerror(errno));
}

static void wait_stopped(pid_t thread)
{
    int status = 0;

    CHECK(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status), "waitpid: status %x",
          (unsigned)status);
}

/* Nothing else would end it. */
static void end_stream_and_skip(const char *what, int error)
{
    side_kill(FAR);
    skip_because("%s: %s", what, strerror(error));
}

/* Stops the thread where it enters the system call; the kernel has read nothing of the call's arguments in memory. */
static void stop_at(pid_t thread, uint64_t number)
{
    struct __ptrace_syscall_info info;

    if (ptrace((enum __ptrace_request)PTRACE_SEIZE, thread, NULL, (void *)PTRACE_O_TRACESYSGOOD) != 0)
        end_stream_and_skip("ptrace", errno);
    trace(thread, PTRACE_INTERRUPT, 0);
    wait_stopped(thread);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(info), &info) < 0)
        end_stream_and_skip("PTRACE_GET_SYSCALL_INFO, Linux 5.3", errno);
    do {
        trace(thread, PTRACE_SYSCALL, 0);
        wait_stopped(thread);
        CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(info), &info) > 0,
              "PTRACE_GET_SYSCALL_INFO: %s", strerror(errno));
    } while (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != number);
}

static void a_requester_at_its_call_changes_nothing(enum taking how, bool reads, size_t length)
{
    for (unsigned int round = 1; round <= (long_tests() ? 2000 : 5); round++) {
        struct stream traffic = {.length = length, .reads = reads};
        struct end_call call;
        struct pair p;

        connect(&p);
        traffic.to = p.a;
        end_fill(&p.a, 0, SIZE, round);
        traffic.last = end_peek64(&p.a, length - sizeof(uint64_t));
        end_fill(&p.b, 0, SIZE, round);
        end_start(&call, &p.b, stream, &traffic, sizeof(traffic));
        stop_at(p.b.side->pid, reads ? SYS_process_vm_readv : SYS_process_vm_writev);
        take_back(&p.a, how);
        end_fill(&p.a, 0, 2 * SIZE, 1000 + round);
        trace(p.b.side->pid, PTRACE_DETACH, 0);
        end_finish(&call);
        end_expect_data(&p.a, 0, 2 * SIZE, 1000 + round);
        end_close(&p.a);
        end_close(&p.b);
    }
}

#define AT_CALL(name, how, reads, length)                                                                    \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        a_requester_at_its_call_changes_nothing(how, reads, length);                                         \
    }
AT_CALL(a_requester_at_its_call_changes_nothing_after_dereg, DEREGISTERS, false, 8)
AT_CALL(a_requester_at_its_call_changes_nothing_after_rereg, REREGISTERS, false, SIZE)
AT_CALL(a_requester_at_its_call_changes_nothing_after_err, ENTERS_ERR, false, SIZE)
AT_CALL(a_requester_at_its_call_changes_nothing_after_reset, ENTERS_RESET, false, 8)
AT_CALL(a_requester_at_its_call_changes_nothing_after_destroy, DESTROYS_QP, false, SIZE)
AT_CALL(a_reader_at_its_call_reads_nothing_new_after_dereg, DEREGISTERS, true, 8)
AT_CALL(a_reader_at_its_call_reads_nothing_new_after_destroy, DESTROYS_QP, true, SIZE)

/* --- order of bytes ----------------------------------------------------------------------------------- */

enum { ROUNDS = 3000, ROUNDS_LONG = 1000000 };

struct words {
    struct end to;
    uint32_t rounds;
};

static const size_t lengths[] = {8, 24, 64, 200, 1024, 4096, 12000, SIZE};

/* Each WRITE fills its range with one byte value. The next one follows when the target has written its number back. */
static void write_words(struct end *end, void *arg)
{
    const struct words *what = arg;

    for (uint32_t i = 1; i <= what->rounds; i++) {
        size_t length = lengths[i % COUNT(lengths)];

        memset(end->buf, (int)(i % 255) + 1, length);
        end_send(end, a_write(end, i, 0, length, &what->to, SIZE - length));
        end_expect_success(end, SQ, i, IBV_WC_RDMA_WRITE);
        while (__atomic_load_n((uint32_t *)(void *)(end->buf + SIZE), __ATOMIC_ACQUIRE) != i) {
        }
    }
}

/* The target spins on the last word, as programs do, and polls no CQ meanwhile. */
static void the_last_word_of_a_write_comes_last_and_whole(void **state)
{
    struct words words = {.rounds = long_tests() ? ROUNDS_LONG : ROUNDS};
    struct end_call call;
    struct pair p;

    connect(&p);
    words.to = p.a;
    end_start(&call, &p.b, write_words, &words, sizeof(words));
    for (uint32_t i = 1; i <= words.rounds; i++) {
        size_t length = lengths[i % COUNT(lengths)];
        uint64_t expected = 0x0101010101010101ull * (i % 255 + 1), word;

        do {
            word = __atomic_load_n((uint64_t *)(void *)(p.a.buf + SIZE - 8), __ATOMIC_ACQUIRE);
        } while ((word & 0xff) != (expected & 0xff) && (word >> 56) != (expected >> 56));
        CHECK(word == expected, "round %u: the last word is torn: %016llx", i, (unsigned long long)word);
        for (size_t at = SIZE - length; at < SIZE; at++)
            CHECK((uint8_t)p.a.buf[at] == (uint8_t)expected,
                  "round %u: byte %zu of %zu came after the last one", i, at - (SIZE - length), length);
        memcpy(p.a.buf + SIZE, &i, sizeof(i));
        end_send(&p.a, a_write(&p.a, i, SIZE, sizeof(i), &p.b, SIZE));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
    }
    end_finish(&call);
    pair_close(&p);
}

/* --- memory that is being switched ------------------------------------------------------------------------ */

enum { STEP = 1 << 20, REGION = 4 * STEP, BLOCK = 1 << 16, BLOCKS = REGION / BLOCK, PASSES = 4 };

/* The last block of each step is the program's own. */
static bool is_counted(unsigned int block)
{
    return (block + 1) % (STEP / BLOCK) == 0;
}

/* Writes each block and reads it back, pass after pass. */
static void write_and_read_blocks(struct end *end, void *arg)
{
    const struct end *to = arg;

    for (unsigned int i = 0; i < PASSES * BLOCKS; i++) {
        size_t at = (size_t)(i % BLOCKS) * BLOCK;

        if (is_counted(i % BLOCKS))
            continue;
        end_fill(end, 0, BLOCK, i);
        end_send(end, a_write(end, 1, 0, BLOCK, to, at));
        end_expect_success(end, SQ, 1, IBV_WC_RDMA_WRITE);
        end_send(end, a_read(end, 2, BLOCK, BLOCK, to, at));
        end_expect_success(end, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(end, BLOCK, BLOCK, i);
    }
    end_poke64(end, 0, PASSES);
    end_send(end, a_write(end, 3, 0, 8, to, REGION));
    end_expect_success(end, SQ, 3, IBV_WC_RDMA_WRITE);
}

/* The program counts beside what the peer writes. With SOFTHCA_LOCAL=auto the memory is switched meanwhile, where this
 * machine allows that, by one step of 1 MiB after the other. */
static void nothing_is_lost_while_memory_is_switched(void **state)
{
    for (unsigned int round = 0; round < (long_tests() ? 200 : 20); round++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct end_call call;
        uint64_t counted = 0;
        struct pair p;

        attr.size = REGION + BLOCK;
        pair_connect_as(&p, &attr);
        end_start(&call, &p.b, write_and_read_blocks, &p.a, sizeof(p.a));
        do {
            for (size_t at = STEP - BLOCK; at < REGION; at += STEP)
                ++*(volatile uint64_t *)(void *)(p.a.buf + at);
            counted++;
        } while (__atomic_load_n((uint64_t *)(void *)(p.a.buf + REGION), __ATOMIC_ACQUIRE) != PASSES);
        end_finish(&call);
        for (size_t at = STEP - BLOCK; at < REGION; at += STEP)
            assert_int_equal(end_peek64(&p.a, at), counted);
        for (unsigned int i = (PASSES - 1) * BLOCKS; i < PASSES * BLOCKS; i++) {
            if (!is_counted(i % BLOCKS))
                end_expect_data(&p.a, (size_t)(i % BLOCKS) * BLOCK, BLOCK, i);
        }
        pair_close(&p);
    }
}

/* The thread of the process that switches memory; 0: it has none. */
static pid_t keeper_of(pid_t process)
{
    struct dirent *entry;
    char path[64];
    pid_t found = 0;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
    tasks = opendir(path);
    while (tasks && !found && (entry = readdir(tasks))) {
        char comm[400], name[32] = "";
        FILE *file;

        snprintf(comm, sizeof(comm), "%s/%s/comm", path, entry->d_name);
        file = fopen(comm, "re");
        if (file && fgets(name, sizeof(name), file) && strncmp(name, "softhca-mapped", 14) == 0)
            found = (pid_t)atoi(entry->d_name);
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return found;
}

/* Lets the thread go on, if it has stopped, unless it enters the system call: then true, and it stays stopped. */
static bool has_stopped_at(pid_t thread, uint64_t number)
{
    struct __ptrace_syscall_info info;
    int status;

    if (waitpid(thread, &status, __WALL | WNOHANG) != thread)
        return false;
    CHECK(WIFSTOPPED(status), "waitpid: status %x", (unsigned)status);
    CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(info), &info) > 0,
          "PTRACE_GET_SYSCALL_INFO: %s", strerror(errno));
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == number)
        return true;
    trace(thread, PTRACE_SYSCALL, 0);
    return false;
}

static void write_at(struct pair *p, size_t at, uint64_t value)
{
    end_poke64(&p->a, 0, value);
    end_send(&p->a, a_write(&p->a, 1, 0, sizeof(value), &p->b, at));
    end_expect_success(&p->a, SQ, 1, IBV_WC_RDMA_WRITE);
}

/* Meanwhile the thread goes on until it enters the system call. True: it is there, and the request is complete. A
 * request for the very pages that it is about to move waits for them: then the thread goes on once more. */
static bool write_until(struct pair *p, size_t at, uint64_t value, pid_t thread, uint64_t number)
{
    enum { PATIENCE = 1 << 18 };
    unsigned int waited = 0;
    bool stopped = false;
    struct ibv_wc wc;

    end_poke64(&p->a, 0, value);
    end_send(&p->a, a_write(&p->a, 1, 0, sizeof(value), &p->b, at));
    while (!end_poll_once(&p->a, SQ, &wc, 1)) {
        stopped = stopped || has_stopped_at(thread, number);
        if (!stopped || ++waited < PATIENCE)
            continue;
        trace(thread, PTRACE_SYSCALL, 0);
        stopped = false;
        waited = 0;
    }
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    return stopped || has_stopped_at(thread, number);
}

/* While a portion is switched, nobody in the peer would take a packet: the thread that does waits for the one that
 * switches. So what completes was copied by the kernel. */
static void requests_beside_pages_that_are_switched_go_on(void **state)
{
    enum { FIRST = 2000, OFTEN = 100000, BESIDE = 64, BESIDE_AT = STEP + STEP / 2 };
    struct end_attr attr = attr_of(IBV_QPT_RC);
    bool switches = false;
    pid_t keeper = 0;
    struct pair p;

    attr.size = REGION;
    pair_connect_as(&p, &attr);
    /* It begins with the first memory. */
    for (uint64_t i = 0; !(keeper = keeper_of(p.b.side->pid)) && i < FIRST; i++)
        write_at(&p, 0, i);
    if (!keeper || ptrace((enum __ptrace_request)PTRACE_SEIZE, keeper, NULL, (void *)PTRACE_O_TRACESYSGOOD))
        skip_because("no thread that switches memory, or it cannot be traced");
    trace(keeper, PTRACE_INTERRUPT, 0);
    wait_stopped(keeper);
    trace(keeper, PTRACE_SYSCALL, 0);
    for (uint64_t i = 0; i < OFTEN && !switches; i++)
        switches = write_until(&p, 3 * STEP, i, keeper, SYS_mremap);
    for (uint64_t i = 0; i < BESIDE && switches; i++)
        write_at(&p, BESIDE_AT + i * 4096, i);
    if (!switches) {
        trace(keeper, PTRACE_INTERRUPT, 0);
        wait_stopped(keeper);
    }
    trace(keeper, PTRACE_DETACH, 0);
    for (uint64_t i = 0; i < BESIDE && switches; i++)
        CHECK(end_peek64(&p.b, BESIDE_AT + i * 4096) == i, "not what was written beside");
    if (!switches)
        skip_because("memory is not switched in the background here (softhca doctor says why)");
    pair_close(&p);
}

/* --- a kernel that refuses -------------------------------------------------------------------------------- */

static void refuse_copies(struct end *end, void *arg)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(filter), .filter = filter};

    CHECK_ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0,
          "seccomp: %s", strerror(errno));
}

/* A program that installs a filter after it has connected, as sandboxes do. Longer messages went by reference until
 * then: the peer goes on with that, and the bytes have to come another way. */
static void a_filter_that_refuses_the_call_later_does_no_harm(void **state)
{
    static const size_t each[] = {8, 4096, SIZE};
    struct pair p;

    connect(&p);
    for (unsigned int round = 0; round < 3 * COUNT(each); round++) {
        size_t length = each[round % COUNT(each)];

        end_fill(&p.b, 0, length, round + 1);
        end_send(&p.b, a_write(&p.b, 1, 0, length, &p.a, 0));
        end_expect_success(&p.b, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.a, 0, length, round + 1);
        end_send(&p.b, a_read(&p.b, 2, SIZE, length, &p.a, 0));
        end_expect_success(&p.b, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&p.b, SIZE, length, round + 1);
        end_recv(&p.a, a_recv(&p.a, 3, SIZE, length));
        end_send(&p.b, a_send(&p.b, 4, 0, length));
        end_expect_success(&p.b, SQ, 4, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, 3, IBV_WC_RECV);
        end_expect_data(&p.a, SIZE, length, round + 1);
        if (round == COUNT(each) - 1)
            end_call(&p.b, refuse_copies, NULL, 0);
        if (round == 2 * COUNT(each) - 1)
            end_call(&p.a, refuse_copies, NULL, 0);
    }
    pair_close(&p);
}

int main(int argc, char **argv)
{
#define COPY(fn) TEST_WITH(fn, .fars = 1, .needs = NEEDS_TWO_PROCESSES, .seconds = long_tests() ? 600 : 0)
    const struct test tests[] = {
        COPY(nothing_is_lost_while_memory_is_switched),
        COPY(requests_beside_pages_that_are_switched_go_on),
        /* Where the kernel copies each request: */
        COPY(a_requester_at_its_call_changes_nothing_after_dereg),
        COPY(a_requester_at_its_call_changes_nothing_after_rereg),
        COPY(a_requester_at_its_call_changes_nothing_after_err),
        COPY(a_requester_at_its_call_changes_nothing_after_reset),
        COPY(a_requester_at_its_call_changes_nothing_after_destroy),
        COPY(a_reader_at_its_call_reads_nothing_new_after_dereg),
        COPY(a_reader_at_its_call_reads_nothing_new_after_destroy),
        COPY(the_last_word_of_a_write_comes_last_and_whole),
        COPY(a_filter_that_refuses_the_call_later_does_no_harm),
    };

    return run_topic(tests, path_under_test() == PATH_AUTO ? 2 : COUNT(tests), argc, argv);
}
