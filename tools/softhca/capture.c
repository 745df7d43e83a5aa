/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca capture: packets of running processes, or of a program that it starts, as a pcapng file. */
#include "capture.h"

#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "capture/frame.h"
#include "capture/pcapng.h"
#include "commands.h"
#include "launch.h"
#include "wire/crc.h"

#define SOURCES_MAX    1024u
#define BUFFER_DEFAULT (32u << 20)
/* Between two looks into the rings. */
#define BUSY_MS 1
#define IDLE_MS 20
/* For processes that are to stop recording. */
#define STOP_NS (2 * NS_PER_S)

struct state {
    struct capture_options options;
    struct capture_files files;
    struct cutter *cutter;
    struct capture_source *sources[SOURCES_MAX];
    uint32_t source_count;
    struct capture_source *present; /* whose record is being cut */
    /* By block of QP numbers: its process has recorded what it has sent. */
    uint64_t senders[CAPTURE_BLOCKS / 64];
    uint64_t epoch; /* CLOCK_REALTIME minus CLOCK_MONOTONIC */
    pid_t pids[SOURCES_MAX];
    uint32_t pid_count;
    char **program;
    pid_t child;      /* 0: none */
    int child_status; /* once child is 0 again */
    int listener;     /* -1: none */
    bool failed;
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = 1;
}

/* --- records -> file ------------------------------------------------------------------------------------- */

static void write_frame(const struct cut_packet *packet, void *argument)
{
    struct state *state = argument;
    struct capture_source *source = state->present;
    uint8_t frame[FRAME_HEADERS_MAX + CUT_PAYLOAD_MAX + 8];
    size_t length, captured = frame_build(packet, frame, &length);

    if (!captured)
        return;
    if (!source->has_interface) {
        pcapng_interface(state->files.file, source->name,
                         state->options.snap == UINT32_MAX ? 0 : state->options.snap);
        source->interface = state->files.interfaces++;
        source->has_interface = true;
    }
    pcapng_packet(state->files.file, source->interface, source->time + state->epoch, frame,
                  min_of(captured, (size_t)state->options.snap), length, packet->comment);
    source->packets++;
}

/* Is it what another captured process has sent, and recorded then? Records come in the order of their time, so before
 * that process was captured nothing says so. */
static bool is_recorded_by_sender(struct state *state, const struct capture_record *record)
{
    uint64_t *word = &state->senders[record->sender_block % CAPTURE_BLOCKS / 64];
    const uint64_t bit = 1ull << record->sender_block % 64;

    if (!(record->flags & CAPTURE_ARRIVED))
        *word |= bit;
    return (record->flags & CAPTURE_ARRIVED) && (record->flags & CAPTURE_FROM_HOST) && (*word & bit);
}

static void write_statistics(struct state *state)
{
    for (uint32_t i = 0; i < state->source_count; i++) {
        struct capture_source *source = state->sources[i];

        if (source->has_interface)
            pcapng_statistics(state->files.file, source->interface, sys_now() + state->epoch, source->packets,
                              capture_ring_dropped(&source->ring));
    }
}

static void turn_file(struct state *state)
{
    if (!capture_files_is_full(&state->files))
        return;
    write_statistics(state);
    if (capture_files_turn(&state->files) != 0)
        state->failed = true;
    for (uint32_t i = 0; i < state->source_count; i++)
        state->sources[i]->has_interface = false;
}

static struct capture_source *earliest(struct state *state, uint64_t *limit)
{
    struct capture_source *found = NULL;

    for (uint32_t i = 0; i < state->source_count; i++) {
        struct capture_source *source = state->sources[i];

        source_peek(source, limit);
        if (source->has_record && (!found || source->time < found->time))
            found = source;
    }
    return found;
}

/* Takes the records of all rings in the order of their time. A record that is not seen in this look was reserved, and
 * so has its time, after the look began: later ones wait for the next look. Returns how many were taken. */
