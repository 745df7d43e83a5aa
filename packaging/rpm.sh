#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: rpm.sh   RPM packages of this tree, in dist/. Where rpm is not the system's own packager (Debian), what the
# packages are built with is not looked up in its database.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/SOURCES" dist
tar --create --gzip --exclude-vcs --exclude='./build*' --exclude=./dist --transform "s,^\.,softhca-$version," \
    --file "$work/SOURCES/softhca-$version.tar.gz" .
nodeps=()
rpm -q rpm >/dev/null 2>&1 || nodeps=(--nodeps)
rpmbuild -bb "${nodeps[@]}" --define "_topdir $work" --define "softhca_version $version" packaging/softhca.spec
rm -f dist/*.rpm
find "$work/RPMS" -name '*.rpm' -exec cp -t dist/ {} +
ls dist/*.rpm
