/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca why, as root, reads names of functions out of files of other users' processes. What such a process writes
 * into its published segment decides which: files that block who opens or reads them, that are a terabyte long, or
 * that are nothing to the process. */
#include "attacker.h"
#include "end.h"
#include "forge.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_COPY "/mnt/program"

enum { PAGE = 4096 };

/* --- the attacker --------------------------------------------------------------------------------------- */

/* What the attacker maps (NULL: nothing), and what it says that it has mapped there. */
struct lie {
    const char *maps, *says;
};

struct opened {
    struct ibv_context *context;
    struct ibv_pd *pd;
};

/* Its name is looked for. */
__attribute__((noinline)) static void make_objects(struct opened *opened)
{
    opened->context = open_the_device();
    opened->pd = ibv_alloc_pd(opened->context);
    CHECK(opened->pd, "ibv_alloc_pd: %s", strerror(errno));
}

static int first_bias(struct dl_phdr_info *info, size_t size, void *argument)
{
    *(uintptr_t *)argument = info->dlpi_addr; /* the program is first */
    return 1;
}

static void open_and_lie(int connection, const void *argument)
{
    const struct lie *lie = argument;
    uintptr_t bias = 0, here = (uintptr_t)make_objects + 1, address;
    struct opened opened;
    int silence = open("/dev/null", O_WRONLY | O_CLOEXEC), file = -1;

    dup2(silence, STDERR_FILENO);
    setenv("SOFTHCA_EXPLAIN", "text", 1); /* with stacks */
    make_objects(&opened);
    if (lie) {
        dl_iterate_phdr(first_bias, &bias);
        if (lie->maps)
            file = open(lie->maps, O_RDONLY | O_CLOEXEC);
        address =
            (uintptr_t)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
        CHECK(address != (uintptr_t)MAP_FAILED, "mmap: %s", strerror(errno));
        /* In the file of the program, the address is that of make_objects(). */
        CHECK(forge_stacks(lie->says, address + here % PAGE, address + here % PAGE - (here - bias)),
              "the segment has no stacks");
    }
    attacker_ready(connection, &file, sizeof(file));
}

/* What root's command says of the attacker's PD. */
static int why_pd(const struct attacker *attacker, char **ret_text)
{
    char pid[16];
    const char *const arguments[] = {"why", "--json", pid, "pd:0", NULL};

    snprintf(pid, sizeof(pid), "%d", (int)attacker->pid);
    return run_softhca(arguments, ret_text);
}

static void look_at(const struct lie *lie, int *ret_status, char **ret_text)
{
    struct attacker attacker = attacker_start(ATTACKER_USER, open_and_lie, lie);
    int file;

    attacker_told(&attacker, &file, sizeof(file));
    *ret_status = why_pd(&attacker, ret_text);
    attacker_end(&attacker);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void functions_of_another_users_program_have_names(void **state)
{
    int status;
    char *text;

    need_root();
    look_at(NULL, &status, &text);
    assert_int_equal(status, 0);
    CHECK(strstr(text, "\"function\":\"make_objects\""), "no name: %s", text);
    free(text);
}

static void copy_program(void)
{
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
        to = open(OWN_COPY, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    char part[65536];
    ssize_t length;

    CHECK(from >= 0 && to >= 0, "open: %s", strerror(errno));
    while ((length = read(from, part, sizeof(part))) > 0)
        CHECK(write(to, part, (size_t)length) == length, "write: %s", strerror(errno));
    close(from);
    close(to);
}

/* The file would do, but the process has not mapped it. So it could name /proc/kmsg, which root would read out. */
static void what_a_process_only_names_is_not_opened(void **state)
{
    static const char *const names[] = {OWN_COPY, "/mnt/fifo"};
    int status, watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    char event[1024], *text;

    need_root();
    copy_program();
    CHECK(mkfifo("/mnt/fifo", 0644) == 0, "mkfifo: %s", strerror(errno));
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct lie lie = {.says = names[i]};

        CHECK(inotify_add_watch(watch, names[i], IN_OPEN) >= 0, "inotify: %s", strerror(errno));
        look_at(&lie, &status, &text);
        assert_int_equal(status, 0);
        CHECK(!strstr(text, "make_objects"), "%s was read: %s", names[i], text);
        CHECK(read(watch, event, sizeof(event)) < 0 && errno == EAGAIN, "%s was opened", names[i]);
        free(text);
    }
    close(watch);
}

/* All that is said of it can be read, and is zeros: four thousand tables of a tebibyte each. */
static void make_sparse_program(const char *path)
{
    enum { SECTIONS = 4095 };
    static Elf64_Shdr sections[SECTIONS];
    Elf64_Ehdr header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
                         .e_machine = forge_machine(),
                         .e_shoff = sizeof(header),
                         .e_shentsize = sizeof(Elf64_Shdr),
                         .e_shnum = SECTIONS};
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    for (size_t i = 0; i < SECTIONS; i++)
        sections[i] = (Elf64_Shdr){.sh_type = SHT_SYMTAB, .sh_offset = 1 << 20, .sh_size = 1ull << 40};
    CHECK(fd >= 0 && write(fd, &header, sizeof(header)) == sizeof(header) &&
              write(fd, sections, sizeof(sections)) == sizeof(sections) && ftruncate(fd, 1ll << 41) == 0,
          "%s: %s", path, strerror(errno));
    close(fd);
}

