#!/usr/bin/env bash
# Tests and measures the GPU path on this machine, and writes one folder with all results.
#
#   deploy/gpu-proof.sh            all three groups: half an hour at most
#   deploy/gpu-proof.sh install    checks of the machine; builds or installs what is not there yet
#   deploy/gpu-proof.sh tests      the tests that need a GPU
#   deploy/gpu-proof.sh benches    copies, training beside gloo and NCCL, traces, scaling
#
# Each group takes ten minutes at most, and each part of a group has a limit of its own. Nothing is
# downloaded. The script needs a checkout with this file, Python 3.11 or later, and a torch for CUDA.
# Two workers on this machine stand for two hosts: they share its GPU if there is only one.
#
#   PYTHON            interpreter that has torch; default: the checkout's .venv, else python3
#   GPU_PROOF_OUT     folder of the results; default: gpu-proof
#   GPU_PROOF_WHEELS  folder with a wheel of this project, and of what it needs; default: build from
#                     the checkout, which takes a C++ compiler and the packages of [build-system].
#                     The plugin for NCCL is built in any case, by CMake and with nlohmann-json.
#
# Exit status: 0 if all ran; 1 if something is missing, which the last lines name; 2 for a wrong
# argument or a machine without torch; 3 without a CUDA device.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${GPU_PROOF_OUT:-gpu-proof}
group_seconds=600
model=(--loopback --device cuda --size 110m --workers 2 --reducers 2 --batch 16 --sequence 128)

say() { printf '%s\n' "$*"; }
fail() { # fail STATUS TEXT
    say "gpu-proof.sh: $2" >&2
    exit "$1"
}

choose_python() {
    python=${PYTHON:-}
    if [ -z "$python" ]; then
        python=$root/.venv/bin/python
        [ -x "$python" ] || python=python3
    fi
    [ ! -x "$out/venv/bin/python" ] || python=$out/venv/bin/python
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> "$out/python.log" ||
        fail 2 "$python: expected Python 3.11 or later; set PYTHON"
    # Not `import torch`: that takes seconds, and the checks do it.
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
        fail 2 "$python has no torch: install a torch for CUDA, or set PYTHON"
}

# The tree from which tests and benches run. An installed wheel needs a tree without the sources of
# the package, which would hide the compiled modules.
choose_tree() {
    for tree in "$root" "$out/tree"; do
        [ ! -d "$tree" ] || ! in_tree "$python" -c 'import reducer_client._engine' || return 0
    done 2> "$out/import.log"
    return 1
}

in_tree() (
    cd "$tree" && PYTHONPATH=$tree:$tree/client exec "$@"
)

# part NAME SECONDS COMMAND...: run a part within its limit and its group's; keep output and status.
part() {
    local name=$1 seconds=$2 began=$SECONDS status
    shift 2
    local left=$((group_began + group_seconds - SECONDS))
    [ "$seconds" -le "$left" ] || seconds=$left
    if [ "$seconds" -lt 5 ]; then
        status="no time left in the group"
    else
        say "$name ... (at most $seconds s; $out/$name.log)"
        in_tree timeout --kill-after=10 "$seconds" "$@" > "$out/$name.log" 2>&1
        case $? in
            0) status=ok ;;
            124 | 137) status="out of time after $seconds s" ;;
            *) status="failed" ;;
        esac
    fi
    say "$name: $status"
    keep "$name" "$((SECONDS - began))" "$status"
}

keep() { # keep NAME SECONDS STATUS
    printf '{"part": "%s", "seconds": %d, "status": "%s"}\n' "$@" >> "$out/parts.jsonl"
}

check_machine() {
    local status
    tree=$root in_tree timeout 120 "$python" -m bench.gpu.checks --json "$out/checks.jsonl" |
        tee "$out/checks.log"
    status=${PIPESTATUS[0]}
    case $status in
        0) keep checks 0 ok ;;
        3) fail 3 "no CUDA device: all before the first CUDA call has run, nothing after it" ;;
        *) fail 1 "the checks of the machine failed with status $status" ;;
    esac
}

install() {
    if choose_tree; then
        keep ready 0 ok
    else
        install_package
    fi
    say "ready: $python, from $tree"
    install_plugin
}

