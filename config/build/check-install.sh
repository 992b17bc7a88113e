#!/usr/bin/env bash
# check-install.sh - installs into a temporary prefix and uses the library from there, as others do.
#
# One line for each case, `ok NAME` or `FAILED NAME` after what was said. The cases: programs in C and for LuaJIT
# (csrc/test/installed), the Lua module, examples/handlers, and that uninstall leaves no file.
# Depends on: common.sh; make, CC (gcc), pkg-config, luajit, coreutils.   Used by: run-tests.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

tmp=$(mktemp -d) || die "cannot make a temporary directory" "Is TMPDIR writable?"
trap 'rm -rf "$tmp"' EXIT
root=$PWD
here=$root/csrc/test/installed
prefix=$tmp/prefix
read -r -a compiler <<<"${CC:-gcc}"
failed=0

# case_of NAME COMMAND...: one case; it passes if the command ends with 0.
case_of() {
  local name=$1
  shift
  if "$@"; then
    echo "ok $name"
  else
    echo "FAILED $name"
    failed=1
  fi
}

# make_at TARGET: LIBDIR and the like are said, so that the caller's do not lead out of the prefix.
make_at() {
  "${MAKE:-make}" --no-print-directory "$1" PREFIX="$prefix" LIBDIR="$prefix/lib" \
    INCLUDEDIR="$prefix/include" DATADIR="$prefix/share" INST_LIBDIR="$prefix/lib/lua/5.1" \
    INST_LUADIR="$prefix/share/lua/5.1" DESTDIR=
}

# prints EXPECTED COMMAND...: the command ends well within 20 s, and what it prints is like the pattern.
prints() {
  local expected=$1 output
  shift
  output=$(timeout --kill-after=5 20 "$@" 2>&1) || {
    printf 'ended with status %d: %s\n%s\n' $? "$*" "$output"
    return 1
  }
  # shellcheck disable=SC2053
  [[ $output == $expected ]] && return
  printf 'expected: %s\nprinted:  %s\n' "$expected" "$output"
  return 1
}

c_program() {
  local flags
  read -r -a flags <<<"$(pkg-config --cflags --libs threadpool)"
  "${compiler[@]}" -std=c11 -Wall -Wextra -Werror "$here/program.c" "${flags[@]}" -o program &&
    prints '0 {"text":"hello"}' ./program &&
    prints '0 {"text":"hello"}' ./program config/config
}

# The program as it was published: its {...} is no JSON, and it must come to an end all the same.
lua_as_it_stands() {
  prints '' luajit "$here/snippet.lua" &&
    prints 'ERR_INVALID_JSON: *' luajit "$here/status.lua" "$here/snippet.lua"
}

# The same with arguments. Nobody listens at port 9, so it is an error whether or not HTTP is built in.
lua_with_arguments() {
  sed 's|{\.\.\.}|{"url": "http://127.0.0.1:9/"}|' "$here/snippet.lua" >filled.lua &&
    ! cmp -s "$here/snippet.lua" filled.lua &&
    prints '' luajit filled.lua &&
    prints 'ERR_*: ?*' luajit "$here/status.lua" filled.lua
}

# The document is enough to write a client from.
client_of_the_document() {
  prints '' luajit "$here/client.lua" "$root/docs/BYTECODE.md"
}

# By the names that LuaJIT looks for below a prefix that it knows.
lua_module() {
  LUA_PATH="$prefix/share/lua/5.1/?.lua;$prefix/share/lua/5.1/?/init.lua;;" LUA_CPATH="$prefix/lib/lua/5.1/?.so;;" \
    prints 3 luajit -e 'local pool = require "threadpool".new { workers = 2 }
      print(pool:spawn(function(a, b) return a + b end, 1, 2):await())'
}

example_handlers() {
  make -s -C handlers CC="${CC:-gcc}" CFLAGS="-O2 -Werror" PKG_CONFIG_PATH="$PKG_CONFIG_PATH" &&
    timeout --kill-after=5 20 make -s -C handlers run PKG_CONFIG_PATH="$PKG_CONFIG_PATH" >printed &&
    diff handlers/expected printed
}

nothing_left() {
  local left
  left=$(find "$prefix" ! -type d)
  [ -z "$left" ] || {
    printf 'left by uninstall:\n%s\n' "$left"
    return 1
  }
}

make_at install || die "cannot install into $prefix" "The messages above say why."
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$tmp/project/config"
cp "$prefix/share/threadpool/config" "$tmp/project/config/config" ||
  die "the config file is not installed" "It belongs at share/threadpool/config."
cp -R examples/handlers "$tmp/project/handlers"
rm -f "$tmp/project/handlers/main" "$tmp/project/handlers/handlers.so"
cd "$tmp/project" || exit 1

# The example has a make of its own, with nothing of ours.
outer=${MAKEFLAGS:-} level=${MAKELEVEL:-0}
unset MAKEFLAGS MFLAGS MAKELEVEL
case_of "C program" c_program
case_of "Lua program as it stands" lua_as_it_stands
case_of "Lua program with arguments" lua_with_arguments
case_of "Lua client by docs/BYTECODE.md" client_of_the_document
case_of "Lua module" lua_module
case_of "examples/handlers" example_handlers

cd "$root" || exit 1
export MAKEFLAGS=$outer MAKELEVEL=$level
make_at uninstall || die "cannot uninstall from $prefix" "The messages above say why."
case_of "uninstall" nothing_left
[ "$failed" -eq 0 ]
