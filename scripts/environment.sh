# Sourced by the scripts beside it: makes .venv when there is none and installs softkv into it, editable.
# prepare EXTRA installs softkv[EXTRA] ("" for the bare package), once per change of pyproject.toml.
# run_tests OPTIONS runs pytest in a process for each core; its stores are in memory where there is room, since none has
# to outlive the machine, and each write is synced.

cd "$(dirname "$0")/.." || exit 1

fail() { echo "$0: $*" >&2; exit 1; }

find_python() {
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "softkv needs Python 3.10 or newer, and none was found on PATH. Install one, or set PYTHON=/path/to/python3."
}

prepare() {
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python) || exit 1
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv"
        echo "making .venv with $("$python" --version)" >&2
        "$python" -m venv .venv || fail "could not make .venv"
    fi
    stamp=".venv/installed-${1:-bare}"
    if ! cmp -s pyproject.toml "$stamp"; then
        echo "installing softkv${1:+[$1]} into .venv" >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}" ||
            fail "the installation failed; the lines above say why"
        cp pyproject.toml "$stamp"
    fi
    PATH="$PWD/.venv/bin:$PATH"
    export PATH
}

run_tests() {
    # Threads of each process would wait for those of the others, and those of OpenMP turn round and round meanwhile.
    export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    if [ "$(df -Pk /dev/shm 2>/dev/null | awk 'END { print int($4 / 1e6) }')" -ge 8 ]; then
        export PYTEST_DEBUG_TEMPROOT="${PYTEST_DEBUG_TEMPROOT:-/dev/shm}"
    fi
    exec pytest -n logical --maxprocesses 8 --dist worksteal "$@"
}
