#!/bin/sh
# generate-cdef.sh - writes lua/threadpool/cdef.lua, what LuaJIT's FFI is told of the C library, from the headers.
#
#   generate-cdef.sh           rewrite the file
#   generate-cdef.sh --check   change nothing; if it would change, show how and end with 1
#
# threadpool_fork.h is left out: it is inline C. The preprocessor sees no header of the system, so the text is the same
# everywhere. Depends on: a C preprocessor (CC), awk, diff.   Used by: Makefile, lint.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
file=lua/threadpool/cdef.lua
headers="csrc/threadpool_errors.h csrc/threadpool.h csrc/threadpool_parallel.h csrc/threadpool_vector.h"

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

fail() {
  echo "generate-cdef: error: $1" >&2
  exit 1
}

for header in csrc/threadpool*.h; do
  case " $headers csrc/threadpool_fork.h " in
    *" $header "*) ;;
    *) fail "$header is new: add it to the list in $0, or say there why not" ;;
  esac
done

abi=$(sed -n 's/^#define THREADPOOL_ABI \([0-9][0-9]*\)$/\1/p' csrc/threadpool.h)
[ -n "$abi" ] || fail "csrc/threadpool.h has no line \"#define THREADPOOL_ABI number\""

# shellcheck disable=SC2086
sed '/^ *# *include/d' $headers >"$tmp/header.c" || exit 1
# CC may hold options.
# shellcheck disable=SC2086
${CC:-cc} -E -P -std=c11 -D'__attribute__(x)=' "$tmp/header.c" >"$tmp/plain.c" || fail "the preprocessor failed"

# One declaration a line; members of a structure on lines of their own, as those of an enum that is long.
declarations() {
  tr '\n' ' ' <"$tmp/plain.c" | awk '
    { gsub(/[ \t]+/, " "); gsub(/ ;/, ";"); text = $0 }
    END {
      depth = 0; line = ""
      for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        line = line c
        if (c == "{") depth++
        if (c == "}") depth--
        if (depth == 0 && c == ";") { sub(/^ +/, "", line); put(line); line = "" }
      }
      if (line ~ /[^ ]/) { print "left over: " line >"/dev/stderr"; exit 1 }
    }
    function put(s,   n, part, k, head, tail, separator) {
      if (length(s) <= 100 || !match(s, /[{].*[}]/)) { print s; return }
      head = substr(s, 1, RSTART); tail = substr(s, RSTART + RLENGTH - 1)
      separator = s ~ /enum/ ? "," : ";"
      print head
      n = split(substr(s, RSTART + 1, RLENGTH - 2), part, separator)
      for (k = 1; k <= n; k++) {
        sub(/^ +/, "", part[k]); sub(/ +$/, "", part[k])
        if (part[k] != "") print "  " part[k] separator
      }
      print tail
    }'
}
declarations >"$tmp/text" || fail "what the preprocessor wrote was not understood"
grep -q '^int threadpool_abi(void);$' "$tmp/text" || fail "threadpool_abi is not among the declarations"

{
  echo "-- Generated from csrc/threadpool*.h by config/build/generate-cdef.sh: do not edit."
  echo "-- luacheck: no max line length"
  echo
  echo "return {"
  echo "  abi = $abi,"
  echo "  text = [["
  cat "$tmp/text"
  echo "]],"
  echo "}"
} >"$tmp/cdef.lua"

if [ "${1:-}" = --check ]; then
  diff -u $file "$tmp/cdef.lua" && exit 0
  fail "$file is not what the headers say: run config/build/generate-cdef.sh"
fi
cmp -s "$tmp/cdef.lua" $file || cat "$tmp/cdef.lua" >$file
