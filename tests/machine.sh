#!/usr/bin/env bash
# The list of programs and packages that a machine needs, for the Makefile and for CI.
#
#   tests/machine.sh install build   install what `make venv` and `make demo` lack
#   tests/machine.sh install test    install what `make test` lacks, too
#   tests/machine.sh install nightly the same for `make nightly`
#   tests/machine.sh complete test   exit 0 where nothing is missing; print nothing
#
# `install` needs apt-get, and root or sudo. Elsewhere it prints the command that root has to run.
# It fails where nothing can be built. Tests of another missing program skip and say the reason.
set -uo pipefail

python=${PYTHON:-python3}
named=$(basename "$python") # python3.12: Debian's packages bear the interpreter's name

has() { command -v "$1" > /dev/null; }
runs() { "$python" -c "$1" 2> /dev/null; }

recent() { runs 'import sys; sys.exit(sys.version_info < (3, 11))'; }
venv() { runs 'import ensurepip, venv'; }
headers() {
    runs 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
helper() { test -e "/usr/lib/podman/$1" || test -e "/usr/libexec/podman/$1"; }
browser() { has chromium-headless-shell || has chromium || has chromium-browser; }

# Stage, probe, Debian package, the part that needs the package. A stage needs those before it, too.
list() {
    cat << END
build|recent|$named|Python 3.11 or later (make PYTHON=python3.12 ...)
build|venv|$named-venv|venv and pip for $python
build|headers|$named-dev|Python.h for $python
build|has ${CC:-cc}|gcc|a C compiler
build|has ${CXX:-c++}|g++|a C++17 compiler
test|test -e /usr/include/nlohmann/json.hpp|nlohmann-json3-dev|the NCCL plugin
test|has ccache|ccache|the same sources compiled twice
test|has ip|iproute2|hosts with limited NICs
test|has promtool|prometheus|alerts and dashboard
test|has spin|spin|the model of failover
test|has systemd-analyze|systemd|the unit of systemd
test|browser|chromium-headless-shell|the status page
test|has buildah|buildah|images
test|has catatonit|catatonit|images
test|has debootstrap|debootstrap|images
test|has iptables|iptables|images
test|has podman|podman|images
test|helper aardvark-dns|aardvark-dns|images
test|helper netavark|netavark|images
test|has runc|runc|images
nightly|has aarch64-linux-gnu-g++|g++-aarch64-linux-gnu|the tests for aarch64
nightly|has qemu-aarch64-static|qemu-user-static|the tests for aarch64
END
}

# The rows of a stage whose probe fails.
missing() {
    local stage probe package reason wanted=build
    [[ $1 == build ]] || wanted+=" test"
    [[ $1 != nightly ]] || wanted+=" nightly"
    while IFS='|' read -r stage probe package reason; do
        [[ " $wanted " != *" $stage "* ]] || eval "$probe" || echo "$stage|$package|$reason"
    done < <(list)
}

# As root. Runlevel 1: no daemon that comes with a package is started.
install_packages() {
    local known=() package
    "${elevate[@]}" apt-get update -q || return
    for package; do
        if apt-cache show "$package" > /dev/null 2>&1; then
            known+=("$package")
        else
            echo "this distribution has no package $package"
        fi
    done
    ((${#known[@]} == 0)) || "${elevate[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -q -y --no-install-recommends "${known[@]}"
}

# Sets `elevate`. Without a terminal, sudo must not ask for a password.
may_install() {
    elevate=()
    has apt-get || return
    [[ $(id -u) == 0 ]] && return
    elevate=(sudo)
    has sudo && { sudo --non-interactive true 2> /dev/null || [[ -t 0 ]] && sudo true; }
}

install() {
    local rows packages
    rows=$(missing "$1")
    [[ -n $rows ]] || return 0
    mapfile -t packages < <(cut -d'|' -f2 <<< "$rows")
    echo "this machine lacks:"
    while IFS='|' read -r _ package reason; do echo "    $package: $reason"; done <<< "$rows"
    if may_install; then
        echo "installing: ${elevate[*]} apt-get install ${packages[*]}"
        install_packages "${packages[@]}" || echo "apt-get failed"
        rows=$(missing "$1")
        [[ -z $rows ]] || echo "still missing: $(cut -d'|' -f2 <<< "$rows" | paste -sd' ')"
    else
        echo "as root: apt-get install --no-install-recommends ${packages[*]}"
    fi
    [[ -z $(missing build) ]] || { echo "nothing can be built without them" >&2; return 1; }
}

case "${1:-} ${2:-}" in
    "install build" | "install test" | "install nightly") install "$2" ;;
    "complete build" | "complete test") [[ -z $(missing "$2") ]] ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
