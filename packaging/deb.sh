#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: deb.sh   Debian packages of this tree, for this release of Debian, in dist/. lintian finds no error in them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/softhca-$version
mkdir "$top"
tar --create --exclude-vcs --exclude='./build*' --exclude=./dist . | tar --extract --no-same-owner --directory "$top"
cp -r packaging/debian "$top/debian"
cat >"$top/debian/changelog" <<END
softhca ($version) unstable; urgency=medium

  * CHANGELOG.md tells what is new.

 -- SoftHCA contributors <softhca@localhost.localdomain>  $(date -R -u)
END
mkdir -p dist
(cd "$top" && dpkg-buildpackage --build=binary --unsigned-changes --unsigned-buildinfo --no-check-builddeps)
lintian --fail-on error,warning --suppress-tags dir-or-file-in-home,bogus-mail-host "$work"/*.changes || {
    echo "deb.sh: lintian refuses the packages" >&2
    exit 1
}
rm -f dist/*.deb
find "$work" -maxdepth 1 -name "*.deb" ! -name "*-dbgsym_*" -exec cp -t dist/ {} +
ls dist/*.deb
