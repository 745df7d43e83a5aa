/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is left of a party's links when all is closed. */
#include "party.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* How much of the process's is left. */
static void count(struct party *party, int *ret_fds, int *ret_maps)
{
    DIR *const dir = opendir("/proc/self/fd");
    FILE *const maps = fopen("/proc/self/maps", "re");
    char line[4400];

    *ret_fds = *ret_maps = 0;
    MUST(dir && maps, "/proc/self");
    while (readdir(dir))
        ++*ret_fds;
    while (fgets(line, sizeof(line), maps))
        *ret_maps += strstr(line, "memfd:") != NULL;
    closedir(dir);
    fclose(maps);
}

/* Tells whoever reads a failed test which descriptors are left; of a socket its name, and who is at its other end. */
static void list_descriptors(void)
{
    DIR *const dir = opendir("/proc/self/fd");

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const int fd = atoi(entry->d_name);
        struct sockaddr_un name = {0};
        struct ucred owner = {0};
        socklen_t name_length = sizeof(name), owner_length = sizeof(owner);
        char link[300], target[200];
        ssize_t length;
        char byte;

        snprintf(link, sizeof(link), "/proc/self/fd/%s", entry->d_name);
        length = readlink(link, target, sizeof(target));
        if (length < 0)
            continue;
        fprintf(stderr, "# descriptor %d: %.*s", fd, (int)length, target);
        if (!getsockname(fd, (struct sockaddr *)&name, &name_length) && name.sun_family == AF_UNIX) {
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_length);
            fprintf(stderr, " '%.*s' of process %d, peer %d%s", (int)(name_length - sizeof(sa_family_t)),
                    name.sun_path[0] ? name.sun_path : name.sun_path + 1, getpid(), owner.pid,
                    recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ? ", which has closed it" : "");
        }
        fprintf(stderr, "\n");
    }
    if (dir)
        closedir(dir);
}

/* Links go down in the background: until no more is left than in a trial without a death. */
void count_rest(struct party *party, int *ret_fds, int *ret_maps, int fds_most, int maps_most)
{
    for (unsigned i = 0; i < 5000; i++) {
        count(party, ret_fds, ret_maps);
        if (!fds_most || (*ret_fds <= fds_most && *ret_maps <= maps_most))
            return;
        poll(NULL, 0, 2);
    }
    list_descriptors();
}