static unsigned drain(struct state *state, bool all)
{
    uint64_t limit = all ? UINT64_MAX : sys_now();
    struct capture_source *source;
    unsigned taken = 0;

    for (uint32_t i = 0; i < state->source_count; i++)
        capture_ring_look(&state->sources[i]->ring);
    while ((source = earliest(state, &limit)) && source->time <= limit && !state->failed) {
        state->present = source;
        if (!is_recorded_by_sender(state, &source->record))
            cutter_take(state->cutter, &source->record, source->payload, state->options.snap);
        source_next(source);
        turn_file(state);
        taken++;
    }
    if (taken && !state->failed && fflush(state->files.file) != 0)
        state->failed = true;
    return taken;
}

/* --- processes ------------------------------------------------------------------------------------------- */

static struct capture_source *add_source(struct state *state)
{
    struct capture_source *source;

    if (state->source_count == SOURCES_MAX) {
        fprintf(stderr, "softhca: at most %u processes can be captured at once\n", SOURCES_MAX);
        return NULL;
    }
    source = calloc(1, sizeof(*source));
    if (!source)
        fprintf(stderr, "softhca: out of memory\n");
    return source;
}

static void keep_source(struct state *state, struct capture_source *source)
{
    state->sources[state->source_count++] = source;
}

static bool attach_all_pids(struct state *state)
{
    for (uint32_t i = 0; i < state->pid_count; i++) {
        struct capture_source *source = add_source(state);

        if (!source || source_attach(source, state->pids[i], &state->options) != 0) {
            free(source);
            return false;
        }
        keep_source(state, source);
        fprintf(
            stderr,
            "softhca: capturing %s: until the capture ends all its requests are sent as packets of path_mtu "
            "(slower)\n",
            source->name);
    }
    return true;
}

static void accept_process(struct state *state)
{
    int socket = accept4(state->listener, NULL, NULL, SOCK_CLOEXEC);
    struct capture_source *source = socket < 0 ? NULL : add_source(state);

    if (source && source_offer(source, socket, &state->options) == 0) {
        keep_source(state, source);
        return;
    }
    free(source);
    if (!source && socket >= 0)
        close(socket);
}

static int listen_for_program(struct state *state)
{
    struct sockaddr_un address;
    char name[64];
    uint64_t random;
    socklen_t length;

    sys_random(&random, sizeof(random));
    snprintf(name, sizeof(name), "softhca-capture-%016llx", (unsigned long long)random);
    length = unix_name_address(name, &address);
    state->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (state->listener < 0 || bind(state->listener, (struct sockaddr *)&address, length) != 0 ||
        listen(state->listener, LISTEN_MAX) != 0) {
        fprintf(stderr, "softhca: cannot make a socket: %s\n", strerror(errno));
        return -1;
    }
    return launch_set("SOFTHCA_CAPTURE", name);
}

/* The child becomes softhca run, which becomes the program. */
static void become_program(const struct state *state)
{
    size_t count = 0;
    char **arguments;

    while (state->program[count])
        count++;
    arguments = calloc(count + 4, sizeof(*arguments));
    if (!arguments)
        _exit(EXIT_OURS);
    arguments[0] = (char *)(uintptr_t) "softhca";
    arguments[1] = (char *)(uintptr_t) "run";
    arguments[2] = (char *)(uintptr_t) "--";
    memcpy(arguments + 3, state->program, count * sizeof(*arguments));
    if (capture_files_is_stdout(&state->files))
        dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output is the capture's */
    signal(SIGPIPE, SIG_DFL);
    execv("/proc/self/exe", arguments);
    fprintf(stderr, "softhca: cannot run /proc/self/exe: %s\n", strerror(errno));
    _exit(EXIT_OURS);
}

static int start_program(struct state *state)
{
    if (listen_for_program(state) != 0)
        return -1;
    fflush(NULL);
    state->child = fork();
    if (state->child < 0) {
        fprintf(stderr, "softhca: cannot fork: %s\n", strerror(errno));
        return -1;
    }
    if (!state->child)
        become_program(state);
    fprintf(stderr, "softhca: capturing %s: all its requests are sent as packets of path_mtu (slower)\n",
            state->program[0]);
    return 0;
}

static void look_for_end(struct state *state)
{
    int status;

    if (state->child > 0 && waitpid(state->child, &status, WNOHANG) == state->child) {
        state->child = 0;
        state->child_status = status;
    }
}

