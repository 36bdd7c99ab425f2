"""Exports networks as directories that transformers and vLLM load."""

import functools
import json
import pathlib

import jax

from rl_reason import config as config_lib, hf
from rl_reason.checkpointing import checkpoint
from rl_reason.models import critic as critic_lib, decoder, lora
from rl_reason.monitoring import metrics
from rl_reason.session import Session, resolve
from rl_reason.training import rl_state, sft


def run(session: Session, which: str) -> None:
  """Writes export/policy, and export/critic if there is one.

  The critic is a token classifier whose labels are the outputs of its head. In
  the same directory is a checkpoint of it (see `checkpoint`), which critic.path
  of another run takes with critic.init = 'exported'.

  Args:
    session: of the run.
    which: 'newest', 'best', or a step of RL.

  Raises:
    RunError: there is no such checkpoint.
    ConfigError: transformers has no architecture of that shape.
  """
  c, out = session.config, session.workdir / "export"
  sft_params = functools.partial(sft.load, session)
  policy, critic, at = rl_state.load(session, which, sft_params)
  policy = jax.jit(lora.merge)(policy) if c.lora.rank else policy
  source = resolve(c)
  more = dict(
      source=source,
      tok=session.tok if c.tokenizer or not source else None,
      context=c.rollout.max_prompt + c.rollout.max_tokens,
      card=card(c, session.workdir, at),
  )
  hf.save(
      out / "policy", policy, decoder.table(session.cfg), session.cfg, **more
  )
  session.display.say(f"step {at} written to {out / 'policy'}")
  if critic is not None:
    table = critic_lib.table(session.critic_cfg)
    hf.save(out / "critic", critic, table, session.cfg, **more)
    saved = checkpoint.Checkpoints(out / "critic")
    saved.save(at, critic, dict(config=config_lib.flat(c)))
    saved.close()
    session.display.say(f"its critic written to {out / 'critic'}")


def card(config, workdir: pathlib.Path, at: int) -> str:
  """The model card: where the model is from, what it reached, its recipe.

  Args:
    config: of the run.
    workdir: its evaluations before RL and at this step are the scores.
    at: step of RL.
  """
  path = config.model.path
  base = path and not pathlib.Path(path).exists()  # a hub id
  front = ["---", "library_name: transformers", "tags: [rl_reason, rl]"]
  front += [f"base_model: {path}"] if base else []
  evaluated = {
      line["step"]: line
      for line in metrics.read_jsonl(workdir / "metrics.jsonl")
      if line["stage"] == "evaluate" and line["step"] in (0, at)
  }
  steps = sorted(evaluated)
  names = sorted(
      name
      for name in (evaluated[steps[-1]] if steps else {})
      if name.startswith("val-core/")
  )
  scores = [
      f"| held out | {' | '.join(f'step {x}' for x in steps)} |",
      "|---" * (1 + len(steps)) + "|",
  ]
  for name in names:
    cells = [json.dumps(evaluated[x].get(name)) for x in steps]
    scores.append(f"| {name} | {' | '.join(cells)} |")
  method = ""
  if config.lora.rank:
    method = (
        f" of low-rank factors (LoRA, rank {config.lora.rank}), which are"
        " merged into these weights"
    )
  recipe = [
      f"    {name} = {json.dumps(value)}"
      for name, value in config_lib.flat(config).items()
  ]
  return "\n".join(
      [
          *front,
          "---",
          "",
          f"# {workdir.absolute().name}, step {at}",
          "",
          f"Trained by rl_reason on the task {config.task.name}, from"
          f" {path or 'a fresh model'}, with {at} steps of RL{method}.",
          "",
          "## Scores",
          "",
          *(scores if steps else ["None: the run was not evaluated."]),
          "",
          "## Recipe",
          "",
          *recipe,
          "",
      ]
  )
