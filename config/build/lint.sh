#!/usr/bin/env bash
# lint.sh - checks on the sources; each counts as one in `N passed, N failed`.
#
#   lint.sh LIBRARY "PREPROCESSOR FLAGS" "LAYERS" VERSION
#
# Two analysers, because each is blind where the other sees: clang's follows memory through an atomic
# exchange to its use after free, cppcheck sees a null pointer that came from an atomic load.
# Depends on: common.sh, c-files.sh, check-includes.sh, generate-tables.sh, generate-cdef.sh; clang-format, clang-tidy, cppcheck, nm;
# where present, luacheck and shellcheck.   Used by: Makefile.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh
library=$1 flags=$2 layers=$3 version=$4

passed=0 failed=0

# check NAME COMMAND...: passes if the command is silent and ends with 0.
check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1) && [ -z "$output" ]; then
    printf '%-28s ok\n' "$name"
    passed=$((passed + 1))
  else
    printf '%-28s FAILED\n%s\n' "$name" "$output"
    failed=$((failed + 1))
  fi
}

formatting() {
  config/build/c-files.sh | xargs -0 -r clang-format --dry-run -Werror
}

# The library's sources, ended by NUL.
library_sources() {
  local layer
  for layer in $layers; do
    [ ! -d "csrc/$layer" ] || find "csrc/$layer" -name '*.c' -print0
  done
}

# One file a process, so that they run side by side. What is left out is clang-tidy's own statistics.
clang_tidy() {
  # shellcheck disable=SC2016
  library_sources |
    xargs -0 -r -n 1 -P "$(nproc)" sh -c 'clang-tidy --quiet "$1" -- '"$flags"' 2>&1' sh |
    grep -v -E '^([0-9]+ (warnings?|errors?)( and [0-9]+ errors?)? (generated|treated as errors?)\.?|Suppressed .*|Use -header-filter.*)$'
  [ "${PIPESTATUS[1]}" -eq 0 ]
}

cpp_check() {
  # shellcheck disable=SC2086
  library_sources | xargs -0 -r cppcheck --quiet --error-exitcode=1 --inline-suppr \
    -j "$(nproc)" --enable=warning,portability ${flags/-std=/--std=}
}

# Only the public names leave the library, and the one that `require "threadpool.core"` looks for.
symbols() {
  nm -D --defined-only "$library" | awk '$NF !~ /^(threadpool|symbol)_/ && $NF != "luaopen_threadpool_core" {
    print "exported, but not threadpool_*, symbol_* or luaopen_threadpool_core: " $NF; bad = 1 } END { exit bad }'
}

# The rockspec of the release is the one of the development but for its version and where it comes from.
rockspecs() {
  local development=rockspec/threadpool-scm-1.rockspec released=rockspec/threadpool-$version-1.rockspec
  [ -e "$released" ] || {
    echo "$released is missing: VERSION in the Makefile is $version"
    return 1
  }
  diff <(sed 's/"scm-1"/"VERSION"/; s/branch = ".*"/REVISION/' "$development") \
    <(sed "s/\"$version-1\"/\"VERSION\"/; s/tag = \"v$version\"/REVISION/" "$released")
}

# Silent when all is well: it says how much there was even then.
lua_check() {
  local output
  output=$(luacheck -qq . 2>&1) || {
    echo "$output"
    return 1
  }
}

shell_scripts() {
  shellcheck -x config/build/*.sh .ci/run
}

check "format (clang-format)" formatting
check "include directions" config/build/check-includes.sh "$layers"
check "exported symbols" symbols
check "rockspecs" rockspecs
check "generated tables" config/build/generate-tables.sh --check
check "generated cdef.lua" config/build/generate-cdef.sh --check
check "analysis (clang-tidy)" clang_tidy
check "analysis (cppcheck)" cpp_check
if command -v shellcheck >/dev/null; then check "shell scripts (shellcheck)" shell_scripts; fi
if [ -e .luacheckrc ]; then check "Lua (luacheck)" lua_check; fi

record lint "$passed" "$failed" 0
summary "$passed" "$failed" 0
[ "$failed" -eq 0 ]