/* Waits for sockets, so that processes that start or end are served at once, and at most that long. */
static void wait_for_sockets(struct state *state, int timeout_ms)
{
    struct pollfd watched[SOURCES_MAX + 1];
    const uint32_t count = state->source_count;

    for (uint32_t i = 0; i < count; i++)
        watched[i] = (struct pollfd){.fd = state->sources[i]->socket, .events = POLLIN};
    watched[count] = (struct pollfd){.fd = state->listener, .events = POLLIN};
    if (poll(watched, count + 1, timeout_ms) <= 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (watched[i].revents)
            source_ready(state->sources[i]);
    }
    if (watched[count].revents)
        accept_process(state);
}

static bool any_is_there(const struct state *state)
{
    for (uint32_t i = 0; i < state->source_count; i++) {
        if (state->sources[i]->socket >= 0)
            return true;
    }
    return false;
}

/* --- the loop -------------------------------------------------------------------------------------------- */

static bool is_over(const struct state *state)
{
    if (stop || state->failed)
        return true;
    return state->program ? state->child == 0 : !any_is_there(state);
}

static void run(struct state *state)
{
    ns_t until;

    while (!is_over(state)) {
        wait_for_sockets(state, drain(state, false) ? BUSY_MS : IDLE_MS);
        look_for_end(state);
    }
    /* What processes write until they have seen the end is read, too. */
    if (state->listener >= 0)
        close(state->listener);
    state->listener = -1;
    for (uint32_t i = 0; i < state->source_count; i++)
        source_stop(state->sources[i]);
    for (until = sys_now() + STOP_NS; any_is_there(state) && sys_now() < until && !state->failed;) {
        drain(state, false);
        wait_for_sockets(state, BUSY_MS);
    }
    drain(state, true);
}

static int finish(struct state *state)
{
    uint64_t packets = 0, dropped = 0;

    if (!state->failed)
        write_statistics(state);
    state->failed |= capture_files_close(&state->files) != 0;
    for (uint32_t i = 0; i < state->source_count; i++) {
        packets += state->sources[i]->packets;
        dropped += capture_ring_dropped(&state->sources[i]->ring);
    }
    fprintf(stderr, "softhca: %llu packets captured, %llu dropped for lack of space%s\n",
            (unsigned long long)packets, (unsigned long long)dropped,
            dropped ? " (a larger --buffer, or a smaller --snap, holds more)" : "");
    if (state->failed)
        return EXIT_OURS;
    if (!state->program || state->child > 0)
        return 0;
    return WIFEXITED(state->child_status) ? WEXITSTATUS(state->child_status)
                                          : 128 + WTERMSIG(state->child_status);
}

/* --- options --------------------------------------------------------------------------------------------- */

enum { OPTION_SNAP = 256, OPTION_QP, OPTION_FILES, OPTION_SIZE, OPTION_BUFFER };

static const struct argp_option option_table[] = {
    {"pid", 'p', "PID", 0, "A running process; may be repeated", 0},
    {"write", 'w', "FILE", 0, "The pcapng file; - is standard output, for tshark -i -", 0},
    {"snap", OPTION_SNAP, "BYTES", 0, "Bytes that are kept of each packet, headers included (all)", 0},
    {"qp", OPTION_QP, "QPN", 0, "Only packets from or to that QP; may be repeated. 1: CM messages", 0},
    {"file-size", OPTION_SIZE, "BYTES", 0,
     "A new file after so many bytes (k, M, G); names then have a number: x_00001.pcapng", 0},
    {"ring-files", OPTION_FILES, "N", 0, "With --file-size: only the last N files are kept", 0},
    {"buffer", OPTION_BUFFER, "BYTES", 0, "Memory for packets of each process that are not written yet (32M)",
     0},
    {0},
};

/* A number with k, M or G behind it; 0: it is none, or out of range. */
static uint64_t read_size(const char *text, uint64_t most)
{
    static const char units[] = "kMG";
    const char *unit;
    char *end;
    unsigned long long value = strtoull(text, &end, 0);

    unit = *end ? strchr(units, *end == 'K' ? 'k' : *end) : NULL;
    if (end == text || *text == '-' || value > most || (*end && (!unit || end[1])))
        return 0;
    if (unit)
        value = value > most >> 10 * (unit - units + 1) ? 0 : value << 10 * (unit - units + 1);
    return value;
}

