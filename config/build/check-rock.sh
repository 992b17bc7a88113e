#!/usr/bin/env bash
# check-rock.sh - goes a new user's way: LuaRocks puts the Lua module into a fresh tree, and a program elsewhere uses it.
#
# One line for each case, `ok NAME` or `FAILED NAME` after what was said. Works without network.
# Depends on: common.sh; luarocks, luajit, lua5.1, make, CC (gcc).   Used by: run-tests.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

tmp=$(mktemp -d) || die "cannot make a temporary directory" "Is TMPDIR writable?"
trap 'rm -rf "$tmp"' EXIT
root=$PWD
tree=$tmp/tree
failed=0

# A user's LuaRocks calls make with nothing of ours, and finds no module of ours but the installed one. It must not
# install packages: an apt-get or sudo that is called is seen.
unset MAKEFLAGS MFLAGS MAKELEVEL MODE LUA_INIT LUA_PATH LUA_CPATH LUA_PATH_5_1 LUA_CPATH_5_1
export HOME=$tmp/home
mkdir -p "$HOME" "$tmp/bin" "$tmp/project"
for command in apt-get sudo; do
  printf '#!/bin/sh\necho "%s $*" >>"%s"\nexit 1\n' "$command" "$tmp/installed" >"$tmp/bin/$command"
  chmod +x "$tmp/bin/$command"
done
export PATH=$tmp/bin:$PATH

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

# outcome STATUS PATTERN COMMAND...: the command ends so within 20 s, and what it says is like the pattern.
outcome() {
  local status=$1 expected=$2 output actual=0
  shift 2
  output=$(timeout --kill-after=5 20 "$@" 2>&1) || actual=$?
  # shellcheck disable=SC2053
  [ "$actual" -eq "$status" ] && [[ $output == $expected ]] && return
  printf 'expected status %d and: %s\nwas %d: %s\n' "$status" "$expected" "$actual" "$output"
  return 1
}

# No server is asked.
make_rock=(luarocks --lua-version=5.1 --only-server="$tmp/no-server" make)

installs() {
  rm -rf "$tree"
  "${make_rock[@]}" --tree="$tree" "rockspec/threadpool-$1.rockspec" CC="${CC:-gcc}" >"$tmp/log" 2>&1 || {
    cat "$tmp/log"
    return 1
  }
  [ ! -e "$tmp/installed" ] || {
    printf 'packages were to be installed:\n%s\n' "$(cat "$tmp/installed")"
    return 1
  }
}

# Every file of lua/ and no other is there, and the library is linked with yyjson's shared object.
is_complete() {
  diff -r lua/threadpool "$tree/share/lua/5.1/threadpool" &&
    ldd "$tree/lib/lua/5.1/threadpool/core.so" | grep -q 'libyyjson\.so'
}

readme_example() {
  awk '$0 == "```lua" { inside = 1; next } /^```/ { if (inside) exit } inside' "$root/README.md" >example.lua
  outcome 0 "$(sed -n 's|.*--> *||p' example.lua)" luajit example.lua
}

on_workers() {
  cat >mine.lua <<'LUA'
return { double = function(x) return 2 * x end }
LUA
  cat >workers.lua <<'LUA'
local threadpool = require "threadpool"
local pool = threadpool.new { workers = 2 }
print(pool:spawn(function(x)
  local inner = require "threadpool".spawn(function(y) return y + 1 end, x)
  return require "mine".double(inner:await())
end, 20):await())
LUA
  outcome 0 42 luajit workers.lua
}

error_on_purpose() {
  cat >wrong.lua <<'LUA'
local threadpool = require "threadpool"
local pool = threadpool.new { workers = 2 }
local function shout(word)
  return word:upper() .. "!"
end
local value, err = pool:spawn(shout, 12):await()
print(err)
print(err.traceback)
LUA
  outcome 0 "ERR_LUA: wrong.lua:4: attempt to index local 'word' (a number value)*wrong.lua:*submitted at wrong.lua:6*" \
    luajit wrong.lua
}

misuse() {
  cat >misuse.lua <<'LUA'
require "threadpool".new { wokers = 2 }
LUA
  outcome 1 "*misuse.lua:1: threadpool.new: unknown option 'wokers'*" luajit misuse.lua
}

# shellcheck disable=SC2016
another_lua() {
  outcome 1 '*threadpool needs LuaJIT 2.1: run it with `luajit` (this is Lua 5.1)*' lua5.1 -e 'require "threadpool"' &&
    outcome 1 '*threadpool needs LuaJIT 2.1*' lua5.1 -e 'require "threadpool.core"'
}

without_yyjson() {
  outcome 1 "*Could not find header file for YYJSON*yyjson.h*YYJSON_DIR*" \
    "${make_rock[@]}" --tree="$tmp/none" rockspec/threadpool-scm-1.rockspec YYJSON_DIR="$tmp/nowhere" || return 1
  outcome 2 "*yyjson.h not found: install yyjson (Debian: libyyjson-dev)*YYJSON_DIR=*" make rock CPPFLAGS=-nostdinc
}

nothing_left() {
  luarocks --lua-version=5.1 --tree="$tree" remove threadpool >"$tmp/log" 2>&1 || {
    cat "$tmp/log"
    return 1
  }
  local left
  left=$(find "$tree" -path '*threadpool*' ! -type d)
  [ -z "$left" ] || {
    printf 'left by luarocks remove:\n%s\n' "$left"
    return 1
  }
}

version=$(sed -n 's/^VERSION *:= *//p' Makefile)
case_of "luarocks make, without yyjson" without_yyjson
case_of "luarocks make, the released version" installs "$version-1"
case_of "luarocks make, the development" installs scm-1
case_of "all files are there" is_complete

cd "$tmp/project" || exit 1
eval "$(luarocks --lua-version=5.1 --tree="$tree" path --no-bin)" || exit 1
case_of "the example of README.md" readme_example
case_of "workers find the module, and the program's own" on_workers
case_of "an error on purpose" error_on_purpose
case_of "an option that does not exist" misuse
case_of "another Lua is refused" another_lua
cd "$root" || exit 1
unset LUA_PATH LUA_CPATH
case_of "luarocks remove" nothing_left
[ "$failed" -eq 0 ]
