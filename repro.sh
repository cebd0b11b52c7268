#!/usr/bin/env bash
# From a fresh clone to a report and a tarball: environment, then workflow. ./repro.sh --help lists the options.
# This file only finds a Python; src/kernelproof/environment.py does the rest and becomes the run by exec, so that
# ending this process ends everything that it started.
set -euo pipefail
unset PYTHONHOME # of another Python than the one that is found

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

stop() { # message, next step: nothing could run, hence exit code 2
    printf 'repro.sh: %s\n  next: %s\n' "$1" "$2" >&2
    exit 2
}

new_enough() { # does this interpreter start, and is it 3.11 or newer?
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

wanted=
previous=
for argument in "$@"; do
    [[ $argument == -- ]] && break
    [[ $previous == --python ]] && wanted=$argument
    [[ $argument == --python=* ]] && wanted=${argument#--python=}
    previous=$argument
done

python=
if [[ -n $wanted ]]; then
    # A name is looked up on the PATH; a path is the caller's, who may stand in another folder.
    [[ $wanted == */* && $wanted != /* ]] && wanted=$caller/$wanted
    command -v "$wanted" >/dev/null || stop "--python $wanted: no such interpreter" "give the path of a Python 3.11 or newer"
    new_enough "$wanted" || stop "--python $wanted: $("$wanted" --version 2>&1 | head -n 1) is too old (or does not start)" \
        "give a Python 3.11 or newer"
    python=$wanted
else
    for candidate in .venv/bin/python python3 python3.13 python3.12 python3.11 python3.14; do
        command -v "$candidate" >/dev/null && new_enough "$candidate" && python=$candidate && break
    done
    if [[ -z $python ]]; then
        found=$(python3 --version 2>/dev/null) || stop "no Python found" \
            "install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv), or give --python PATH"
        stop "$found is too old: 3.11 or newer is needed" "install a newer Python, or give --python PATH"
    fi
fi

PYTHONPATH="$PWD/src" exec "$python" -P -m kernelproof.environment "$caller" "${PYTHONPATH:-}" "$@"
