"""configs/trl_grpo.py against TRL: its defaults, and steps of its trainer.

python -m bench.peers --install trl  # once
python -m studies.trl_defaults.run   # half a minute

`GRPOTrainer` with its defaults and `configs/trl_grpo.py` begin with the same
random model and take the same completions and rewards of three steps. TRL
computes its advantages, loss, clipped gradient, learning rate and AdamW step,
and so does this package; the parameters are compared at the end.
"""

import json
import pathlib
import subprocess
import tempfile
import tomllib
from collections.abc import Callable

import jax
import numpy as np

from bench import harness, results
from configs import trl_grpo
from rl_reason import hf
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_checks, config_facts
from rl_reason.collect import experience
from rl_reason.devices import device_mesh
from rl_reason.models import decoder
from rl_reason.monitoring.display import Display
from rl_reason.stages import build_step, optimizers
from rl_reason.training import optimizer, step as step_lib

FIELDS = pathlib.Path(__file__).parent / "fields.toml"
PROMPT, RESPONSE, GROUP, STEPS = 6, 24, 8, 3
LR = 1e-3  # float32 shows the difference of larger steps


def cases(seed: int = 0) -> dict:
  """Returns prompts, completions and rewards of each step.

  Lengths differ; some completions are truncated; rewards are 0 and 1, and those
  of the last step are all equal.
  """
  rng = np.random.default_rng(seed)

  def tokens(count: int) -> list[int]:
    return rng.integers(harness.FIRST, 60, count).tolist()

  completions = []
  for _ in range(STEPS):
    lengths = rng.integers(1, RESPONSE, GROUP - 2)
    rows = [[*tokens(n), harness.EOS] for n in lengths]
    completions.append([*rows, tokens(RESPONSE), tokens(RESPONSE)])
  rewards = rng.permuted(
      np.tile([0.0, 0, 0, 0, 0, 1, 1, 1], (STEPS, 1)), axis=1
  )
  rewards[-1] = 1.0
  return dict(
      prompts=[tokens(PROMPT) for _ in range(STEPS)],
      completions=completions,
      rewards=rewards.tolist(),
  )


def ours(job: dict) -> tuple[list[dict], dict, dict]:
  """Takes the steps of the job by configs/trl_grpo.py; see `replay`."""
  c = trl_grpo.get_config()
  c.model.dtype, c.optimizer.lr, c.rl.steps = "float32", job["lr"], STEPS
  c.rollout.update(max_prompt=PROMPT, max_tokens=RESPONSE)
  c.updates.token_budget = 4 * (PROMPT + RESPONSE)  # several micro-batches
  prompts = [[prompt] * GROUP for prompt in job["prompts"]]
  return replay(c, job | dict(prompts=prompts))[:3]


def replay(c, job: dict) -> tuple[list[dict], dict, dict, Callable]:
  """Trains on given completions and rewards.

  Args:
    c: the config.
    job: weights, a directory; prompts and completions, token ids
      [step][completion]; rewards, [step][completion].

  Returns:
    learning rate and gradient norm of each step; the flat parameters before and
    after the steps; and parameters -> log-probs of the completions of the last
    step, [B, T], 0 after the end of a completion.
  """
  config_checks.fields(c)
  source = hf.find(job["weights"])
  cfg, screen = source.cfg, Display(False)
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  on_policy = config_facts.on_policy(c)
  with jax.set_mesh(mesh):
    params = hf.load(source, decoder.table(cfg), mesh)
    before = jax.device_get(params)
    tools = optimizers.of_policy(c, cfg, mesh)
    objective = build_step.objective(c, on_policy=on_policy)
    update = build_step.policy_update(c, objective, cfg, tools, screen)
    logps = build_step.logps(c, cfg, mesh, screen)
    credit = build_step.credit(
        c, build_step.reward(c), mesh, screen, on_policy=on_policy
    )
    plan_rows = build_step.planner(c, mesh)
    state, log = optimizer.new_state(params, *tools), []
    for prompts, ids, rewards in zip(
        job["prompts"], job["completions"], job["rewards"], strict=True
    ):
      rows = graded(prompts, ids, rewards, c.rollout)
      plan = plan_rows(rows.rollouts)
      old_BT = None if on_policy else logps(state.params, plan)[0]
      rows = experience.with_old_logps(rows, old_BT)
      given = experience.credit_inputs(
          rows,
          ref_logps_BT=None,
          values_BT=None,
          entropy_BT=None,
          progress=np.float32(0),
          kl_coef=np.float32(0),
      )
      batch = step_lib.train_batch(rows, credit(given))
      parts = step_lib.minibatches(mesh, batch, plan)
      coefs = dict(kl=np.float32(0), entropy=np.float32(0))
      state, metrics = update(state, *parts, coefs)
      log.append(
          dict(
              learning_rate=float(metrics["lr"]),
              grad_norm=float(metrics["grad_norm"]),
          )
      )
    after = jax.device_get(state.params)

  def last_logps(params) -> np.ndarray:
    with jax.set_mesh(mesh):
      return np.where(rows.rollouts.mask_BT, logps(params, plan)[0], 0)

  return log, before, after, last_logps