install_package() {
    tree=$root
    local what=("$root")
    [ -z "${GPU_PROOF_WHEELS:-}" ] ||
        what=(--find-links "$(realpath "$GPU_PROOF_WHEELS")" open-reduction-server)
    [ -d "$out/venv" ] || make_venv
    python=$out/venv/bin/python
    say "no client engine for $python yet"
    part ready 420 "$python" -m pip install --no-index --no-build-isolation "${what[@]}"
    mkdir -p "$out/tree"
    cp -r "$root/bench" "$root/tests" "$root/pyproject.toml" "$out/tree"
    choose_tree || fail 1 "no client engine after the installation: see $out/ready.log"
}

# The plugin for NCCL, where the tests look for it.
install_plugin() {
    local place=$tree/build/native/nccl_plugin name=libnccl-net-reducer.so
    if [ -e "$place/$name" ]; then
        keep plugin 0 ok
        return
    fi
    local PATH=${python%/*}:$PATH # where pip installs CMake
    # shellcheck disable=SC2016  # the inner shell expands them
    part plugin 180 bash -c 'cmake -S "$1" -B "$2" && cmake --build "$2" --parallel' - \
        "$root/nccl_plugin" "$out/plugin"
    mkdir -p "$place"
    cp "$out/plugin/$name" "$place" 2>> "$out/plugin.log" || say "no $name: see $out/plugin.log"
}

# A virtual environment that also sees the packages of $python, which may be in one of its own.
make_venv() {
    local packages
    "$python" -m venv "$out/venv" || fail 1 "$python cannot make a virtual environment"
    packages=$("$out/venv/bin/python" -c 'import sysconfig as s; print(s.get_path("purelib"))')
    "$python" -c 'import sys; print(*filter(None, sys.path), sep="\n")' > "$packages/beside.pth"
}

need_install() {
    choose_tree || fail 1 "the client engine cannot be imported: run gpu-proof.sh install first"
}

tests() {
    need_install
    local run=("$python" -m pytest -q -rs -m gpu -p no:cacheprovider)
    part tests-torch 300 "${run[@]}" --junitxml="$out/tests-torch.xml" \
        tests/e2e/test_ddp.py tests/e2e/test_elastic_torch_steps.py tests/e2e/test_hierarchy.py \
        tests/gpu/test_process_group.py tests/gpu/test_staging.py tests/gpu/test_staged_training.py
    part tests-nccl 290 "${run[@]}" --junitxml="$out/tests-nccl.xml" \
        tests/gpu/test_choices.py tests/gpu/test_collectives.py tests/gpu/test_faults.py \
        tests/gpu/test_jax_and_tensorflow.py tests/gpu/test_torch.py
}

benches() {
    need_install
    local training=("$python" -m bench.training "${model[@]}" --json "$out/training.jsonl")
    local ours=reducers,reducers-bf16
    part copies 60 "$python" -m bench.gpu.copies --json "$out/copies.jsonl"
    part training 200 "${training[@]}" --contenders "gloo,$ours,reducers-overlap" \
        --lanes "$lanes" --blocks 5 --steps 4
    # NCCL apart: if it fails or hangs, the others are there.
    part training-nccl 100 "${training[@]}" --contenders "nccl,reducers" --lanes "$lanes" \
        --blocks 3 --steps 2
    part trace 110 "$python" -m bench.training "${model[@]}" --contenders "gloo,$ours" \
        --lanes "$lanes" --blocks 1 --steps 1 --trace "$out/traces"
    part overlap 30 "$python" -m bench.training.overlap "$out/traces" --plot "$out/overlap.png"
    part scaling 120 "$python" -m bench.gpu.scaling --json "$out/scaling.jsonl"
}

main() {
    local groups=("$@") group
    [ $# -gt 0 ] || groups=(install tests benches)
    for group in "${groups[@]}"; do
        case $group in
            install | tests | benches) ;;
            *) fail 2 "$group: expected install, tests or benches" ;;
        esac
    done
    mkdir -p "$out" || fail 2 "$out: cannot be made"
    out=$(cd "$out" && pwd)
    # A quarter of the cores for each of the two reducers.
    lanes=$(($(nproc) / 4))
    [ "$lanes" -ge 1 ] || lanes=1
    choose_python
    check_machine
    for group in "${groups[@]}"; do
        say "== $group =="
        group_began=$SECONDS
        "$group"
    done
    tree=$root in_tree "$python" -m bench.gpu.summary "$out"
}

main "$@"
