#!/usr/bin/env bash
# Runs on one machine: with virtual CPU devices, several processes, or both.
set -euo pipefail

usage() {
  cat <<'END'
Usage: [NAME=value ...] launch/local.sh [flags of rl_reason.main]

  launch/local.sh --config=configs/dapo.py:smoke
  DEVICES=4 launch/local.sh --config=configs/dapo.py:smoke --config.mesh.fsdp=2
  PROCESSES=2 DEVICES=2 launch/local.sh --config=configs/dapo.py:smoke

Environment:
  DEVICES    virtual CPU devices of each process; 0 (default): the real devices
  PROCESSES  processes on this machine, joined by jax.distributed; default 1
  PORT       port of process 0; default 29400
  PYTHON     interpreter; default python
  DRY_RUN=1  print the commands without running them
END
}
case "${1-}" in -h | --help) usage; exit ;; esac

DEVICES=${DEVICES:-0} PROCESSES=${PROCESSES:-1} PORT=${PORT:-29400}
cd "$(dirname "$0")/.."

command=("${PYTHON:-python}" -m rl_reason.main "$@")
if ((DEVICES > 0)); then
  flag=--xla_force_host_platform_device_count=$DEVICES
  command=(
    env JAX_PLATFORMS=cpu "XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }$flag"
    "${command[@]}"
  )
fi

show() {
  printf '%q ' "$@"
  echo
}

if ((PROCESSES == 1)); then
  if [[ ${DRY_RUN-} == 1 ]]; then show "${command[@]}"; exit; fi
  exec "${command[@]}"
fi

pids=()
# All processes receive SIGTERM, so that all of them save the same state.
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM EXIT
for ((i = 0; i < PROCESSES; i++)); do
  full=(
    "${command[@]}" --distributed "--coordinator=localhost:$PORT"
    "--processes=$PROCESSES" "--process=$i"
  )
  if [[ ${DRY_RUN-} == 1 ]]; then
    show "${full[@]}"
  elif ((i == 0)); then
    "${full[@]}" & pids+=($!)
  else
    "${full[@]}" >/dev/null & pids+=($!)  # prints the same; errors are shown
  fi
done
if [[ ${DRY_RUN-} == 1 ]]; then trap - EXIT; exit; fi

status=0  # the highest of all processes, as with srun
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  while kill -0 "$pid" 2>/dev/null; do  # a signal interrupted `wait` only
    code=0
    wait "$pid" || code=$?
  done
  if ((code > status)); then status=$code; fi
done
trap - EXIT
exit "$status"
