#!/bin/sh
# c-files.sh - lists our C sources and headers, ended by NUL: what is formatted and checked.
cd "$(dirname "$0")/../.." || exit 1
find csrc bench examples -name build -prune -o -name target -prune -o -name 'pan.*' -prune \
  -o -type f -name '*.[ch]' -print0 2>/dev/null
exit 0
