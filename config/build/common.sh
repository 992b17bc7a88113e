# common.sh - what the build scripts share. Sourced, not run. Depends on: bash.
# shellcheck shell=bash

# say TEXT: a line about what the script does, on stderr, with the script's name.
say() {
  printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
}

# die WHAT REMEDY: what failed, what to do about it, end.
die() {
  say "error: $1"
  shift
  for line in "$@"; do printf '    %s\n' "$line" >&2; done
  exit 1
}

# as_root COMMAND...: run it as root, by sudo if need be.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root: $*" "Run it as root, or install sudo, and call make again."
  fi
}

# apt_get ARGUMENTS...: apt-get that asks nothing and waits for another one to end.
apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}

# record SUITE PASSED FAILED SKIPPED: append to the file that sums over several suites, if any.
record() {
  [ -z "${TP_RESULTS:-}" ] || printf '%s %d %d %d\n' "$@" >>"$TP_RESULTS"
}

# summary PASSED FAILED SKIPPED: the closing line.
summary() {
  local skipped=""
  [ "$3" -eq 0 ] || skipped=", $3 skipped"
  printf '%d passed, %d failed%s\n' "$1" "$2" "$skipped"
}
