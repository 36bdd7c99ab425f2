"""Rules that only warn: the run works, but probably not as intended."""

import json
import pathlib
from collections.abc import Iterator

import numpy as np

from rl_reason import tasks
from rl_reason.base import feature
from rl_reason.checks import config_facts
from rl_reason.checks.rules import Rule
from rl_reason.data import prompt_stream, templates
from rl_reason.tasks import reward_terms

TINY = 256  # width of a model that learns at the rates of random parameters


def prompts(c) -> Iterator[Rule]:
  """Prompts of another format, or of the same difficulty."""
  files = c.task.name == tasks.FILES
  if c.data.chat and not files and not feature.judge(c):
    yield "data.chat", (
        "is for rows of files, and the prompts of a task are plain text"
    )
  if (field := config_facts.type_field(c)) and not files:
    types = c.rollout.types
    found = [prompt_stream.type_name(row, types) for row in draws(c, 64)]
    if not config_facts.differ(c, found) and len({*found}) > 1:
      yield "advantage.args.hardest", (
          f"is below the {types} of all problems, which count as equally hard,"
          f" so that the {types} changes nothing: set the hardest,"
          f" {max(map(float, found)):g}"
      )
    elif not config_facts.differ(c, found):
      yield field, (
          f"depends on the {types} (type) of problems, and all have the same"
          f" one (task.difficulties = {c.task.difficulties})"
      )


def stop_strings(c) -> Iterator[Rule]:
  """Stop strings that the asked format of a response needs."""
  r = c.rollout
  asked = [
      templates.choose(c.data.template, kind).response
      for kind in templates.TEMPLATES
      if c.task.name == tasks.FILES
  ]
  terms = reward_terms.terms(c.reward.functions)
  asked += ["<think></think><answer></answer>"] * any(
      x.name == "tags" for x in terms
  )
  for string in r.stop_strings:
    if not r.include_stop_str_in_output and any(string in x for x in asked):
      yield "rollout.stop_strings", (
          f"{string!r} is a part of the format that data.template or"
          " reward.functions ask for, and is cut from the text of a response:"
          " set rollout.include_stop_str_in_output = True"
      )


def draws(c, count: int) -> list[tasks.Row]:
  """Rows of a task that generates them, drawn as training draws them."""
  task, rng = tasks.get(c.task.name), np.random.default_rng(0)
  levels = tuple(c.task.difficulties) or task.DIFFICULTIES or (0,)
  return [tasks.draw(task, rng, levels, evaluation=False) for _ in range(count)]


def sft(c) -> Iterator[Rule]:
  """A learning rate for random parameters, of a model that is trained."""
  if c.model.path and config_facts.sft_steps(c) and c.sft.lr >= 1e-3:
    yield "sft.lr", (
        "suits a small model that starts from random parameters; SFT of a"
        " checkpoint usually takes 1e-6 to 1e-4"
    )


def rates(c) -> Iterator[Rule]:
  """Learning rates that are meant for another model."""
  if any(one.learns(c) is not None for one in feature.used(c)):
    return  # the feature knows the rates of what it learns
  o, most = c.optimizer, 1e-4
  if not c.model.path or _is_tiny(c):
    most = 1e-2
  if o.name != "sgd" and c.rl.steps and o.lr > most:
    what, usual = "a pretrained model", "1e-6"
    if not c.model.path:
      what, usual = "a model", "1e-5 to 1e-3"
    yield "optimizer.lr", (
        f"is high for {what}, which RL changes at about {usual}"
    )


def _is_tiny(c) -> bool:
  """Whether model.path is a directory with a model of at most `TINY`."""
  try:
    text = (pathlib.Path(c.model.path) / "config.json").read_text()
    return json.loads(text)["hidden_size"] <= TINY
  except (OSError, ValueError, LookupError, TypeError):
    return False


def off_policy(c) -> Iterator[Rule]:
  """Responses of another policy than the one that learns."""
  if feature.marked("corrects", c):
    return
  r, mismatch = c.rollout, "(rollout/sampler_trainer_kl)"
  for name, value in feature.marked("corrects").items():
    mismatch += f"; {name} = {value!r} corrects for the mismatch"
  exact = dict(weights=("same", c.model.dtype), cache=("same",))
  for name, values in exact.items():
    if r[name] not in values:
      yield f"rollout.{name}", (
          f"samples from another policy than the one that learns {mismatch}"
      )
  if r.engine.name != "own":
    yield "rollout.engine.name", (
        f"samples with other kernels than the ones that learn {mismatch}"
    )
