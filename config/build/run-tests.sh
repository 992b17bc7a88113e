#!/usr/bin/env bash
# run-tests.sh - runs test programs one after another and counts what they report.
#
#   run-tests.sh [--suite NAME] [--stress] [--no-aslr] [--valgrind] [--specs] [--readme DIR] [--install]
#                PROGRAM...
#
#   --suite NAME  the name in the results file
#   --stress      the tests' long form (TP_STRESS=1)
#   --no-aslr     without address randomisation, where the system lets us: gcc's ThreadSanitizer
#                 dies of "unexpected memory mapping" where the kernel randomises many bits
#   --valgrind    under memcheck, in the tests' short form (TP_QUICK=1)
#   --specs       spec/*_spec.lua as well, with busted
#   --readme DIR  the example of README.md as well, with the library in DIR
#   --install     the library as it is installed as well, used by programs of others
#
# Environment: TP_TEST_TIMEOUT, seconds for each program (300); TP_RESULTS, a file to which a line
# `suite passed failed skipped` is appended. The last line is `N passed, N failed`.
# Depends on: common.sh, check-readme.sh, check-install.sh, coreutils.   Used by: Makefile.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

suite="test"
specs="" readme="" install=""
wrap=()
exclude=(--exclude-tags=stress)
limit=${TP_TEST_TIMEOUT:-}
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suite=$2 && shift ;;
    --stress) export TP_STRESS=1 && exclude=() && limit=${limit:-1800} ;;
    --no-aslr) setarch -R true 2>/dev/null && wrap=(setarch -R) ;;
    --valgrind)
      export TP_QUICK=1
      limit=${limit:-1800}
      wrap=(valgrind -q --fair-sched=yes --leak-check=full --error-exitcode=99
        "--errors-for-leak-kinds=definite,possible")
      ;;
    --specs) specs=1 ;;
    --readme) readme=$2 && shift ;;
    --install) install=1 ;;
    --*) die "unknown option $1" "The head of $0 lists them." ;;
    *) break ;;
  esac
  shift
done
limit=${limit:-300}

# Every finding ends the program with a status that is not 0. What the caller has set comes last
# and so wins.
# The four signals are the library's and the tests' (docs/CRASHES.md): a sanitizer's own handlers would
# turn a death by signal, which tests look for, into an exit. And its alternate stack must not be: it
# takes whichever stack it finds at a thread's end for its own, and unmaps it.
signals="handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:use_sigaltstack=0"
export ASAN_OPTIONS="detect_leaks=1:halt_on_error=1:detect_stack_use_after_return=1:$signals${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:$signals${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:$signals${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export CMOCKA_MESSAGE_OUTPUT=stdout

log=$(mktemp) || die "cannot make a temporary file" "Is TMPDIR writable?"
child=""
trap 'rm -f "$log"' EXIT
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM

passed=0 failed=0 skipped=0

# timed COMMAND...: run it with the time limit, output to the log; sets `status` and `took`.
timed() {
  local start=${EPOCHREALTIME/./}
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
  child=$!
  { wait "$child"; } 2>/dev/null # bash would write that it was killed; reason() does
  status=$?
  child=""
  took=$(((${EPOCHREALTIME/./} - start) / 1000))
}

# report NAME PASSED FAILED SKIPPED WHY: one line, and the whole output if something failed.
report() {
  local note="$2 passed"
  [ "$4" -eq 0 ] || note+=", $4 skipped"
  [ "$3" -eq 0 ] || note+=", $3 FAILED"
  [ -z "$5" ] || note+=" ($5)"
  printf '%-28s %s, %d.%03d s\n' "$1" "$note" $((took / 1000)) $((took % 1000))
  if [ "$3" -gt 0 ]; then
    echo "---------------------------------------- output of $1"
    cat "$log"
    echo "---------------------------------------- end of $1"
  fi
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
}

# Why a program that ended with $status did not end well, or nothing.
reason() {
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "killed after $limit s"
  elif [ "$status" -gt 128 ] && [ "$status" -le 192 ]; then
    echo "killed by SIG$(kill -l $((status - 128)))"
  elif [ "$status" -ne 0 ]; then
    echo "exit status $status"
  fi
}

# Prints passed, failed and skipped of the cmocka output in the log, and whether a group of tests was
# left before its end. cmocka does not count a test whose setup fails as failed, so what was announced
# and did not pass counts as that. Newer versions write the group's name before the number.
cmocka_counts() {
  awk '
    function number(s) { sub(/ test\(s\).*/, "", s); sub(/.* /, "", s); return s + 0 }
    /^\[==========\] .*Running [0-9]+ test\(s\)/   { announced = number($0); open = 1 }
    /^\[==========\] .*[0-9]+ test\(s\) run/       { all += announced; open = 0 }
    /^\[  PASSED  \] (.*: )?[0-9]+ test\(s\)/      { passed += number($0) }
    /^\[  SKIPPED \] (.*: )?[0-9]+ test\(s\)/      { skipped += number($0) }
    /^\[  FAILED  \] (.*: )?[0-9]+ test\(s\)/      { failed += number($0) }
    END {
      if (all - passed - skipped > failed) failed = all - passed - skipped
      print passed + 0, failed + 0, skipped + 0, open + 0
    }' "$log"
}

for program in "$@"; do
  timed "${wrap[@]}" "$program"
  read -r p f s open < <(cmocka_counts)
  why=$(reason)
  if [ "$open" -eq 1 ]; then
    f=$((f + 1)) why=${why:-ended before its tests did}
  elif [ $((p + f + s)) -eq 0 ]; then
    f=1 why=${why:-no test ran}
  elif [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then
    f=1 # after the tests: a crash, or a sanitizer's finding
  elif [ "$f" -gt 0 ] && [ "$status" -lt 124 ]; then
    why="" # the status only repeats the count
  fi
  report "$(basename "$program")" "$p" "$f" "$s" "$why"
done

if [ -n "$specs" ] && compgen -G 'spec/*_spec.lua' >/dev/null; then
  LUA_PATH="lua/?.lua;lua/?/init.lua;${LUA_PATH:-;}" \
    timed busted --lua=luajit --output=plainTerminal "${exclude[@]}" spec
  # 3 successes / 1 failure / 1 error / 1 pending : 0.002 seconds
  read -r p f s < <(awk '/^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? \/ / {
    print $1, $4 + $7, $10; found = 1; exit } END { if (!found) print 0, 0, 0 }' "$log")
  why=$(reason)
  if [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then
    f=1
  elif [ $((p + f + s)) -eq 0 ]; then
    f=1 why="no spec ran"
  elif [ "$f" -gt 0 ] && [ "$status" -lt 124 ]; then
    why=""
  fi
  report "busted spec" "$p" "$f" "$s" "$why"
fi

if [ -n "$readme" ]; then
  timed config/build/check-readme.sh "$readme"
  report "README.md" $((status == 0)) $((status != 0)) 0 "$(reason)"
fi

if [ -n "$install" ]; then
  timed config/build/check-install.sh
  read -r p f < <(awk '/^ok / { p++ } /^FAILED / { f++ } END { print p + 0, f + 0 }' "$log")
  why=""
  if [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then f=1 why=$(reason); fi
  report "installed" "$p" "$f" 0 "$why"
fi

[ $((passed + failed)) -gt 0 ] || say "error: no test ran"
record "$suite" "$passed" "$failed" "$skipped"
summary "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
