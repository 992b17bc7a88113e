#!/usr/bin/env bash
# check-readme.sh - runs the examples of README.md in C and in Lua, and compares what they print.
#
#   check-readme.sh BUILD_DIRECTORY      with libthreadpool.a and threadpool/core.so in it
#
# What they are to print stands beside: in C in the comment behind printf, in Lua behind `-->`. One line for each example,
# `ok NAME`, or `FAILED NAME` after what was said.
# Depends on: common.sh; CC (gcc), pkg-config, luajit.   Used by: run-tests.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh
[ $# -eq 1 ] || die "no build directory named" "usage: check-readme.sh BUILD_DIRECTORY"

tmp=$(mktemp -d) || die "cannot make a temporary directory" "Is TMPDIR writable?"
trap 'rm -rf "$tmp"' EXIT
failed=0

# blocks LANGUAGE: the code blocks of README.md, one file each, named in $tmp/LANGUAGE-1...
blocks() {
  awk -v language="$1" -v prefix="$tmp/$1-" '
    $0 == "```" language { file = prefix (++n); next }
    /^```/ { file = "" }
    file { print >file }' README.md
}

# example NAME COMMAND...: it ends well within 20 s, and has printed what stands in the file $tmp/expected.
example() {
  local name=$1
  shift
  if [ ! -s "$tmp/expected" ]; then
    echo "the example does not say what it prints"
  elif timeout --kill-after=5 20 "$@" >"$tmp/printed" && diff "$tmp/expected" "$tmp/printed"; then
    echo "ok $name"
    return
  fi
  echo "FAILED $name"
  failed=1
}

blocks c
blocks lua
[ -s "$tmp/c-1" ] || die "README.md has no C example" "It begins with a line \`\`\`c."
[ -s "$tmp/lua-1" ] || die "README.md has no Lua example" "It begins with a line \`\`\`lua."

read -r -a compiler <<<"${CC:-gcc}"
read -r -a libraries <<<"$("${PKG_CONFIG:-pkg-config}" --libs yyjson) -ldl -lm"
for file in "$tmp"/c-*; do
  sed -n 's|.*printf(.*/\* *\(.*[^ ]\) *\*/.*|\1|p' "$file" >"$tmp/expected"
  mv "$file" "$tmp/example.c"
  "${compiler[@]}" -std=c11 -Wall -Wextra -Werror -Icsrc -pthread "$tmp/example.c" "$1/libthreadpool.a" \
    "${libraries[@]}" -o "$tmp/example" || die "the C example of README.md does not compile" "The messages above say why."
  example "C example" "$tmp/example"
done
for file in "$tmp"/lua-*; do
  sed -n 's|.*--> *||p' "$file" >"$tmp/expected"
  example "Lua example" env LUA_PATH="lua/?.lua;lua/?/init.lua;;" LUA_CPATH="$1/?.so;;" luajit "$file"
done
[ "$failed" -eq 0 ]
