#!/usr/bin/env bash
# run-model.sh - runs the model check and records what its last line says.
#
# csrc/model/run.sh ends with `N passed, N failed`. Appends to TP_RESULTS as run-tests.sh does.
# Depends on: common.sh.   Used by: Makefile.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

[ -e csrc/model/run.sh ] || die "csrc/model/run.sh is missing" "Is the source tree complete?"

log=$(mktemp) || die "cannot make a temporary file" "Is TMPDIR writable?"
trap 'rm -f "$log"' EXIT
bash csrc/model/run.sh </dev/null 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

read -r passed failed < <(tail -n 1 "$log" |
  sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' | grep . || echo "0 0")
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ] || [ "$passed" -eq 0 ]; then
  failed=$((failed > 0 ? failed : 1))
  say "error: the model check ended with status $status after $passed passed"
fi
record model "$passed" "$failed" 0
[ "$failed" -eq 0 ]
