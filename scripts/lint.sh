#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# usage: lint.sh [--format]   Formatting, include arrows, citations, static analysis; --format: formatting only.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

mapfile -t files < <(git ls-files '*.c' '*.h' 2>/dev/null | grep -v '^build' ||
                     find src tools tests bench -name '*.[ch]')
status=0
clang-format --dry-run -Werror "${files[@]}" || status=1
# clang-format leaves comments as they are.
mapfile -t library < <(printf '%s\n' "${files[@]}" | grep -E '^(src|tools|include)/')
if LC_ALL=C.UTF-8 grep -nE '^.{121,}' "${library[@]}"; then
    echo "these lines are longer than 120 columns"
    status=1
fi
[ "${1-}" = --format ] && exit $status

scripts/check-arrows.py || status=1
scripts/check-descriptors.py || status=1
scripts/check-references.py || status=1
cppcheck --quiet --enable=warning,portability --inline-suppr --error-exitcode=1 --std=c11 --library=posix -Isrc \
    -j2 --suppress=missingIncludeSystem --suppress=preprocessorErrorDirective \
    --suppress=internalAstError --suppress=readdirCalled src tools || status=1
exit $status
