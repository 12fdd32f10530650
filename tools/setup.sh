#!/usr/bin/env bash
# Make the virtual environment that the Makefile uses: find a Python, create the environment, let uv install the
# hash-locked requirements and this project; with a second word `cluster`, `browser` or `biotorch`, what a Dask cluster,
# the tests in a browser or those of the audit need (requirements-<word>.lock, which lists all of it). No sudo.
# Every way to fail ends in one sentence.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
needed_gb=7 # torch comes with its CUDA libraries
log=$venv/setup.log

stop() {
    echo "set-up stopped: $*" >&2
    exit 1
}

# $PYTHON if given, else the first of the usual names that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.13 python3.11 python3.14 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    local found
    found=$(${PYTHON:-python3} --version 2>/dev/null || echo "none")
    stop "needs Python 3.11 or newer, found ${found#Python }; install one, or name it: make setup PYTHON=/path/to/python3.12"
}

check_disk() {
    local free_gb
    free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    ((free_gb >= needed_gb)) || stop "needs $needed_gb GB of free disk for the Python packages, this disk has $free_gb GB"
}

# A sign of life every few seconds.
tick() {
    local waited=0
    while sleep 8 >/dev/null 2>&1; do
        waited=$((waited + 8))
        echo "  $1: $waited s$(arrived "$waited")"
    done
}

# How much of a download is there after so many seconds, as far as uv's own lines and its unfinished files tell.
arrived() {
    local cache under_way=0
    cache=$("$venv/bin/uv" cache dir 2>/dev/null) && under_way=$(du -scm "$cache"/.tmp* 2>/dev/null | awk 'END { print $1 + 0 }')
    awk -v waited="$1" -v under_way="$under_way" -v packing=2.2 '
        /^Downloading / { size = $3; gsub(/[()]/, "", size); mb = size * 1.05; if (size ~ /GiB/) mb *= 1024; whole += of[$2] = mb }
        /^ *Downloaded / { done += of[$2]; delete of[$2] }
        /^Prepared / { prepared = 1 }
        END {
            if (prepared) { printf ", all downloaded; compiling"; exit }
            if (!whole) exit
            done += (under_way / packing < whole - done) ? under_way / packing : whole - done
            printf ", %d of %d MB downloaded", done, whole
            if (done) printf ", about %d s left", waited * (whole - done) / done
        }' "$log" 2>/dev/null || true
}

# Run with nothing but signs of life; on failure say what was being done, and why it failed as far as the log tells.
try() {
    local what=$1 ticker failed=0
    shift
    tick "$what" &
    ticker=$!
    "$@" >"$log" 2>&1 || failed=1
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    ((failed)) || return 0
    if grep -q "No space left" "$log"; then
        stop "the disk filled up while $what; free $needed_gb GB and run make setup again"
    elif grep -qiE "hash(es)? mismatch|do not match the hashes" "$log"; then
        stop "a downloaded package is not the one that requirements.lock names, while $what; see $log"
    elif grep -qiE "invalid peer certificate|CERTIFICATE_VERIFY_FAILED" "$log"; then
        stop "the package index shows a certificate that is not known here, while $what; where a company's own is needed: make setup SSL_CERT_FILE=/path/to/it.pem"
    elif grep -qiE "dns error|resolution|resolve host|connection|connect error|timed out|unreachable|No matching distribution" "$log"; then
        stop "no network (or no package index) while $what; run make setup again when there is one; see $log"
    fi
    stop "$what failed: $(grep -v '^ *$' "$log" | tail -n 1) (all of it: $log)"
}

# A lock names every package there is to install. Compiled now, once: otherwise every start of a kernel or a worker may
# compile torch anew. Where a company's own certificate stands between here and the package index, only the system knows it.
install() {
    local uv=("$venv/bin/uv" pip install --python "$venv/bin/python" --compile-bytecode --no-deps --require-hashes -r "$@")
    "${uv[@]}" || { grep -q "invalid peer certificate" "$log" && UV_SYSTEM_CERTS=1 "${uv[@]}"; }
}

extra=${2:-}
if [[ -n $extra ]]; then
    try "installing requirements-$extra.lock" install "requirements-$extra.lock" --no-build-isolation # setuptools is there
    touch "$venv/.$extra"
    exit
fi

python=$(find_python)
compgen -G "$venv/lib/python3*/site-packages/torch/version.py" >/dev/null || check_disk

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    mkdir -p "$venv"
    try "making $venv (on Debian and Ubuntu this needs the package python3-venv)" "$python" -m venv "$venv"
fi

echo "installing the locked requirements into $venv (about 3 GB to download, a minute or two on a good line)"
uv_lock=$venv/uv.lock.txt # uv itself is locked too: its lines of requirements.lock
awk '/^uv==/ { on = 1 } on { print; if (!/\\$/) exit }' requirements.lock >"$uv_lock"
try "getting uv" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --require-hashes -r "$uv_lock"
try "installing requirements.lock" install requirements.lock
try "installing creditaudit" "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --offline -e .
"$venv/bin/python" -c 'import torch, torchvision, creditaudit' || stop "the installed torch does not import"
touch "$venv/.complete"
echo "ready: $("$venv/bin/python" -c 'import platform, torch; print("Python", platform.python_version(), "· torch", torch.__version__)')"
