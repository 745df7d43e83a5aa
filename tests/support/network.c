/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "network.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return written;
}

static bool own_user_namespace(void)
{
    /* In a user namespace 65534 is nobody whom we know (base/user.h). */
    const uid_t user = geteuid(), seen_as = user == 65534 ? 61000 : user;
    const gid_t group = getegid();
    char map[64];

    if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return false;
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", (unsigned)seen_as, (unsigned)user);
    if (!write_file("/proc/self/uid_map", map))
        return false;
    snprintf(map, sizeof map, "%u %u 1", (unsigned)group, (unsigned)group);
    return write_file("/proc/self/gid_map", map);
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};

    syscall(SYS_capset, &header, none);
    /* A change of capabilities makes the process undumpable, and then its own /proc is closed to it. */
    prctl(PR_SET_DUMPABLE, 1);
}

static bool lo_up(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;

    request.ifr_flags |= IFF_UP;
    up = up && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0)
        close(fd);
    return up;
}

/* An interface that is not lo, so that there is a network to multicast to. Without it, lo has to do. */
static void add_interface(void)
{
    static const char script[] = "PATH=$PATH:/usr/sbin:/sbin; exec >/dev/null 2>&1; "
                                 "ip link add test0 mtu 4300 type veth peer name test1 mtu 4300 && "
                                 "ip link set test1 addrgenmode none up && ip link set test0 up && "
                                 "ip address add 10.77.0.1/24 dev test0 && "
                                 "ip address add fd77::1/64 dev test0 nodad";

    if (system(script))
        fprintf(stderr, "# no interface but lo\n");
}

bool own_network(void)
{
    const bool privileged = unshare(CLONE_NEWNET) == 0;

    if ((!privileged && !own_user_namespace()) || !lo_up())
        return false;
    add_interface();
    if (!privileged)
        drop_capabilities();
    return true;
}
