#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The library built for aarch64, run by qemu's user emulation: does it compile, do its layouts hold, does it lean on x86's order of
# stores? (Emulation on x86 shows the first two, and the last only where qemu reorders; the orders in the code are C11's.) Within one
# process: the emulator refuses options that sockets of the network path need.
# Usage: aarch64.sh SOURCE_ROOT [OPTION...]   options of the compiler: what the headers of libibverbs have
set -eu
root=$1
shift
cc=aarch64-linux-gnu-gcc
for tool in $cc qemu-aarch64; do
    command -v $tool >/dev/null || { echo "no $tool (apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Headers of libraries that are the same for every processor.
mkdir "$work/include"
ln -s /usr/include/infiniband "$work/include/infiniband"
ln -s /usr/include/rdma "$work/include/rdma"
ln -s /usr/include/libdeflate.h "$work/include/libdeflate.h"
# src/watch defines the public functions once more, in front of those.
sources=$(find "$root/src" "$root/abi" -name "*.c" ! -path "*/src/watch/*")
$cc -std=gnu11 -O2 -Wall -Werror -D_GNU_SOURCE -DSOFTHCA_VERSION='"smoke"' "$@" -I"$root/include" -I"$root/src" -I"$work/include" \
    -o "$work/smoke" "$root/tests/portability/smoke.c" "$root/tests/portability/libdeflate_crc32.c" $sources -lpthread
timeout 300 qemu-aarch64 -L /usr/aarch64-linux-gnu "$work/smoke"
