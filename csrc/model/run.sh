#!/usr/bin/env bash
# run.sh - checks the models of the sleep protocol and of the deque, and that broken variants are rejected.
#
#   run.sh                     every check below; ends with `N passed, N failed`
#   run.sh CORE NO_ROUND33     one configuration with switches, and the shortest counter-example
#
# A check is exhaustive: a search cut short by memory, depth or time is a failure whatever it found
# until then. MODEL_JOBS (2) checks run at a time, some 80 seconds on two free cores and about
# 1 GB each. Nothing is left behind.
# Depends on: spin, gcc.   Used by: config/build/run-model.sh.   Told in: README.md.
set -u
cd "$(dirname "$0")" || exit 1
models=$PWD

# Each line: what is expected, the configuration, the switches.
#   passes         our protocol: no violation in the whole state space
#   redundant      the same, without what the switch removes
#   anything else  rejected, by the violation of this name
checks() {
  cat <<'END'
passes          CORE
passes          TEAM_ALARM
passes          SHORT
passes          RING
passes          BATCH
passes          DIRECTED
passes          INJECT
passes          JOIN
passes          ALARM
passes          TRIO
passes          TEAM
passes          DEQUE

lost_wakeup     CORE        NO_ANNOUNCE
lost_wakeup     CORE        SEEDS_JEC
redundant       INJECT      SEEDS_JEC
lost_wakeup     INJECT      SEEDS_JEC NO_STEP6
lost_wakeup     CORE        NO_ANNOUNCE_FENCE
lost_wakeup     RING        NO_ANNOUNCE_FENCE
lost_wakeup     CORE        NO_ROUND33
redundant       INJECT      NO_ROUND33
lost_wakeup     INJECT      NO_ROUND33 NO_STEP6
lost_wakeup     CORE        NO_ROUND33 NO_STEP6
redundant       INJECT      SET_LATE_IGNORED
redundant       JOIN        SET_LATE_IGNORED
lost_wakeup     CORE        BIT_AFTER_COUNT
lost_wakeup     CORE        NO_JEC_CHECK
redundant       CORE        NO_STEP6
redundant       INJECT      NO_FENCE6
lost_wakeup     INJECT      SEEDS_JEC NO_FENCE6
bad_latch       INJECT      STEP7_STORE
bad_count       INJECT      DOUBLE_DECREMENT

lost_wakeup     CORE        NO_POST_FENCE
lost_wakeup     RING        NO_POST_FENCE
lost_wakeup     JOIN        NO_POST_FENCE
lost_wakeup     ALARM       NO_POST_FENCE
lost_wakeup     CORE        NO_POSTER_ODD
lost_wakeup     BATCH       NO_BATCH_POST
bad_count       INJECT      NO_DECREMENT
bad_count       INJECT      DECREMENT_SLEEPY
bad_count       JOIN        DECREMENT_BY_BITMAP
not_run         CORE        SKIP_SLEEPY
redundant       INJECT      NO_NEXT_BIT
redundant       TRIO        NO_NEXT_BIT
redundant       TEAM        NO_NEXT_BIT
lost_wakeup     INJECT      NO_FINDER
lost_wakeup     INJECT      FINDER_LATE
lost_wakeup     INJECT      FINDER_LOOKS_FIRST

lost_wakeup     DIRECTED    NO_DIRECTED_6
lost_wakeup     DIRECTED    LOOK6_BEFORE_4
lost_wakeup     DIRECTED    SEND_WAKES_FIRST
redundant       DIRECTED    NO_DIRECTED_33

lost_wakeup     JOIN        NO_JOIN_LOOK
lost_wakeup     JOIN        NO_JOIN_FENCE
redundant       JOIN        JOIN_OWN_LATCH_FIRST
not_run         JOIN        JOIN_LATCH_STORE
use_after_free  JOIN        READ_WAITER_LATE
lost_wakeup     JOIN        NO_WAITER_CLAIM
lost_wakeup     TRIO        TASK_CLAIMS_WAITER
lost_wakeup     TRIO        WAITER_IS_INACTIVE
lost_wakeup     TEAM        NO_PASS_ON
lost_wakeup     TEAM_ALARM  NO_HELPER_CHAIN

lost_wakeup     ALARM       ALARM_CLEARS_LATE
lost_wakeup     SHORT       ALARM_CLEARS_LATE
lost_wakeup     SHORT       DEFER_WITHOUT_ARMING
lost_wakeup     SHORT       NO_POST_FENCE

run_twice       DEQUE       NO_POP_FENCE
run_twice       DEQUE       LAST_WITHOUT_CAS
END
}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# model_of CONFIGURATION
model_of() {
  if [ "$1" = DEQUE ]; then echo "$models/deque.pml"; else echo "$models/sleep.pml"; fi
}

