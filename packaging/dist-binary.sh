#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: dist-binary.sh [x86_64] [aarch64]
# dist/softhca-VERSION-linux-ARCH.tar.gz: unpacked anywhere, its bin/softhca runs. Built in a root of Debian 11, so that
# glibc 2.28 or newer will do, which RHEL 8 has. Needs root, debootstrap and a mirror (scripts/distro.sh), as SOFTHCA_ROOTS says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/distro.sh
. scripts/distro.sh
[ $# -gt 0 ] || set -- x86_64 aarch64
oldest=GLIBC_2.28
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
mkdir -p dist

distro_begin bullseye

for architecture in "$@"; do
    options=(--prefix /usr/local --libdir lib --buildtype release -Dstrip=true -Dtests=false -Dbench=false)
    case $architecture in
    x86_64) distro_with binary build screen ;;
    aarch64)
        distro_with cross build cross
        options+=(--cross-file packaging/aarch64.ini)
        ;;
    *) echo "dist-binary.sh: no architecture '$architecture'" >&2; exit 2 ;;
    esac
    name=softhca-$version-linux-$architecture
    distro_tree package
    rm -rf "$tree/build-dist"
    inside --net meson setup build-dist "${options[@]}" >"$work/log" 2>&1 &&
        inside --net ninja -C build-dist >>"$work/log" 2>&1 &&
        inside --net env DESTDIR=/softhca/build-dist/stage meson install -C build-dist --no-rebuild >>"$work/log" 2>&1 || {
        tail -n30 "$work/log"
        exit 1
    }
    rm -rf "${work:?}/$name"
    cp -a "$tree/build-dist/stage/usr/local" "$work/$name"
    install -D -m 644 -t "$work/$name/share/doc/softhca" README.md SECURITY.md CHANGELOG.md docs/*.md LICENSES/*
    # One tree makes one file: its own times, owners and order are nobody's.
    tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="$(git log -1 --format=%cI 2>/dev/null || date -I)" \
        "$name" | gzip -9n >"dist/$name.tar.gz"
    (cd dist && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
    # What the loader will ask of a machine.
    newest=$(find "$work/$name" -type f \( -name '*.so*' -o -name softhca \) -exec objdump -T {} + 2>/dev/null |
        grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n1)
    [ "$(printf '%s\n' "$newest" "$oldest" | sort -V | tail -n1)" = "$oldest" ] || {
        echo "dist/$name.tar.gz asks for $newest, and is to run with $oldest"
        exit 1
    }
    echo "dist/$name.tar.gz: $(stat -c %s "dist/$name.tar.gz") bytes, asks for ${newest:-?}"
done