static void a_report_reads_no_more_than_its_budget(void **state)
{
    const struct lie lie = {.maps = "/mnt/sparse", .says = "/mnt/sparse"};
    int status;

    need_root();
    make_sparse_program(lie.maps);
    look_at(&lie, &status, NULL);
    CHECK(status == 0, "the command ended with %d", status);
}

/* --- FUSE ----------------------------------------------------------------------------------------------- */

/* A file system with one file, "file". It answers until it is told to fall silent. */
struct silent_files {
    pid_t server;
    int device;
};

static void answer(int device, const struct fuse_in_header *in, int error, const void *data, size_t length)
{
    struct fuse_out_header out = {
        .len = (uint32_t)(sizeof(out) + length), .error = error, .unique = in->unique};
    struct iovec parts[] = {{&out, sizeof(out)}, {(void *)(uintptr_t)data, length}};

    (void)!writev(device, parts, 2);
}

static struct fuse_attr attributes_of(uint64_t node)
{
    return (struct fuse_attr){
        .ino = node, .size = PAGE, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1};
}

static void serve(int device)
{
    static char request[FUSE_MIN_READ_BUFFER + 65536];
    const struct fuse_in_header *in = (const struct fuse_in_header *)request;

    while (read(device, request, sizeof(request)) > 0) {
        struct fuse_init_out init = {
            .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = PAGE};
        /* Nothing is valid for longer than a moment: each look asks again. */
        struct fuse_entry_out entry = {.nodeid = 2, .attr = attributes_of(2)};
        struct fuse_attr_out attributes = {.attr = attributes_of(in->nodeid)};
        struct fuse_open_out opened = {0};

        switch (in->opcode) {
        case FUSE_INIT:
            answer(device, in, 0, &init, sizeof(init));
            break;
        case FUSE_LOOKUP:
            answer(device, in, 0, &entry, sizeof(entry));
            break;
        case FUSE_GETATTR:
            answer(device, in, 0, &attributes, sizeof(attributes));
            break;
        case FUSE_OPEN:
            answer(device, in, 0, &opened, sizeof(opened));
            break;
        default:
            answer(device, in, -ENOSYS, NULL, 0);
        }
    }
}

/* Mounted by root for everybody, as fusermount does where /etc/fuse.conf allows it: otherwise the kernel keeps other
 * users from the files of a stranger's server. */
static struct silent_files mount_silent_files(const char *where)
{
    struct silent_files files = {.device = open("/dev/fuse", O_RDWR | O_CLOEXEC)};
    char options[128];

    if (files.device < 0)
        skip_because("no /dev/fuse: %s", strerror(errno));
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", files.device);
    if (mount("files", where, "fuse", MS_NOSUID | MS_NODEV, options) != 0)
        skip_because("mount FUSE: %s", strerror(errno));
    files.server = fork();
    if (files.server == 0) {
        serve(files.device);
        _exit(0);
    }
    return files;
}

static void a_file_whose_server_is_silent_blocks_nobody(void **state)
{
    const struct lie lie = {.maps = "/mnt/silent/file", .says = "/mnt/silent/file"};
    struct attacker attacker;
    struct silent_files files;
    int status, file;

    need_root();
    CHECK(mkdir("/mnt/silent", 0755) == 0, "mkdir: %s", strerror(errno));
    files = mount_silent_files("/mnt/silent");
    attacker = attacker_start(ATTACKER_USER, open_and_lie, &lie);
    attacker_told(&attacker, &file, sizeof(file));
    assert_true(file >= 0);
    kill(files.server, SIGSTOP);
    status = why_pd(&attacker, NULL);
    kill(files.server, SIGCONT);
    CHECK(status == 0, "the command ended with %d", status);
    attacker_end(&attacker);
    kill(files.server, SIGKILL);
    waitpid(files.server, NULL, 0);
    umount2("/mnt/silent", MNT_DETACH);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(functions_of_another_users_program_have_names, .fars = 0),
        TEST_WITH(what_a_process_only_names_is_not_opened, .fars = 0),
        TEST_WITH(a_report_reads_no_more_than_its_budget, .fars = 0),
        TEST_WITH(a_file_whose_server_is_silent_blocks_nobody, .fars = 0),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
