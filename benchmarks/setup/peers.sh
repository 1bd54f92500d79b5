#!/usr/bin/env bash
# The tools that `make bench-peers` compares with, each in an environment of its own.
# vLLM's bench comes with engines_vllm.sh.
set -euo pipefail
. "$(dirname "$0")/common.sh"
only_one peers

for peer in aiperf==0.13.0 guidellm==0.8.1; do
  name=${peer%%==*}
  if ! is_done "$name" "$peer"; then
    say "$peer: making its environment"
    fresh_venv "$CACHE/venvs/$name"
    quietly "pip-$name" nice -n 19 "$CACHE/venvs/$name/bin/pip" install -q "$peer"
    quietly "$name-version" "$CACHE/venvs/$name/bin/$name" --version
    mark_done "$name" "$peer"
  fi
  say "ready: $CACHE/venvs/$name/bin/$name"
done
