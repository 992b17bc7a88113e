#!/usr/bin/env bash
# check-readme.sh - compiles and runs the C example of README.md, and compares what it prints.
#
#   check-readme.sh BUILD_DIRECTORY      with libthreadpool.a in it
#
# What it is to print stands in the comment behind its printf. Silent if all is well.
# Depends on: common.sh; CC (gcc).   Used by: run-tests.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh
[ $# -eq 1 ] || die "no build directory named" "usage: check-readme.sh BUILD_DIRECTORY"

tmp=$(mktemp -d) || die "cannot make a temporary directory" "Is TMPDIR writable?"
trap 'rm -rf "$tmp"' EXIT

awk '/^```c$/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md >"$tmp/example.c"
[ -s "$tmp/example.c" ] || die "README.md has no C example" "It begins with a line \`\`\`c."
sed -n 's|.*printf(.*/\* *\(.*[^ ]\) *\*/.*|\1|p' "$tmp/example.c" >"$tmp/expected"
[ -s "$tmp/expected" ] || die "the example does not say what it prints" "Behind its printf: /* value */"

read -r -a compiler <<<"${CC:-gcc}"
read -r -a libraries <<<"$("${PKG_CONFIG:-pkg-config}" --libs yyjson) -ldl -lm"
"${compiler[@]}" -std=c11 -Wall -Wextra -Werror -Icsrc -pthread "$tmp/example.c" "$1/libthreadpool.a" "${libraries[@]}" \
  -o "$tmp/example" || die "the example of README.md does not compile" "The messages above say why."
"$tmp/example" >"$tmp/printed" || die "the example of README.md ended with status $?"
diff "$tmp/expected" "$tmp/printed" || die "the example of README.md prints something else (>)"
