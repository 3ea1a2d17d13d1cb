#!/usr/bin/env bash
# What the engine's threads take to fill rails, from what benchmarks/gpus/pack made, in one call of at most 100 s; no GPU is used:
#   benchmarks/gpus/rails_cpu.sh FOLDER [rails_cpu.py's arguments]
# By the machine's python3. Without arguments it compares the settings of docs/engine.md, "What a byte over a rail costs".
set -uo pipefail
folder=$(realpath "$1")
shift
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
tar -C "$site" -xzf "$folder/site.tar.gz" || exit 1
export PYTHONPATH=$site LD_LIBRARY_PATH=$site/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ $# -ne 0 ] || set -- --set '' --set RAILWEAVE_UCX_TLS=tcp --set RAILWEAVE_CHUNK_BYTES=262144 \
  --set RAILWEAVE_LINK_WINDOW=16,RAILWEAVE_SLOTS_PER_WRITER=64 --set RAILWEAVE_SPIN_US=100
timeout -k 5 95 python3 "$folder/benchmarks/gpus/rails_cpu.py" "$@"
