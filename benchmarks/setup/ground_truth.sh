#!/usr/bin/env bash
# The ground truth server and the read limit, compiled where their sources are newer.
set -euo pipefail
. "$(dirname "$0")/common.sh"
only_one ground-truth

SOURCES=$(cd "$(dirname "$0")/../ground_truth" && pwd)
mkdir -p "$CACHE/bin"
for program in ground_truth_server read_limit; do
  if [ "$SOURCES/$program.c" -nt "$CACHE/bin/$program" ]; then
    command -v gcc >/dev/null || die "needs gcc (Debian: apt-get install gcc libc6-dev)"
    quietly "$program" gcc -O2 -Wall -Wextra -Werror -o "$CACHE/bin/$program.part" "$SOURCES/$program.c" -lm
    mv "$CACHE/bin/$program.part" "$CACHE/bin/$program"
    say "compiled $CACHE/bin/$program"
  fi
done
