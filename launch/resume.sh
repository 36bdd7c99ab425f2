#!/usr/bin/env bash
# Restarts a command as long as it ends with an exit code from which it resumes.
set -euo pipefail

usage() {
  cat <<'END'
Usage: [NAME=value ...] launch/resume.sh COMMAND [argument ...]

  launch/resume.sh python -m rl_reason.main --config=configs/dapo.py

Exit codes 143 (stopped by a signal) and 175 (another process was lost) restart
the command; any other exit code ends this script. A signal to this script stops
the command for good.

Environment:
  RESTARTS  maximum number of restarts; default 10
  PAUSE     seconds before a restart, in which lost processes end; default 35
END
}
case "${1-}" in -h | --help) usage; exit ;; esac
if [[ $# == 0 ]]; then usage >&2; exit 2; fi

trap : PIPE  # a reader may have ended; commands get the default
stopped=''
trap 'stopped=1; kill -TERM "${!-}" 2>/dev/null || true' HUP INT TERM
for ((left = ${RESTARTS:-10}; ; left--)); do
  "$@" &
  while true; do
    status=0
    wait "$!" || status=$?
    # A signal interrupts `wait` only.
    kill -0 "$!" 2>/dev/null || break
  done
  if [[ $stopped || $left -le 0 || ! $status =~ ^(143|175)$ ]]; then break; fi
  echo "exit code $status: starts again, $left restarts are left" >&2 || true
  sleep "${PAUSE:-35}"
  if [[ $stopped ]]; then break; fi
done
exit "$status"
