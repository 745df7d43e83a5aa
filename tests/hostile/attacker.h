/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two users for attacks, and what an attacker does without the library. */
#ifndef TESTS_HOSTILE_ATTACKER_H
#define TESTS_HOSTILE_ATTACKER_H

#include "runner.h"
#include "side.h"

#include <sys/types.h>

/* Without accounts. */
enum { VICTIM_USER = 61011, ATTACKER_USER = 61012 };

/* Before run_topic(), once: root gets a host of its own: namespaces of pids, mounts, IPC and network, with a /proc,
 * and a /mnt that is empty and that everybody may write to. What else runs on this machine is then nothing to the
 * test, and the other way round. Ordinary users stay where they are. */
void enter_own_host(void);
/* Ends the test as skipped unless it can be several users. */
void need_root(void);
/* This process becomes that user, without privileges, and dumpable as a program that the user starts. */
void become(uid_t user);

/* A process that plays the attacker: runs `body`, which reports by attacker_ready(), and ends with the test. */
typedef void attack(int connection, const void *argument);
struct attacker {
    pid_t pid;
    int connection;
};
/* Returns when the attacker has called attacker_ready(). */
struct attacker attacker_start(uid_t user, attack *body, const void *argument);
/* In the attacker: what it has to tell; then it waits until the test says more. */
void attacker_ready(int connection, const void *told, size_t length);
void attacker_told(const struct attacker *attacker, void *ret_told, size_t length);
void attacker_end(struct attacker *attacker);

/* A memfd that is called as a published segment, of huge pages or of ordinary ones. */
int make_segment_file(unsigned int memfd_flags, off_t size, int seals);

/* Runs the command softhca; *ret_text: what it said (freed by the caller). Returns its exit status, or minus the signal
 * that ended it. */
int run_softhca(const char *const *arguments, char **ret_text);

#endif
