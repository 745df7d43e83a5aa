#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-arm64.sh [TEST…]   (default: the suites of make quick)
# The tree built by Debian's cross compiler with the libraries of arm64, in a fresh root of Debian 13, and its quick tests
# under QEMU's user emulation; of named ones only what they need is built. What the emulator cannot do is skipped, by the
# names in tests/portability/qemu-cannot.txt. Prints TAP.
# Needs root, debootstrap and a mirror; exit status 77 and the reason where one of them is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh
. scripts/distro.sh
distro_begin trixie
distro_with arm64 build cross emulated
distro_tree arm64
[ -e "$tree/build-arm64/build.ninja" ] || inside --net meson setup build-arm64 -Dwerror=true -Dbench=false \
    --cross-file packaging/aarch64.ini --cross-file tests/portability/qemu.ini >"$work/log" 2>&1 || {
    tail -n20 "$work/log"
    exit 1
}
[ $# -gt 0 ] || inside --net ninja -k 0 -C build-arm64 >"$work/log" 2>&1 || {
    grep -E 'error|warning:' "$work/log" | head -n40
    tail -n5 "$work/log"
    exit 1
}
inside --net tests/portability/emulated.py build-arm64 "$@"
