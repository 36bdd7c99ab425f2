#!/usr/bin/env bash
# Runs the same command on all workers of a Cloud TPU VM or a pod slice.
set -euo pipefail

usage() {
  cat <<'END'
Usage: [NAME=value ...] launch/tpu_vm.sh STEP [flags of rl_reason.main]

Steps:
  create   creates the TPU; with QUEUED=1 as a queued resource (its state:
           `gcloud compute tpus queued-resources describe`)
  install  copies the last commit of this checkout to all workers and installs
           it with the extra [tpu]
  run      runs rl_reason.main --distributed with the flags on all workers, and
           restarts it if a worker was stopped or lost (launch/resume.sh); run
           the same command again to resume from the last checkpoint
  delete   deletes the TPU and, with QUEUED=1, its queued resource

  export TPU=rl ZONE=us-east5-a TYPE=v6e-8 VERSION=v2-alpha-tpuv6e
  launch/tpu_vm.sh create
  launch/tpu_vm.sh install
  launch/tpu_vm.sh run --config=configs/dapo.py --workdir=/mnt/shared/dapo

Environment:
  TPU        name; default rl-reason
  ZONE       required
  TYPE       accelerator type for create; default v6e-8
  VERSION    software of the VMs for create; default v2-alpha-tpuv6e
  PROJECT    default: the project of gcloud's configuration
  QUEUED=1   create and delete through a queued resource of the same name
  SPOT=1     create spot capacity: cheaper, but preemptible
  RESTARTS   maximum number of restarts of run; default 10
  DRY_RUN=1  print the commands without running them

With several workers, --workdir must be a directory that all workers mount. The
run ends with the SSH connection: start it in tmux or screen.
END
}
case "${1-}" in -h | --help) usage; exit ;; esac
if [[ $# == 0 ]]; then usage >&2; exit 2; fi

step=$1
shift
TPU=${TPU:-rl-reason}
: "${ZONE:?is required; see launch/tpu_vm.sh --help}"
TYPE=${TYPE:-v6e-8} VERSION=${VERSION:-v2-alpha-tpuv6e}
where=("--zone=$ZONE" ${PROJECT:+"--project=$PROJECT"})
cd "$(dirname "$0")/.."

run() {
  if [[ ${DRY_RUN-} == 1 ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
tpus() { run gcloud compute tpus "$@" "${where[@]}"; }
on_workers() { tpus tpu-vm ssh "$TPU" --worker=all "--command=$1"; }

case $step in
create)
  what=("--accelerator-type=$TYPE" ${SPOT:+--spot})
  if [[ ${QUEUED-} == 1 ]]; then
    tpus queued-resources create "$TPU" "--node-id=$TPU" \
      "--runtime-version=$VERSION" "${what[@]}"
  else
    tpus tpu-vm create "$TPU" "--version=$VERSION" "${what[@]}"
  fi
  ;;
install)
  # uv installs a recent Python; the VM may have an older one.
  archive=${TMPDIR:-/tmp}/rl_reason.tar.gz
  run git archive --format=tar.gz "--output=$archive" HEAD
  tpus tpu-vm scp "$archive" "$TPU:rl_reason.tar.gz" --worker=all
  on_workers 'set -e
mkdir -p rl_reason && tar -xzf rl_reason.tar.gz -C rl_reason && cd rl_reason
python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --allow-existing --python 3.11 .venv
python3 -m uv pip install --quiet -e ".[tpu]"'
  ;;
run)
  printf -v flags ' %q' --distributed "$@"
  again="RESTARTS=${RESTARTS:-10} launch/resume.sh"
  on_workers "cd rl_reason && $again .venv/bin/python -m rl_reason.main$flags"
  ;;
delete)
  if [[ ${QUEUED-} == 1 ]]; then
    tpus queued-resources delete "$TPU" --force --quiet
  else
    tpus tpu-vm delete "$TPU" --quiet
  fi
  ;;
*)
  echo "launch/tpu_vm.sh: no step $step; see --help" >&2
  exit 2
  ;;
esac
