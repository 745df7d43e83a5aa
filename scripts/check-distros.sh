#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: check-distros.sh [DISTRIBUTION…]   check-distro.sh for each, the oldest first, whose library the others try; what
# came out goes into the table of docs/conformance.md, and is printed. Those that cannot be had here say why.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
[ $# -gt 0 ] || set -- bullseye bookworm trixie sid jammy noble alma8 alma9 alma10
if [ -z "${SOFTHCA_ROOTS:-}" ]; then
    SOFTHCA_ROOTS=$(mktemp -d /var/tmp/softhca-roots-XXXXXX)
    trap 'rm -rf "$SOFTHCA_ROOTS"' EXIT
fi
export SOFTHCA_ROOTS
failed=0
for distribution in "$@"; do
    scripts/check-distro.sh "$distribution"
    case $? in
    0 | 77) ;;
    *) failed=1 ;;
    esac
done
scripts/distro-table.py --into docs/conformance.md
scripts/distro-table.py
exit $failed
