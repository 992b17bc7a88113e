#!/usr/bin/env bash
# run-fuzz.sh - runs libFuzzer programs one after another; each counts as one in `N passed, N failed`.
#
#   run-fuzz.sh PROGRAM...      build/fuzz/fuzz/fuzz_NAME, with the seeds in csrc/fuzz/corpus/NAME
#
# What a program learns stays in build/fuzz/corpus/NAME for the next run; an input that fails is in
# build/fuzz/findings, and the program given that file fails again.
# Environment: FUZZ_SECONDS, for each program (30); TP_RESULTS as for run-tests.sh.
# Depends on: common.sh, coreutils.   Used by: Makefile.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

seconds=${FUZZ_SECONDS:-30}
case "$seconds" in
  '' | *[!0-9]* | 0) die "FUZZ_SECONDS=$seconds" "Say a whole number from 1." ;;
esac
[ $# -gt 0 ] || die "no fuzz program" "Is there a csrc/fuzz/fuzz_NAME.c for ONLY=NAME?"

export ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"

log=$(mktemp) || die "cannot make a temporary file" "Is TMPDIR writable?"
trap 'rm -f "$log"' EXIT
mkdir -p build/fuzz/findings

passed=0 failed=0
for program in "$@"; do
  name=$(basename "$program")
  subject=${name#fuzz_}
  corpus=("build/fuzz/corpus/$subject")
  mkdir -p "${corpus[0]}"
  [ ! -d "csrc/fuzz/corpus/$subject" ] || corpus+=("csrc/fuzz/corpus/$subject")
  # The limit catches one that hangs outside of an input; libFuzzer itself sees one that hangs inside.
  if timeout --kill-after=10 $((seconds + 120)) "$program" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$subject-" \
    "${corpus[@]}" >"$log" 2>&1 </dev/null; then
    printf '%-28s ok, %d inputs\n' "$name" \
      "$(awk '/^stat::number_of_executed_units:/ { print $2 }' "$log")"
    passed=$((passed + 1))
  else
    printf '%-28s FAILED\n' "$name"
    grep -v -E '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|INITED)' "$log"
    failed=$((failed + 1))
  fi
done

record fuzz "$passed" "$failed" 0
summary "$passed" "$failed" 0
[ "$failed" -eq 0 ]
