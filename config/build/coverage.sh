#!/usr/bin/env bash
# coverage.sh - shows the line coverage of each library source, worst first.
#
#   coverage.sh BUILD_DIRECTORY      after the tests have run there
#
# Depends on: gcov (comes with gcc).   Used by: Makefile.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
objects=$1/obj

# By the .gcno files, so that a source which no test reaches is listed with 0.
find "$objects" -path "$objects/test" -prune -o -name '*.gcno' -print0 |
  xargs -0 -r "${GCOV:-gcov}" -n -r 2>/dev/null |
  awk -F "'" '
    /^File / { file = $2 }
    /^Lines executed:/ && file ~ /^csrc\// {
      split($0, a, /[:% ]+/)
      lines[file] = a[5]; hit[file] = a[3] * a[5] / 100
      file = ""
    }
    END {
      for (f in lines) {
        printf "%6.1f %%  %5d lines  %s\n", 100 * hit[f] / lines[f], lines[f], f | "sort -n"
        n += lines[f]; h += hit[f]
      }
      close("sort -n")
      if (n) printf "%6.1f %%  %5d lines  in all\n", 100 * h / n, n
    }'