def graded(prompts: list, completions: list, rewards: list, rollout):
  """Returns completions of prompts, groups in turn, as experience.

  Args:
    prompts: token ids of the prompt of each completion.
    completions: token ids.
    rewards: of the completions.
    rollout: the section of the config.
  """
  slots, limit = rollout.max_prompt, rollout.max_tokens
  count = len(completions)
  lengths_B = np.array([len(x) for x in completions], np.int32)
  start_B = np.array([slots - len(x) for x in prompts], np.int32)
  tokens_BL = np.full((count, slots + limit), harness.PAD, np.int32)
  for row_L, start, prompt, ids in zip(
      tokens_BL, start_B, prompts, completions, strict=True
  ):
    row_L[start:slots] = prompt
    row_L[slots : slots + len(ids)] = ids
  mask_BT = np.arange(limit) < lengths_B[:, None]
  rollouts = Rollouts(
      tokens_BL=tokens_BL,
      start_B=start_B,
      ids_B=np.arange(count, dtype=np.int32) // rollout.group_size,
      mask_BT=mask_BT,
      logps_BT=np.zeros(mask_BT.shape, np.float32),
      lengths_B=lengths_B,
      truncated_B=lengths_B == limit,
  )
  return experience.graded(rollouts, np.array(rewards, np.float32))


def load(directory: str) -> dict:
  """The flat parameters of a directory of transformers."""
  source = hf.find(directory)
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  return jax.device_get(hf.load(source, decoder.table(source.cfg), mesh))


def difference(before: dict, one: dict, other: dict) -> float:
  """Returns |one - other| / |other - before| over all parameters."""

  def norm(a, b) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(np.sqrt(sum(((x - y) ** 2).sum() for x, y in pairs)))

  return norm(one, other) / norm(other, before)


def measure(flags) -> dict:
  """Runs TRL and this package on the same steps."""
  del flags
  with tempfile.TemporaryDirectory() as scratch:
    job = cases() | dict(lr=LR, weights=str(harness.weights("tiny")))
    job["out"] = str(pathlib.Path(scratch) / "trl")
    python = harness.ENVIRONMENTS / "trl" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "studies.trl_defaults.by_trl"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        cwd=results.ROOT,
        text=True,
        check=True,
    )
    peer = json.loads(done.stdout)
    log, before, after = ours(job)
    theirs = load(job["out"])
  return dict(
      defaults=peer["defaults"],
      trl=peer["steps"],
      ours=log,
      difference=difference(before, after, theirs),
      peers=dict(trl=peer["versions"]),
      environment=results.environment(),
  )


def fields() -> dict[str, dict]:
  """Returns the field here, or why there is none, for each field of TRL."""
  return tomllib.loads(FIELDS.read_text())


def page(result: dict) -> list[str]:
  """Returns the page of the comparison."""
  version = result["peers"]["trl"]["trl"]
  about = (
      "Does `configs/trl_grpo.py` train as GRPOTrainer does? Data in"
      " `trl_defaults.json`; `tests/test_trl_defaults.py` compares the config"
      " with the table of defaults."
  )
  lines = [
      "## Three optimizer steps",
      "",
      "`GRPOTrainer` and `configs/trl_grpo.py` begin with the same random model"
      " (`tiny` of `bench/harness.py`, float32) and get the same completions"
      f" and rewards: {GROUP} completions of 2 to {RESPONSE} tokens to one"
      " prompt in each step, two of them truncated. In the last step all"
      f" rewards are equal. The learning rate is {LR:g} in both, so that"
      " float32 shows the steps; all other fields have TRL's defaults, but"
      " bf16 is off. TRL's trainer computes advantages, loss, gradient"
      " clipping, schedule and AdamW.",
      "",
      "| step | learning rate, TRL | here | gradient norm, TRL | here |",
      "|---|---|---|---|---|",
  ]
  pairs = zip(result["trl"], result["ours"], strict=True)
  for i, (trl, mine) in enumerate(pairs, 1):
    cells = [
        f"{x[k]:.6g}"
        for k in ("learning_rate", "grad_norm")
        for x in (trl, mine)
    ]
    lines.append(f"| {i} | {' | '.join(cells)} |")
  lines += [
      "",
      "Difference of the final parameters, relative to the change by the three"
      f" steps: {result['difference']:.1e}.",
      "",
      "## Every field of GRPOConfig",
      "",
      "| TRL | default | here | note |",
      "|---|---|---|---|",
  ]
  known = fields()
  for name, default in result["defaults"].items():
    row = known[name]
    here = f"`{row['field']}`" if "field" in row else "-"
    if "value" in row:
      here += f" {json.dumps(row['value'])}"
    lines.append(
        f"| `{name}` | {json.dumps(default)} | {here} | {row.get('note', '')} |"
    )
  with_field = sum("field" in known[x] for x in result["defaults"])
  return results.document(
      f"GRPO with the defaults of TRL {version}",
      f"After {len(result['ours'])} optimizer steps the parameters differ from"
      f" TRL's by {result['difference']:.1e} of their change; {with_field} of"
      f" {len(result['defaults'])} fields of GRPOConfig have a field here, and"
      " the others a note.",
      about,
      lines,
      made="Made by `python -m studies.trl_defaults.run`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(__doc__, "trl_defaults", measure, page)
