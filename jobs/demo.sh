#!/bin/bash
# What `make demo` shows: a deployment on this machine, from start to end. Usage: demo.sh [PYTHON]
set -euo pipefail

python=${1:-python3}
here=$(cd "$(dirname "$0")" && pwd)
out=$(dirname "$here")/demo-out
name=demo

exahpc() { "$python" -m exahpc.cli "$@"; }
show() {
    printf '\n\033[1m$ exahpc %s\033[0m\n' "$*"
    exahpc "$@"
}
cleanup() {
    code=$?
    trap - EXIT
    if [ -n "${started:-}" ]; then
        [ "$code" = 0 ] || exahpc logs "$name" --lines 30 || true
        show down "$name" --seconds 10 || code=$?
    fi
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

rm -rf "$out" && mkdir -p "$out"
started=1
show up "$here/laptop.toml" --name "$name"
show chat "$name" "Why is the sky blue? Answer in two sentences." --max-tokens 80
show batch run "$here/sample.jsonl" --deployment "$name" -o "$out/results.h5"
show batch export "$out/results.h5" -o "$out/results.jsonl"
show status "$name"

printf '\nThe answers are in %s and %s; the first three:\n' "$out/results.h5" "$out/results.jsonl"
head -n 3 "$out/results.jsonl" | "$python" -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    text = row["response"]["body"]["choices"][0]["message"]["content"]
    print("  {}: {}".format(row["custom_id"], " ".join(text.split())))'
