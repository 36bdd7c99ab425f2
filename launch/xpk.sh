#!/usr/bin/env bash
# Runs on TPU slices of a GKE cluster, by xpk (pip install xpk).
set -euo pipefail

usage() {
  cat <<'END'
Usage: [NAME=value ...] launch/xpk.sh STEP [flags of rl_reason.main]

Steps:
  image    builds launch/Dockerfile for TPUs and pushes it to IMAGE
  run      creates a workload that runs rl_reason.main on every host
  delete   deletes the workload

  export CLUSTER=my-cluster IMAGE=us-docker.pkg.dev/my-project/my/rl_reason:tpu
  launch/xpk.sh image
  STORAGE=my-bucket launch/xpk.sh run --config=configs/dapo.py \
    --workdir=/my-bucket/dapo

Environment:
  CLUSTER    required; created by `xpk cluster create`
  IMAGE      required by image and run; a registry that the cluster can read
  WORKLOAD   name; default rl-reason
  TYPE       TPU type of a slice; default v6e-8
  SLICES     number of slices; default 1. The slow network between slices is
             for data parallelism: configs with mesh.fsdp -1, such as
             configs/dapo_qwen.py, need --config.mesh.data=SLICES
  STORAGE    storage created by `xpk storage`, mounted on every host; a bucket
             needs --mount-options=implicit-dirs,rename-dir-limit=10000
  RESTARTS   restarts after a preemption; default 10
  PROJECT    default: the project of gcloud's configuration
  ZONE       default: the zone of gcloud's configuration
  DRY_RUN=1  print the commands without running them

--workdir must be a directory on STORAGE: all hosts write to it, and a preempted
workload resumes from the last checkpoint there.
END
}
case "${1-}" in -h | --help) usage; exit ;; esac
if [[ $# == 0 ]]; then usage >&2; exit 2; fi

step=$1
shift
: "${CLUSTER:?is required; see launch/xpk.sh --help}"
cd "$(dirname "$0")/.."

run() {
  if [[ ${DRY_RUN-} == 1 ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
workload() {
  run xpk workload "$@" "--workload=${WORKLOAD:-rl-reason}" \
    "--cluster=$CLUSTER" ${PROJECT:+"--project=$PROJECT"} ${ZONE:+"--zone=$ZONE"}
}

case $step in
image)
  : "${IMAGE:?is required; see launch/xpk.sh --help}"
  # root: a pod raises its limit of locked memory before it opens a TPU.
  run docker build -f launch/Dockerfile -t "$IMAGE" --build-arg DEVICE=tpu \
    --build-arg RUN_AS=root .
  run docker push "$IMAGE"
  ;;
run)
  : "${IMAGE:?is required; see launch/xpk.sh --help}"
  printf -v command ' %q' python -m rl_reason.main --distributed "$@"
  # A process that has saved its state after SIGTERM exits with 143, and a process
  # that lost another process with 175; xpk restarts on both. Saving takes longer
  # than the default grace period of 30 s.
  workload create "--tpu-type=${TYPE:-v6e-8}" "--num-slices=${SLICES:-1}" \
    "--docker-image=$IMAGE" ${STORAGE:+"--storage=$STORAGE"} \
    "--max-restarts=${RESTARTS:-10}" --termination-grace-period-seconds=300 \
    "--command=cd /rl_reason &&$command"
  ;;
delete)
  workload delete
  ;;
*)
  echo "launch/xpk.sh: no step $step; see --help" >&2
  exit 2
  ;;
esac