static uint32_t round_to_power(uint64_t size)
{
    uint32_t power = CAPTURE_RING_MIN;

    while (power < size && power < CAPTURE_RING_MAX)
        power *= 2;
    return power;
}

static uint64_t size_or_error(const char *option, const char *text, uint64_t least, uint64_t most,
                              struct argp_state *state)
{
    uint64_t value = read_size(text, most);

    if (value < least || !value)
        argp_error(state, "%s: '%s': not a number from %llu to %llu", option, text, (unsigned long long)least,
                   (unsigned long long)most);
    return value;
}

static error_t parse(int key, char *argument, struct argp_state *argp)
{
    struct state *state = argp->input;
    struct capture_options *options = &state->options;

    switch (key) {
    case 'p':
        if (state->pid_count == SOURCES_MAX)
            argp_error(argp, "-p: more than %u processes", SOURCES_MAX);
        if (!read_pid(argument, &state->pids[state->pid_count++]))
            argp_error(argp, "-p: '%s': not a number from 1 to %d", argument, INT32_MAX);
        return 0;
    case 'w':
        state->files.name = argument;
        return 0;
    case OPTION_SNAP:
        options->snap = (uint32_t)size_or_error("--snap", argument, FRAME_HEADERS_MAX, UINT32_MAX, argp);
        return 0;
    case OPTION_QP:
        if (options->qpn_count == CAPTURE_QPNS)
            argp_error(argp, "--qp: more than %u QPs", CAPTURE_QPNS);
        options->qpns[options->qpn_count++] = (uint32_t)size_or_error("--qp", argument, 1, 0xffffff, argp);
        return 0;
    case OPTION_FILES:
        state->files.count = size_or_error("--ring-files", argument, 1, 99999, argp);
        return 0;
    case OPTION_SIZE:
        state->files.size = size_or_error("--file-size", argument, 4096, UINT64_MAX >> 1, argp);
        return 0;
    case OPTION_BUFFER:
        options->buffer =
            round_to_power(size_or_error("--buffer", argument, CAPTURE_RING_MIN, CAPTURE_RING_MAX, argp));
        return 0;
    case ARGP_KEY_ARG:
        state->program = argp->argv + argp->next - 1;
        argp->next = argp->argc;
        return 0;
    case ARGP_KEY_END:
        if (!state->files.name)
            argp_error(argp, "-w FILE is missing");
        if (!state->program == !state->pid_count)
            argp_error(argp, "give either -p PID or PROGRAM");
        if (state->files.count && !state->files.size)
            argp_error(argp, "--ring-files needs --file-size");
        if (state->files.size && capture_files_is_stdout(&state->files))
            argp_error(argp, "--file-size cannot be combined with -w -");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static uint64_t realtime_ahead(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec - sys_now();
}

static void take_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* the reader of standard output may go: a write then fails */
}

int command_capture(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "-p PID\n[--] PROGRAM [ARG...]",
        .doc =
            "Writes the packets of a process's QPs into a pcapng file, as they would be on a wire: those of "
            "the network, and messages over shared memory cut into packets.",
    };
    static struct state state = {.options = {.snap = UINT32_MAX, .buffer = BUFFER_DEFAULT}, .listener = -1};

    argp_err_exit_status = EXIT_OURS;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &state);
    if (capture_files_is_stdout(&state.files) && isatty(STDOUT_FILENO)) {
        fprintf(stderr, "softhca: standard output is a terminal; a capture is for a file or a pipe\n");
        return EXIT_OURS;
    }
    state.epoch = realtime_ahead();
    state.cutter = cutter_new(write_frame, &state);
    crc_choose(sys_now);
    take_signals();
    if (!state.cutter || capture_files_open(&state.files) != 0)
        return EXIT_OURS;
    if (!attach_all_pids(&state) || (state.program && start_program(&state) != 0))
        return EXIT_OURS;
    run(&state);
    return finish(&state);
}
