#!/bin/sh
# Builds the engine's C++ tests under sanitizers and runs them all.
# Usage: run_sanitized.sh BUILD_DIR    With REDUCER_ADDRS (host:port,...) also against reducers.
set -eu
build=${1:?usage: run_sanitized.sh BUILD_DIR}
source=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)

mkdir -p "$build"
for sanitizers in address,undefined thread; do
  dir="$build/$(echo "$sanitizers" | tr , -)"
  cmake -S "$source" -B "$dir" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DORS_PYTHON=OFF \
    -DORS_ENGINE_TESTS=ON -DORS_WERROR=ON -DORS_SANITIZE="$sanitizers" >"$dir.log" 2>&1 ||
    { cat "$dir.log" >&2; exit 1; }
  cmake --build "$dir" --parallel 2
  echo "== $sanitizers"
  (cd "$dir" && TSAN_OPTIONS="halt_on_error=1 die_after_fork=0" ctest --output-on-failure)
  if [ -n "${REDUCER_ADDRS:-}" ]; then
    TSAN_OPTIONS="halt_on_error=1" "$dir/tests/engine_worker" "$REDUCER_ADDRS" 3 20
  fi
done
