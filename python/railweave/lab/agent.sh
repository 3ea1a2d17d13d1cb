#!/bin/sh
# What OpenMPI calls to start a daemon on a node (`host NODE COMMAND…`) and a program as a rank (`rank COMMAND…`).
exec "$RAILWEAVE_LAB_PYTHON" "${0%/*}/own_process.py" railweave.lab.agent "$@"
