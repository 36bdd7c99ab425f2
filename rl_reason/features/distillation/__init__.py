"""Distillation: a teacher says at each token what it would have written.

The reference of a KL is then another model (`kl.reference`), or reads more than
the policy does (`kl.privileged`); and a KL may be computed over the whole
vocabulary (`kl.kind` "full"). See README.md.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from rl_reason.base import config, feature, fields
from rl_reason.base.fields import choice, field, number, path, section
from rl_reason.features.distillation import teacher_facts


def _content(place: str) -> str:
  """A run that has gone on is another teacher; a server may move."""
  from rl_reason.checks import path_contents

  if teacher_facts.is_url(place):
    return "a server"
  root = pathlib.Path(place)
  if (root / "checkpoints").is_dir():
    stages = ("sft", "habits", *feature.stages(), "rl")
    return path_contents.of_files([root / "checkpoints" / x for x in stages])
  return path_contents.of_files([root], path_contents.MODEL_FILES)


def _terms_of_full_kl(c) -> Iterator[feature.Rule]:
  """Terms of the user that read a KL which is not computed."""
  from rl_reason.checks import own_functions

  array = teacher_facts.ARRAY
  for own in own_functions.terms(c):
    if array in own.inputs:
      yield "loss.terms", f"{own.label} takes {array}: set kl.kind = 'full'"


class _Distillation(feature.Declaration):
  inputs = {"loss.terms": (teacher_facts.ARRAY,)}
  needs = {
      "a server": lambda c: (
          not teacher_facts.on_server(c)
          and "kl.reference names no server, as http://127.0.0.1:8000 does"
      )
  }
  marks = {
      "machine": ("kl.server.",),
      "free": ("kl.max_prompt",),
      "movable": ("kl.reference",),
      "content": {"kl.reference": _content},
      "teaches": ("kl.reference", "kl.privileged"),
      "other_reference": {
          "kl.reference": True,
          "kl.self_teacher": lambda whose: whose == "current",
      },
      "not_replayed": {"kl.reference": "a replay loads no teacher"},
      "unreplayed": {
          "kl.kind": lambda kind: (
              kind == teacher_facts.FULL
              and "takes no gradient over the whole vocabulary"
          ),
          "kl.privileged": "reads no prompts of the reference",
      },
      "unshared": {
          "kl.privileged": "a reference reads prompts of its own",
          "kl.reference": lambda place: (
              teacher_facts.is_url(place) and "a server reads whole sequences"
          ),
      },
  }

  def fields(self, c) -> None:
    fields.widen("kl.kind", teacher_facts.FULL)
    config.extend(
        c,
        "kl",
        # A teacher to distill: a work directory, a checkpoint of transformers,
        # or the URL of a server, http://...
        reference=path(
            needs="kl.kind",
            not_with={
                "rollout.replay_routing": "a teacher has experts of its own",
            },
        ),
        # What the reference reads in place of the prompt, with {prompt} and
        # {answer} or {solution}: privileged information.
        privileged=field(
            "",
            needs="kl.kind",
            not_with={
                "rollout.replay_routing": "the reference has tokens of its own",
            },
        ),
        # Tokens of the prompt of kl.privileged; 0: twice rollout.max_prompt.
        max_prompt=number(0, low=0, needs="kl.privileged"),
        # The policy whose parameters the reference has: of the start of RL, or
        # of the step.
        self_teacher=choice(
            *("initial", "current"),
            needs="kl.privileged",
            not_with={
                "kl.reference": "a teacher has the parameters of its checkpoint"
            },
        ),
        # Of the full KL: 1 is reverse, 0 forward, in between GKD's divergence.
        jsd_beta=number(1.0, low=0, high=1, needs="kl.kind"),
    )
    c.kl.server = section(  # kl.reference is the URL of a server
        "kl.server",
        "a server",
        model="",  # its name there; '' is the only one
        parallel=number(32, low=1),  # requests at a time
        seconds=number(600.0, low=1e-3),  # of a request
        patience=number(600.0, low=0),  # seconds that the server may be gone
        key_env="",  # environment variable with its key
    )

  def used(self, c) -> bool:
    return bool(teacher_facts.is_full(c) or c.kl.reference or c.kl.privileged)

  def rules(self, c) -> Iterator[feature.Rule]:
    k = c.kl
    if teacher_facts.is_full(c) and k.place == "reward":
      yield "kl.place", (
          "the full KL is a term of the loss: use 'loss', or kl.kind = 'k1'"
      )
    if k.privileged:
      yield from self._of_privileged(c)
    if teacher_facts.on_server(c):
      yield from self._of_server(c)
    if not teacher_facts.is_full(c):
      yield from self.without(c)

  def without(self, c) -> Iterator[feature.Rule]:
    if c.kl.jsd_beta != 1:
      yield "kl.jsd_beta", (
          "does nothing without kl.kind = 'full': leave it at 1"
      )
    yield from _terms_of_full_kl(c)

  def _of_privileged(self, c) -> Iterator[feature.Rule]:
    """A reference that reads the answer with the prompt."""
    name = "kl.privileged"
    if "{prompt}" not in c.kl.privileged:
      yield name, (
          "has no {prompt}, which stands for what the policy reads; write for"
          " instance '{prompt} The answer is {answer}.'"
      )
    if teacher_facts.prompt_slots(c) < c.rollout.max_prompt:
      yield "kl.max_prompt", (
          f"the prompt itself has up to rollout.max_prompt ="
          f" {c.rollout.max_prompt} tokens: raise it"
      )

  def _of_server(self, c) -> Iterator[feature.Rule]:
    """A teacher on a server."""
    if teacher_facts.is_full(c):
      yield "kl.kind", (
          "a server gives log-probs of given tokens, and not of the whole"
          " vocabulary: use 'k1' with kl.place = 'reward', k2 or k3, or name a"
          " checkpoint in kl.reference"
      )
    if c.rollout.temperature != 1:
      yield "rollout.temperature", (
          "the log-probs of a server (kl.reference) are those at temperature 1:"
          " use 1"
      )

  def files(self, c, tok: Any, trains: bool) -> Iterator[feature.Rule]:
    if trains and c.kl.reference and not teacher_facts.on_server(c):
      from rl_reason.features.distillation import reference_policy

      reference_policy.check_files(c, tok)
    yield from ()

  def prompts(self, c) -> dict[str, int]:
    return (
        {"kl.max_prompt": teacher_facts.prompt_slots(c)}
        if c.kl.privileged
        else {}
    )

  def passes(self, c) -> float:
    """A pass of another model counts in `models`; of a server, not at all."""
    if c.kl.reference:
      return 0
    return (
        c.updates.epochs
        if teacher_facts.is_full(c)
        else c.kl.self_teacher == "current"
    )

  def models(self, c, cfg: Any) -> dict[str, tuple[Any, float]]:
    if not c.kl.reference or teacher_facts.on_server(c):
      return {}
    from rl_reason.features.distillation import teacher

    passes = c.updates.epochs if teacher_facts.is_full(c) else 1
    return {"teacher (kl.reference)": (teacher.shape(c, cfg), passes)}

  def terms(self, c) -> tuple[Any, ...]:
    from rl_reason.features.distillation import divergence

    return divergence.TERMS if teacher_facts.is_full(c) else ()

  def update(self, c, cfg: Any) -> dict[str, Any]:
    from rl_reason.features.distillation import teacher

    return teacher.update(c, cfg) if teacher_facts.is_full(c) else {}

  def abstract(self, c, shapes: Any) -> dict[str, Any]:
    from rl_reason.features.distillation import teacher

    return teacher.abstract(c, shapes)

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.distillation import teacher

    return teacher.Teacher(c, loop)


FEATURE = _Distillation()
