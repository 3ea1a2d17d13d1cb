#!/usr/bin/env bash
# What `railweave topo` says of a GPU machine, against nvidia-smi, NCCL and hwloc there, field by field. Needs NVIDIA GPUs and libnccl.so.2.
# usage: live.sh [FOLDER]   RAILWEAVE and PYTHON name the command and an interpreter that has it; TORCH_PYTHON one that finds NCCL.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out/machine-live}
RAILWEAVE=${RAILWEAVE:-.venv/bin/railweave}
PYTHON=${PYTHON:-.venv/bin/python}
TORCH_PYTHON=${TORCH_PYTHON:-python3}
mkdir -p "$out"

echo "== topo, live"
for _ in 1 2 3; do
  begin=$(date +%s%N)
  $RAILWEAVE topo > "$out/topo.txt" 2> "$out/topo.err" || { cat "$out/topo.err"; exit 1; }
  echo "railweave topo: $((($(date +%s%N) - begin) / 1000000)) ms"
done
cat "$out/topo.txt" "$out/topo.err"

echo "== record, replay"
$RAILWEAVE topo --record "$out/machine.tar.zst"
$RAILWEAVE topo --json > "$out/live.json"
$RAILWEAVE topo --svg "$out/machine.svg"
$RAILWEAVE topo --from "$out/machine.tar.zst" --json > "$out/replayed.json"

echo "== what other tools say"
nvidia-smi topo -m > "$out/topo-m.txt"
nvidia-smi --query-gpu=index,pci.bus_id,name,compute_cap,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm --format=csv,noheader,nounits > "$out/gpus.csv"
$RAILWEAVE topo --nccl-xml "$out/exported.xml"
$RAILWEAVE topo --lint "$out/exported.xml"

echo "== NCCL: its own topology, then ours"
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH,INIT
NCCL_TOPO_DUMP_FILE="$out/nccl-own.xml" timeout 60 "$TORCH_PYTHON" "$here/nccl_init.py" > "$out/nccl-own.log" 2>&1 || tail -5 "$out/nccl-own.log"
NCCL_TOPO_FILE="$out/exported.xml" NCCL_TOPO_DUMP_FILE="$out/nccl-read.xml" timeout 60 "$TORCH_PYTHON" "$here/nccl_init.py" > "$out/nccl-read.log" 2>&1 ||
  tail -5 "$out/nccl-read.log"

echo "== field by field"
$PYTHON "$here/compare.py" "$out"
