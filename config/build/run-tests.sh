#!/usr/bin/env bash
# run-tests.sh - runs test programs and specs one after another and counts what they report.
#
#   run-tests.sh [--suite NAME] [--build DIR] [--stress] [--no-aslr] [--preload NAME] [--valgrind]
#                [--readme DIR] [--install] [--rock] PROGRAM... spec/NAME_spec.lua...
#
# A spec runs with busted in a process of its own, so that a crash in one does not hide the others.
#
#   --suite NAME  the name in the results file
#   --build DIR   the specs use the library in it (build/release)
#   --stress      the tests' long form (TP_STRESS=1); the specs with those tagged #stress, and then without them once
#                 for each mode of spec/modes/mode.lua
#   --no-aslr     without address randomisation, where the system lets us: gcc's ThreadSanitizer
#                 dies of "unexpected memory mapping" where the kernel randomises many bits
#   --preload asan|tsan  the specs: LuaJIT is not built with the sanitizer, so its library is loaded first. What LuaJIT's
#                 own code does is not seen, what ours does is.
#   --valgrind    under memcheck, in the tests' short form (TP_QUICK=1)
#   --readme DIR  the examples of README.md as well, with the library in DIR
#   --install     the library as it is installed as well, used by programs of others
#   --rock        the Lua module as LuaRocks installs it as well
#
# Environment: TP_TEST_TIMEOUT, seconds for each program (300); TP_RESULTS, a file to which a line
# `suite passed failed skipped` is appended. The last line is `N passed, N failed`.
# Depends on: common.sh, check-readme.sh, check-install.sh, check-rock.sh, run-spec.lua, coreutils.   Used by: Makefile.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

suite="test"
build=build/release readme="" install="" rock="" preload="" modes=("")
wrap=()
exclude=(--exclude-tags=stress)
limit=${TP_TEST_TIMEOUT:-}
while [ $# -gt 0 ]; do
  case "$1" in
    --suite) suite=$2 && shift ;;
    --build) build=$2 && shift ;;
    --stress) export TP_STRESS=1 && exclude=() && modes=("" nojit collector) && limit=${limit:-1800} ;;
    --no-aslr) setarch -R true 2>/dev/null && wrap=(setarch -R) ;;
    --preload) preload=$("${CC:-gcc}" -print-file-name="lib$2.so") && shift ;;
    --valgrind)
      export TP_QUICK=1
      limit=${limit:-1800}
      wrap=(valgrind -q --fair-sched=yes --leak-check=full --error-exitcode=99
        "--errors-for-leak-kinds=definite,possible")
      ;;
    --readme) readme=$2 && shift ;;
    --install) install=1 ;;
    --rock) rock=1 ;;
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

# run_program PROGRAM: tests in C.
run_program() {
  timed "${wrap[@]}" "$1"
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
  report "$(basename "$1")" "$p" "$f" "$s" "$why"
}

# run_spec FILE MODE: one spec file, as it is or in a mode of spec/modes.
run_spec() {
  local name found environment=() tags=("${exclude[@]}")
  name=$(basename "$1" .lua)${2:+ $2}
  environment=("LUA_PATH=lua/?.lua;lua/?/init.lua;${LUA_PATH:-;}" "LUA_CPATH=$build/?.so;${LUA_CPATH:-;}")
  if [ -n "$2" ]; then
    environment[0]=LUA_PATH="spec/modes/?.lua;${environment[0]#LUA_PATH=}"
    environment+=("LUA_INIT=@spec/modes/mode.lua" "TP_SPEC_MODE=$2")
    tags=(--exclude-tags=stress)
  fi
  # LuaJIT's memory is not the sanitizer's, so what only Lua holds would count as lost. And a program may end with
  # threads at work.
  [ -z "$preload" ] || environment+=("LD_PRELOAD=$preload" "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0"
    "TSAN_OPTIONS=$TSAN_OPTIONS:report_thread_leaks=0")
  timed "${wrap[@]}" env "${environment[@]}" luajit config/build/run-spec.lua --output=plainTerminal "${tags[@]}" "$1"
  # 3 successes / 1 failure / 1 error / 1 pending : 0.002 seconds
  read -r found p f s < <(awk '/^[0-9]+ success(es)? \/ [0-9]+ failures? \/ [0-9]+ errors? \/ / {
    print 1, $1, $4 + $7, $10; found = 1; exit } END { if (!found) print 0, 0, 0, 0 }' "$log")
  why=$(reason)
  if [ "$found" -eq 0 ]; then
    f=1 why=${why:-ended before its tests did}
  elif [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then
    f=1
  elif [ "$f" -gt 0 ] && [ "$status" -lt 124 ]; then
    why=""
  fi
  report "$name" "$p" "$f" "$s" "$why"
}

# run_cases NAME COMMAND...: a script that writes `ok NAME` or `FAILED NAME` for each of its cases.
run_cases() {
  local name=$1
  shift
  timed "$@"
  read -r p f < <(awk '/^ok / { p++ } /^FAILED / { f++ } END { print p + 0, f + 0 }' "$log")
  why=""
  if [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then f=1 why=$(reason); fi
  report "$name" "$p" "$f" 0 "$why"
}

for program in "$@"; do
  if [[ $program != *.lua ]]; then run_program "$program"; fi
done
for mode in "${modes[@]}"; do
  for program in "$@"; do
    if [[ $program == *.lua ]]; then run_spec "$program" "$mode"; fi
  done
done

[ -z "$readme" ] || run_cases "README.md" config/build/check-readme.sh "$readme"
[ -z "$install" ] || run_cases "installed" config/build/check-install.sh
[ -z "$rock" ] || run_cases "rock" config/build/check-rock.sh

[ $((passed + failed)) -gt 0 ] || say "error: no test ran"
record "$suite" "$passed" "$failed" "$skipped"
summary "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
