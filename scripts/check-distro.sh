#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-distro.sh RELEASE   (trixie, sid, …)
# The tree in a fresh root of another release of Debian: both compilers without a warning, the demo, the tests that
# need nothing else, with that release's pyverbs, and its ibverbs-utils and perftest. Needs root, debootstrap and the
# mirror that apt knows; exit status 77 and the reason where one of them is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
release=${1:?usage: check-distro.sh RELEASE}

skip()
{
    echo "$*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "a root of $release needs root"
command -v debootstrap >/dev/null || skip "debootstrap is not here"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
         awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
[ -n "$mirror" ] || skip "apt knows no mirror of Debian"

work=$(mktemp -d /var/tmp/softhca-distro-XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
root=$work/root

# Its mounts and processes end with it. $1: --net for a network of its own, with nothing but lo. Not by chroot, in
# which no user may have a user namespace.
inside()
{
    local network=$1
    shift
    # shellcheck disable=SC2016,SC2086
    unshare --mount --pid --fork $network bash -c '
        set -e
        ip link set lo up
        mount --bind "$0" "$0"
        cd "$0"
        mount -t proc proc proc
        mount -t sysfs sysfs sys
        mount --rbind /dev dev
        pivot_root . mnt
        umount -l /mnt
        cd /softhca
        exec env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "$@" </dev/null
}

debootstrap --variant=minbase "$release" "$root" "$mirror" >"$work/log" 2>&1 || {
    tail -n5 "$work/log"
    skip "no root of $release from the mirror"
}
mkdir "$root/softhca"
tar --create --exclude-vcs --exclude='./build*' . | tar --extract --no-same-owner --directory "$root/softhca"
# A mirror may be a snapshot.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/softhca"
inside '' scripts/install-deps.sh build distro >"$work/log" 2>&1 || {
    tail -n20 "$work/log"
    exit 1
}

inside --net meson setup build -Dwerror=true
inside --net ninja -C build
inside --net env CC=clang meson setup build-clang -Dwerror=true
inside --net ninja -C build-clang
inside --net make demo
failed=0
inside --net meson test -C build --no-rebuild --print-errorlogs --timeout-multiplier 4 --no-suite long \
    --suite unit --suite sim --suite abi --suite tools --suite ring --suite conformance || failed=1
# Newer ones call into the vendor's library for the part numbers that the others pretend to.
inside --net tests/programs/run.py --lib build/lib --softhca build/softhca --filter 'ring ib(v)?_(?!.*known part)' || failed=1
exit $failed
