"""What a run trains, in words: the head of its report.

The facts are of the config, of model.json (the sizes of the networks, written
when a run begins), of the prepared data and of machine.json. A setting without
effect is left out.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from rl_reason import features, tasks
from rl_reason.base import feature, json_files
from rl_reason.devices import axes
from rl_reason.report import machine

FILE = "model.json"
# Arguments of a function that guard a computation, and choose no algorithm.
GUARDS = ("eps", "log_ratio_max")


def describe(workdir: pathlib.Path, f: Mapping[str, Any]) -> list:
  """The facts of a run.

  Args:
    workdir: of the run; files may be missing.
    f: its flat config; {} if it is not known.

  Returns:
    name and text of each fact, in the order of the page.
  """
  if not f:
    return []
  f = _Fields(f)
  facts = {
      "model": _model(f, sizes_of(workdir)),
      "data": _data(f, sources_of(workdir)),
      "before RL": _before(f),
  }
  if f["rl.steps"]:
    facts |= {
        "reward": _reward(f),
        "algorithm": _algorithm(f),
        "critic": _critic(f, sizes_of(workdir)),
        "learning rate": _learning_rate(f),
        "batch": _batch(f),
    }
  facts |= {
      "lengths": (
          f"prompts of at most {f['rollout.max_prompt']:,} tokens, responses of"
          f" at most {f['rollout.max_tokens']:,}"
      ),
      "steps": _steps(f),
      "devices": _devices(f, machine.read(workdir)),
  }
  return [(name, text) for name, text in facts.items() if text]


def sizes_of(workdir: pathlib.Path) -> dict[str, int]:
  """The parameters of the networks of a run, by name; {} if unknown."""
  path = workdir / FILE
  found = json_files.read_object(path)
  with json_files.damage_named(path):
    return {name: int(x) for name, x in found.items() if x is not None}


def sources_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """What the preparation of the data of a run kept of each source."""
  path = workdir / "data" / "data.json"
  found = json_files.read_object(path).get("sources", [])
  with json_files.damage_named(path):
    return [x | dict(kept=int(x["kept"]), use=str(x["use"])) for x in found]


class _Fields(dict):
  """A flat config; a field that an older version lacks is 0."""

  def __missing__(self, name: str) -> int:
    return 0

  def args(self, field: str, *, without: tuple[str, ...] = ()) -> str:
    """The arguments of a function, as '(ddof 1)'; '' without any."""
    prefix = f"{field}.args."
    found = {k.removeprefix(prefix): x for k, x in self.items() if prefix in k}
    shown = [
        f"{k} {x:g}" if isinstance(x, float) else f"{k} {x}"
        for k, x in found.items()
        if k not in (*GUARDS, *without)
    ]
    return f" ({', '.join(shown)})" if shown else ""


def count(number: int) -> str:
  """A number of parameters: '101,184', '494 million' or '1.54 billion'."""
  for unit, word in ((10**9, "billion"), (10**6, "million")):
    if number >= unit:
      return f"{number / unit:.3g} {word}"
  return f"{number:,}"


def _model(f: _Fields, sizes: dict[str, int]) -> str:
  """Path or origin, shape, parameters and adapter."""
  shape = f"{f['model.layers']} layers of width {f['model.width']}"
  if f["model.experts"]:
    shape += f", {f['model.experts']} experts"
  if "parameters" in sizes:
    shape += f", {count(sizes['parameters'])} parameters"
  out = f"{f['model.path']}: {shape}"
  if not f["model.path"]:
    out = f"{shape}, initialized at random"
  of_features = (x.of_model(f, short=False) for x in features.declared())
  return "; ".join([out, *filter(None, of_features)])


def _data(f: _Fields, sources: list[dict[str, Any]]) -> str:
  """The task, or the sources with their rows."""
  if f["task.name"] != tasks.FILES:
    levels = [str(x) for x in f["task.difficulties"] or ()]
    out = f"generated problems of the task {f['task.name']}"
    out += f", difficulties {', '.join(levels)}" if levels else ""
    return f"{out}; {f['evaluate.prompts']:,} held-out prompts at most"
  by_use: dict[str, list[str]] = {}
  for x in sources:
    rows = f"{x['kept']:,} rows of {x['source']}"
    by_use.setdefault(x["use"], []).append(rows)
  if not sources:
    by_use = {"train": [f["data.train"]], "evaluate": [f["data.evaluate"]]}
  words = {
      "train": "",
      tasks.VALIDATION: "validation: ",
      "evaluate": "held out: ",
  }
  parts = [
      words[use] + ", ".join(by_use[use]) for use in words if by_use.get(use)
  ]
  template = "the chat template" if f["data.chat"] else f["data.template"]
  return f"{'; '.join(parts)}; prompts by {template}"


def _before(f: _Fields) -> str:
  """The stages before RL."""
  parts = []
  if f["sft.reuse"]:
    parts.append(f"SFT of {f['sft.reuse']}")
  else:
    for name, field in (("SFT", "sft"), ("SFT on habits", "sft.habits")):
      if f[f"{field}.steps"]:
        parts.append(
            f"{name}, {f[f'{field}.steps']:,} steps of {f['sft.batch']} rows,"
            f" learning rate {f[f'{field}.lr']:g} ({f[f'{field}.schedule']})"
        )
  for name, x in feature.stages().items():
    if x.policy and x.steps and f[x.steps]:
      parts.append(
          f"--stage={name}, {f[x.steps]:,} steps, learning rate {f[x.rate]:g}"
      )
  if f["critic.pretrain_steps"]:
    rollouts = f["critic.pretrain_steps"]
    parts.append(f"value pretraining, {rollouts} rollouts at most")
  return "; ".join(parts)


def _reward(f: _Fields) -> str:
  """The terms of the reward."""
  parts = []
  if f["data.kind"] != "none" or f["task.name"] != tasks.FILES:
    verifier = f["task.name"]
    if verifier == tasks.FILES:
      verifier = f["data.kind"]
    correct, incorrect = f["reward.correct"], f["reward.incorrect"]
    parts.append(
        f"{correct:g} if the verifier ({verifier}) accepts, else {incorrect:g}"
    )
    if f["reward.outcome.name"] not in (0, "correctness"):
      name = f["reward.outcome.name"]
      parts[0] = f"{name}{f.args('reward.outcome')}, verifier {verifier}"
  if f["reward.functions"]:
    parts.append(str(f["reward.functions"]))
  if f["reward.length_penalty.name"] not in (0, "none"):
    name = f["reward.length_penalty.name"]
    parts.append(f"length penalty {name}{f.args('reward.length_penalty')}")
  if f["reward.overlong_buffer"]:
    parts.append(
        f"soft overlong penalty of at most {f['reward.overlong_coef']:g} in the"
        f" last {f['reward.overlong_buffer']:,} tokens"
    )
  if f["reward.shuffle"]:
    parts.append("shuffled over the batch: a control experiment")
  return " + ".join(parts[:1]) + "".join(f"; {x}" for x in parts[1:])


def _algorithm(f: _Fields) -> str:
  """Advantage, surrogate with its bounds, reduction, dynamic sampling, KL."""
  advantage = f"advantage {f['advantage.name']}{f.args('advantage')}"
  if f["advantage.groups"] not in (0, "prompt"):
    advantage += f", groups by {f['advantage.groups']}"
  if f["advantage.whiten"]:
    advantage += ", whitened"
  known = {
      k: f[f"surrogate.args.{k}"]
      for k in ("clip_low", "clip_high", "dual_clip")
  }
  surrogate = f"surrogate {f['surrogate.name']}"
  if known["clip_low"] or known["clip_high"]:
    surrogate += (
        f", ratio clipped at 1 - {known['clip_low']:g} and 1 +"
        f" {known['clip_high']:g}"
    )
  if known["dual_clip"]:
    surrogate += f", dual clip {known['dual_clip']:g}"
  surrogate += f.args("surrogate", without=tuple(known))
  parts = [advantage, surrogate, f"reduction {f['reduction.name']}"]
  if f["dynamic_sampling.enabled"]:
    rounds = f["dynamic_sampling.max_rounds"]
    parts.append(f"dynamic sampling of at most {rounds} rounds")
  if f["kl.kind"] not in (0, "none"):
    parts.append(f"KL {f['kl.kind']} in the {f['kl.place']}, {f['kl.coef']:g}")
  for name, words in (
      ("loss.mask_truncated", "truncated responses masked"),
      ("loss.positive_nll", "NLL of correct responses, {:g}"),
      *feature.marked("shown").items(),
      ("loss.entropy_coef", "entropy bonus, {:g}"),
  ):
    if f[name] not in (0, "", "none"):
      arguments = f.args(name.removesuffix(".name"))
      parts.append(words.format(f[name]) + arguments)
  return "; ".join(parts)


def _critic(f: _Fields, sizes: dict[str, int]) -> str:
  """The critic; '' without one."""
  if "critic parameters" not in sizes:
    return ""
  return (
      f"{f['critic.head.name']}, {count(sizes['critic parameters'])}"
      f" parameters; lambda {f['critic.lam']:g}; learning rate"
      f" {f['critic.lr']:g},"
      f" {f['critic.schedule']}{_warmup(f['critic.warmup_steps'])}"
  )


def _warmup(steps: int) -> str:
  return f" after {steps} steps of warm-up" if steps else ""


def _learning_rate(f: _Fields) -> str:
  """Rate, schedule and optimizer of RL."""
  out = (
      f"{f['optimizer.lr']:g}, {f['optimizer.schedule']}"
      f"{_warmup(f['optimizer.warmup_steps'])}; {f['optimizer.name']}"
  )
  if f["optimizer.weight_decay"]:
    out += f", weight decay {f['optimizer.weight_decay']:g}"
  if f["optimizer.clip_norm"]:
    out += f", gradient norm clipped at {f['optimizer.clip_norm']:g}"
  return out


def _batch(f: _Fields) -> str:
  """Responses of a step, groups and updates."""
  size, group = f["rollout.batch"], f["rollout.group_size"]
  updates = f["updates.minibatches"] * f["updates.epochs"]
  out = (
      f"{size:,} responses a step: {size // max(group, 1):,} prompts of {group}"
  )
  out += f"; {updates} update{'s' * (updates > 1)} a step"
  if f["updates.epochs"] > 1:
    out += f" in {f['updates.epochs']} epochs"
  out += f"; temperature {f['rollout.temperature']:g}"
  for name, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
    value = f.get(f"rollout.{name}", off)
    out += f", {name} {value:g}" if value != off else ""
  return out


def _steps(f: _Fields) -> str:
  """RL steps, and the seed."""
  return f"{f['rl.steps']:,} of RL; seed {f['seed']}"


def _devices(f: _Fields, known: dict[str, Any]) -> str:
  """Devices, mesh and precision."""
  kind = known.get("device kind", "unknown")
  if known.get("backend") == "cpu":
    kind = f"CPU ({known.get('cpu model')})"
  out = f"{known.get('device count', '?')} × {kind}" if known else "unknown"
  sizes = {x: f[f"mesh.{x}"] for x in axes.NAMES}
  split = [f"{x} {size}" for x, size in sizes.items() if size > 1]
  out += f", mesh {', '.join(split)}" if split else ""
  out += f"; {f['model.dtype']}"
  for field, words in (("weights", "sampler weights"), ("cache", "KV cache")):
    if f[f"rollout.{field}"] not in (0, "same"):
      out += f", {words} {f[f'rollout.{field}']}"
  return out