# build OPTIONS CONFIGURATION [SWITCH...]: ./pan, in the current directory.
build() {
  local options=$1 configuration=$2 defines=(-D"$2")
  shift 2
  for switch; do defines+=(-DM_"$switch"); done
  # shellcheck disable=SC2086
  spin -a "${defines[@]}" "$(model_of "$configuration")" && gcc -w -DSAFETY -DMEMLIM=3000 $options pan.c -o pan
}

# verdict LOG: what a search found: `passes`, the name of the violation, or `cut short: ...`.
verdict() {
  local violation
  violation=$(sed -n 's/^pan:1: assertion violated *!(\([a-z_]*\)).*/\1/p' "$1")
  if [ -n "$violation" ]; then
    echo "$violation"
  elif grep -q '^pan:1: ' "$1"; then
    sed -n 's/^pan:1: //p' "$1" | head -n 1
  elif grep -Eq 'max search depth too small|out of memory|memory (limit|exhausted)|MEMLIM' "$1"; then
    echo "cut short: memory or depth"
  elif grep -q 'Search not completed' "$1" || ! grep -q 'errors: 0$' "$1" ||
    ! grep -q '^Full statespace search' "$1"; then
    echo "cut short: $(tail -n 1 "$1")"
  else
    echo passes
  fi
}

# check NUMBER EXPECTED CONFIGURATION [SWITCH...]: one line of the report.
check() {
  local number=$1 expected=$2 seen states=- expects sees optimize
  shift 2
  case $expected in
  passes | redundant) expects=passes optimize=-O1 ;;
  *) expects="rejected: $expected" optimize=-O0 ;; # ends so early that compiling takes longest
  esac
  mkdir "$work/$number" && cd "$work/$number" || return 1
  if ! build $optimize "$@" >log 2>&1; then
    seen="cannot be built: $(head -n 1 log)"
  else
    timeout 300 ./pan -m100000 -w22 >log 2>&1 || echo "ended with status $?" >>log
    seen=$(verdict log)
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log)
  fi
  case $seen in passes | cut* | cannot*) sees=$seen ;; *) sees="rejected: $seen" ;; esac
  if [ "$expects" = "$sees" ]; then echo ok; else echo FAILED; fi >"$work/$number.result"
  printf '%-6s %-11s %-23s expected %-25s seen %-25s %9s states\n' \
    "$(cat "$work/$number.result")" "$1" "${*:2}" "$expects" "$sees" "$states"
  rm -rf "${work:?}/$number"
}

if [ $# -gt 0 ]; then
  cd "$work" || exit 1
  build "-O1 -DBFS" "$@" BREADTH_FIRST || exit 1
  ./pan -w22 | grep -E '^pan:1|errors:|states, stored|not completed'
  model=$(model_of "$1") trail=$(basename "$model").trail
  [ ! -e "$trail" ] || spin -k "$trail" -p -g -D"$1" "${@/#/-DM_}" "$model"
  exit
fi

number=0
while read -r -a line; do
  [ ${#line[@]} -gt 0 ] || continue
  number=$((number + 1))
  while [ "$(jobs -rp | wc -l)" -ge "${MODEL_JOBS:-2}" ]; do wait -n; done
  check $number "${line[@]}" </dev/null &
done < <(checks)
wait

passed=$(cat "$work"/*.result | grep -c '^ok')
echo "$passed passed, $((number - passed)) failed"
[ "$passed" -eq "$number" ]
