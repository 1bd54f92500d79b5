# What the set-up scripts share: where the cache is, how a step says it is done, how a script ends.
#
# Everything fetched or built goes to $CACHE, outside the tree, so that a clean checkout finds it again.
# A finished step leaves a mark that holds its versions; a step whose mark says the same is skipped, a
# step that was interrupted has no mark and starts over. Sourced by bash with `set -euo pipefail`.

CACHE=${TOKENSWARM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tokenswarm}
mkdir -p "$CACHE/marks" "$CACHE/logs" "$CACHE/downloads"

say() { printf '[%s] %s\n' "$(basename "$0" .sh)" "$*" >&2; }

die() {
  say "failed: $*"
  exit 1
}

# Runs a command quietly: its output goes to a log, and the reason to fail is one line that names the log.
quietly() { # NAME COMMAND...
  local step=$1 log="$CACHE/logs/$1.log"
  shift
  "$@" >"$log" 2>&1 || die "$step: $(grep -v '^[[:space:]]*$' "$log" | tail -n 1) (log: $log)"
}

# One installer at a time for a name: two `make` runs side by side wait for each other.
only_one() { # NAME
  exec 9>"$CACHE/$1.lock"
  flock -n 9 || {
    say "another run is at it, waiting"
    flock 9
  }
}

is_done() { [ -e "$CACHE/marks/$1" ] && [ "$(cat "$CACHE/marks/$1")" = "$2" ]; } # NAME VERSIONS

mark_done() { printf '%s\n' "$2" >"$CACHE/marks/$1"; } # NAME VERSIONS

# The first of python3, python3.12, python3.11 that these wheels exist for.
find_python() {
  local candidate
  for candidate in "${TOKENSWARM_PYTHON:-python3}" python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "needs Python 3.11 or 3.12; name one with TOKENSWARM_PYTHON=/path/to/python3.12"
}

fresh_venv() { # FOLDER
  local python
  python=$(find_python)
  rm -rf "$1"
  quietly venv "$python" -m venv "$1"
}
