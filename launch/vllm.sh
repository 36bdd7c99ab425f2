#!/usr/bin/env bash
# Starts a vLLM server that samples for a run (rollout.engine.name = "vllm").
set -euo pipefail

usage() {
  cat <<'END'
Usage: [NAME=value ...] launch/vllm.sh DIR [flag of vLLM ...]

  launch/vllm.sh runs/sft/export/policy --port=8000

Then a run with rollout.engine.name "vllm" and its argument model "policy"
samples there (docs/scaling.md, External engines).

DIR is a model as transformers saves it. Everybody who reaches the port may
change the weights: keep it on 127.0.0.1, the default, or behind a firewall.

Environment:
  PYTHON  of the environment that has vLLM, which needs no rl_reason;
          default python
  NAME    under which the server serves the model; default policy
  DTYPE   of the weights; default float32: the trainer's precision
  DRY_RUN 1 prints the command
On a machine without a GPU:
  VLLM_CPU_KVCACHE_SPACE        GiB of the cache; default 1
  VLLM_CPU_OMP_THREADS_BIND     cores; default nobind
END
}
case "${1-}" in -h | --help) usage; exit ;; esac
if [[ $# == 0 ]]; then usage >&2; exit 2; fi

dir=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
# The routes of an update, and the module next to this script.
export VLLM_SERVER_DEV_MODE=1
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
# A prompt that is read in parts, of a request with a seed, ends a vLLM (0.32) on
# CPUs: a part's sample is dropped, and a CPU's generator cannot go back.
cpu=()
if "${PYTHON:-python}" -c '
import importlib.metadata as m
found = [*m.distributions(name="vllm-cpu")]
found += [x for x in m.distributions(name="vllm") if "cpu" in x.version]
raise SystemExit(not found)
'; then cpu=(--no-enable-chunked-prefill); fi
command=(
  "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server
  --model="$dir" --served-model-name="${NAME:-policy}"
  --dtype="${DTYPE:-float32}" --host=127.0.0.1
  # Log-probs are of the distribution that samples, at its temperature.
  --logprobs-mode=processed_logprobs
  # Stop tokens are those of the run, and of no file of the model.
  --generation-config=vllm
  --worker-extension-cls=vllm_worker.Extension
  ${cpu[@]+"${cpu[@]}"} "$@"
)
if [[ "${DRY_RUN-}" == 1 ]]; then echo "${command[*]}"; exit; fi
exec "${command[@]}"
