#!/bin/sh
# Runs what `cargo xtask gpu-bundle` has collected, on a machine with a GPU and without Rust.
#
#   ./run.sh                      everything
#   ./run.sh conformance bench    these parts: conformance devices bench overlap priorities requests
#                                 callers runtime
#
# Each part writes its own log into the folder OUT, ./out if that is not set, and `bench` its figures
# into bench.json there. The last lines say how each part ended; they are in summary.txt too. The
# exit code is 0 if all parts ended well.
set -u

OUT=${OUT:-out}
mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd) || exit 2
cd "$(dirname "$0")" || exit 2
: > "$OUT/summary.txt"
failed=0
# Where a GPU is expected, a test that is skipped is a test that fails. 2 expects two of them.
export SIDESTREAM_REQUIRE_CUDA="${SIDESTREAM_REQUIRE_CUDA:-1}"

say() {
    echo "$1" | tee -a "$OUT/summary.txt"
}

# run PART LOG COMMAND...: the output goes into LOG, and the errors into PART.log.
run() {
    part=$1
    log=$2
    shift 2
    if [ ! -x "$1" ]; then
        say "$part: missing from the bundle"
        failed=1
        return
    fi
    if [ "$log" = "$part.log" ]; then
        "$@" > "$OUT/$log" 2>&1
    else
        "$@" > "$OUT/$log" 2> "$OUT/$part.log"
    fi
    code=$?
    say "$part: exit code $code, $log"
    if [ "$code" -ne 0 ]; then
        failed=1
        tail -n 20 "$OUT/$part.log"
    fi
}

[ $# -gt 0 ] || set -- conformance devices bench overlap priorities requests callers runtime
for part in "$@"; do
    case $part in
        conformance) run conformance conformance.log ./conformance ;;
        devices) run devices devices.log ./sidestream devices ;;
        bench) run bench bench.json ./sidestream-bench gpu --json ;;
        overlap) run overlap overlap.log ./sidestream overlap --device cuda:0 ;;
        priorities) run priorities priorities.log ./sidestream overlap --background --device cuda:0 ;;
        requests) run requests requests.log ./sidestream bench requests --device cuda:0 ;;
        callers)
            run callers callers.log ./sidestream bench requests --closed 2048 --graphs --device cuda:0
            ;;
        runtime) run runtime runtime.log ./runtime --bench ;;
        *)
            say "there is no part $part; there are conformance, devices, bench, overlap, priorities, requests, callers and runtime"
            failed=1
            ;;
    esac
done
exit $failed
