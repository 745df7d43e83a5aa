# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Programs that tests start: their environment, their network, and those that wait for a word."""

import os
import shutil
import subprocess
import sys

import tap

PATIENCE = 120


def environment(library=None, **more):
    """Nothing of ours but what the test wants. library: the directory of the libraries."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SOFTHCA_", "LD_"))}
    if library:
        env["LD_LIBRARY_PATH"] = library
    return {**env, "LC_ALL": "C", **more}


def own_network():
    """The command that gives a program a network namespace of its own, whose lo is up."""
    command = ["unshare", "--net", "sh", "-c", 'PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec "$@"', "sh"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-current-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        raise tap.Skip("no network namespace of our own is to be had")
    return command


def alone_in_network():
    """Starts the test program again in a network namespace of its own, once."""
    if os.environ.pop("SOFTHCA_TEST_NETWORK", None) == "own":
        return
    os.environ["SOFTHCA_TEST_NETWORK"] = "own"
    command = own_network()
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def names(program, library):
    """The situations that a program of tests/explain has."""
    return subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": library}, capture_output=True, text=True,
                          timeout=PATIENCE).stdout.split()


class Waiting:
    """A program that says "hangs" when it has come to where the test looks at it, and goes on at a word."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.pid = self.process.pid

    def __enter__(self):
        words = self.process.stdout.readline().split()
        tap.equal(words[:1], ["hangs"], words or self.process.stderr.read())
        self.words = words[1:]
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def end(self, status=0):
        """Lets it go on, and returns what it said on stderr since."""
        _, text = self.process.communicate("\n", timeout=PATIENCE)
        tap.equal(self.process.returncode, status, text)
        return text
