"""What a replay finds, as files and on the screen; see `replay`."""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rl_reason.base import json_files
from rl_reason.base.structs import Array
from rl_reason.data import tokenizer
from rl_reason.monitoring import run_log, samples
from rl_reason.monitoring.display import Display, excerpt
from rl_reason.report import groups as groups_lib, machine
from rl_reason.tasks import Row

# Prefixes of metrics of the machine, which no replay repeats.
OF_MACHINE = ("timing_s/", "perf/")
OF_BATCH = ("perf/pack_fill",)  # though it begins like the former
TOKENS, RATIOS, GROUPS = 20, 10, 8  # in the tables
# What `machine.describe` says without an influence on numbers.
IDLE = ("model commit", "cpu count", "platform")
DIGEST, VERSION = "rollout/policy_digest", "rollout/policy_version"


# --- the record of the run ----------------------------------------------------


def compare(
    workdir: pathlib.Path,
    copy: pathlib.Path,
    first: int,
    last: int,
    digest: int | None = None,
) -> dict[str, Any]:
  """Compares steps that were executed again with what the run has logged.

  Args:
    workdir: of the run.
    copy: the work directory where the steps were executed again.
    first: the step of the checkpoint.
    last: the step that is replayed.
    digest: of the policy after that step, by `Certificate.digest`.

  Returns:
    equal: True, False, or None if the run has not logged the last step;
    metrics and responses: the numbers of values and of responses that were
    compared; parameters: whether the policy after the step was compared, too;
    differences: step, metric, recorded and rebuilt value (None: not logged),
    the earliest step first; reasons: what has changed since, by name.
  """
  of_run = _of_rl(workdir)
  there, here = (_of_steps(x, first, last) for x in (of_run, _of_rl(copy)))
  differences = [
      dict(
          step=step,
          metric=name,
          recorded=value,
          rebuilt=here.get(step, {}).get(name),
      )
      for step in sorted(there)
      for name, value in sorted(there[step].items())
      if value != here.get(step, {}).get(name)
  ]
  responses, others = _compare_samples(workdir, copy, first, last)
  differences += others
  # The run says with which parameters it sampled after the step.
  sampled = [
      line[DIGEST]
      for line in of_run
      if line.get(VERSION) == last and DIGEST in line
  ]
  if sampled and sampled[-1] != digest:
    differences.append(
        dict(
            step=last,
            metric="digest of the policy after the step",
            recorded=sampled[-1],
            rebuilt=digest,
        )
    )
  return dict(
      equal=not differences if last in there else None,
      metrics=sum(map(len, there.values())),
      parameters=bool(sampled),
      responses=responses,
      differences=sorted(differences, key=lambda x: x["step"]),
      reasons=_reasons(workdir) if differences else {},
  )


def _of_rl(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The logged steps of RL."""
  return [x for x in run_log.read_metrics(workdir) if x["stage"] == "rl"]


def _of_steps(
    lines: list[dict[str, Any]], first: int, last: int
) -> dict[int, dict[str, Any]]:
  """Step -> its metrics, without the metrics of the machine."""
  return {
      line["step"]: {
          name: x
          for name, x in line.items()
          if name in OF_BATCH or not name.startswith(OF_MACHINE)
      }
      for line in lines
      if first < line["step"] <= last
  }


def _compare_samples(
    workdir: pathlib.Path, copy: pathlib.Path, first: int, last: int
) -> tuple[int, list[dict]]:
  """The number of responses that both logged, and differences."""
  found: list[dict[tuple, list[dict]]] = []
  for place in (workdir, copy):
    path = place / "samples.jsonl"
    found.append(
        {
            key: groups_lib.read(path, places)
            for key, places in groups_lib.index(path).items()
            if key[0] == "rl" and first < key[1] <= last
        }
    )
  there, here = found
  differences = [
      dict(
          step=key[1],
          metric=f"samples.jsonl, prompt {key[2]}",
          recorded=len(there[key]),
          rebuilt=len(here.get(key, [])),
      )
      for key in there
      if there[key] != here.get(key)
  ]
  return sum(map(len, there.values())), differences


def _reasons(workdir: pathlib.Path) -> dict[str, list]:
  """What differs between the machine of the run and this one, by name."""
  before, now = machine.read(workdir), machine.describe()
  changed = {
      name: [before[name], now[name]]
      for name in before.keys() & now.keys()
      if before[name] != now[name]
  }
  important = {k: x for k, x in changed.items() if k not in IDLE}
  return dict(sorted((important or changed).items()))


def verdict(recorded: dict[str, Any], step: int) -> str:
  """One sentence about `compare`."""
  if recorded["equal"] is None and not recorded["differences"]:
    return f"the run has not logged step {step}: nothing to compare it with"
  counts = f"{recorded['metrics']} metrics, {recorded['responses']} responses"
  if recorded["parameters"]:
    counts += ", and the policy after the step"
  if recorded["equal"]:
    return f"equal to the record of the run, to the bit: {counts}"
  first, *others = recorded["differences"]
  reasons = [
      f"{name} {before} -> {now}"
      for name, (before, now) in recorded["reasons"].items()
  ]
  why = "; ".join(reasons) or (
      "none is known: the machine and the versions are those of the run. A"
      " reward, a tool or an engine that answers differently each time is the"
      " usual reason"
  )
  return (
      f"warning: this is not what the run recorded: step {first['step']},"
      f" {first['metric']}: {first['recorded']} there, {first['rebuilt']} here"
      f" ({len(others)} more differences). Probable reasons: {why}"
  )


# --- the files ----------------------------------------------------------------


def write(
    place: pathlib.Path,
    found: Any,
    *,
    head: dict[str, Any],
    row_of: Callable[[int], Row],
    tok: Any,
    display: Display,
) -> None:
  """Writes replay.json, replay.md and arrays.npz, and shows the essence.

  Args:
    place: folder of the files.
    found: `replay.Found`.
    head: command, step, checkpoint, overrides, and recorded of `compare`.
    row_of: prompt id -> its row of the data.
    tok: the tokenizer.
    display: the screen.
  """
  arrays = _arrays(found)
  np.savez(place / "arrays.npz", **arrays)
  tokens = _top_tokens(found, tok, arrays)
  record = head | dict(
      batch=_batch(found),
      optimizer_steps=[
          _optimizer_step(found, m) for m in range(len(found.steps))
      ],
      ratio_after=_ends(found.ratio_BT[found.batch.mask_BT]),
      parameter_change=json_files.number(found.change),
      gradients=found.written or "gradient-M.npz, M from 1 on",
      tokens=tokens,
      ratios=_top_ratios(found, tok, arrays),
      responses=_responses(found, arrays, row_of, tok),
  )
  if found.other is not None:
    record["different"] = different(found)
  json_files.write_json(place / "replay.json", record)
  json_files.write_text(place / "replay.md", page(record))
  _show(record, display)
  display.say(f"replay: {place / 'replay.md'}")


def _arrays(found: Any) -> dict[str, Array]:
  """The arrays of the batch, in the order of its rows."""
  rows, batch, rollouts = found.rows, found.batch, found.rows.rollouts
  order_MB = found.order_MB
  out = dict(
      tokens_BL=rollouts.tokens_BL,
      start_B=rollouts.start_B,
      groups_B=rollouts.ids_B,
      lengths_B=rollouts.lengths_B,
      truncated_B=rollouts.truncated_B,
      correct_B=rows.correct_B,
      age_B=rows.age_B,
      rewards_B=found.credit["rewards_B"],
      mask_BT=batch.mask_BT,
      sampler_logps_BT=rollouts.logps_BT,
      old_logps_BT=batch.old_logps_BT,
      ref_logps_BT=batch.ref_logps_BT,
      values_BT=batch.values_BT,
      returns_BT=batch.returns_BT,
      advantages_BT=batch.advantages_BT,
      ratio_after_BT=found.ratio_BT,
      order_MB=order_MB,
  )
  # Of each optimizer step, in the order of the rows of its minibatch.
  for name in ("logps_BT", "ratio_BT", "weight_BT", "clipped_BT", "share_BT"):
    by_step = [getattr(x.tokens, name) for x in found.steps]
    out[name.replace("_BT", "_MBT")] = np.stack(by_step)
  if found.other is not None:
    for name in ("mask_BT", "advantages_BT", "returns_BT"):
      out[f"other_{name}"] = getattr(found.other.batch, name)
    out["other_rewards_B"] = found.other.credit["rewards_B"]
  return {name: np.asarray(x) for name, x in out.items()}


def _batch(found: Any) -> dict[str, Any]:
  rows, mask_BT = found.rows, found.batch.mask_BT
  real_B = rows.age_B >= 0
  rewards_B = found.credit["rewards_B"][real_B]
  return dict(
      responses=int(real_B.sum()),
      groups=len(set(rows.rollouts.ids_B[real_B].tolist())),
      tokens_in_the_loss=int(mask_BT.sum()),
      rewards=_ends(rewards_B[np.isfinite(rewards_B)]),
      advantages=_ends(found.batch.advantages_BT[mask_BT]),
  )


def _ends(x: Array) -> dict[str, Any]:
  """Mean, minimum and maximum; {} of an empty array."""
  return {
      name: json_files.number(getattr(x, name)())
      for name in ("mean", "min", "max")
      if x.size
  }


def _optimizer_step(found: Any, m: int) -> dict[str, Any]:
  step = found.steps[m]
  metrics = {k: json_files.number(x) for k, x in sorted(step.metrics.items())}
  mask_BT = found.batch.mask_BT[found.order_MB[m]]
  return dict(
      number=m + 1,
      updated=step.updated,
      tokens=int(mask_BT.sum()),
      grad_norm=metrics["grad_norm"],
      clip_fraction=metrics["pg_clipfrac"],
      ratio=_ends(step.tokens.ratio_BT[mask_BT]),
      norms={k: json_files.number(x) for k, x in found.norms[m].items()},
      metrics=metrics,
  )


def _places(found: Any, score_MBT: Array, count: int) -> list[tuple]:
  """The places (m, place in the minibatch, t) of the highest scores > 0."""
  flat = np.nan_to_num(score_MBT).reshape(-1)
  count = min(count, int((flat > 0).sum()))
  best = np.argsort(-flat, kind="stable")[:count]
  return list(zip(*np.unravel_index(best, score_MBT.shape), strict=True))


def _top_tokens(found: Any, tok: Any, arrays: dict) -> list[dict]:
  """The tokens with the largest share of the gradient of a step.

  Without shares, they are chosen by the derivative of the loss by the log-prob,
  times the probability of all other tokens: about the derivative by the logits.
  """
  score_MBT = np.abs(arrays["share_MBT"])
  if np.isnan(score_MBT).any():
    score_MBT = np.abs(arrays["weight_MBT"]) * -np.expm1(arrays["logps_MBT"])
  return _tokens(found, tok, arrays, _places(found, score_MBT, TOKENS))


def _top_ratios(found: Any, tok: Any, arrays: dict) -> list[dict]:
  """The tokens whose ratios are furthest from 1; [] if all are 1."""
  ratio_MBT = arrays["ratio_MBT"]
  used = np.where(ratio_MBT > 0, ratio_MBT, 1)
  score_MBT = np.abs(np.log(used))
  return _tokens(found, tok, arrays, _places(found, score_MBT, RATIOS))


def _tokens(found: Any, tok: Any, arrays: dict, places: list) -> list[dict]:
  rollouts, out = found.rows.rollouts, []
  prompt_slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
  for m, at, t in places:
    b = found.order_MB[m][at]
    token = [int(rollouts.tokens_BL[b, prompt_slots + t])]
    (piece,) = tokenizer.pieces(tok, token)
    numbers = {
        name: arrays[f"{name}_MBT"][m, at, t]
        for name in ("logps", "ratio", "weight", "share")
    }
    out.append(
        dict(
            optimizer_step=int(m) + 1,
            response=int(b),
            position=int(t),
            token=piece,
            clipped=bool(arrays["clipped_MBT"][m, at, t]),
            advantage=json_files.number(arrays["advantages_BT"][b, t]),
        )
        | {name: json_files.number(x, 6) for name, x in numbers.items()}
    )
  return out


def _responses(
    found: Any, arrays: dict, row_of: Callable[[int], Row], tok: Any
) -> list[dict]:
  """All responses of the batch, the groups with the largest shares first."""
  rows, rollouts, mask_BT = found.rows, found.rows.rollouts, arrays["mask_BT"]
  prompt_slots = rollouts.tokens_BL.shape[1] - mask_BT.shape[1]
  texts = tokenizer.decode(
      tok, rollouts.tokens_BL[:, prompt_slots:], rollouts.lengths_B
  )
  share_B = np.zeros(len(texts))
  np.add.at(share_B, found.order_MB, arrays["share_MBT"].sum(2))
  share_B /= len(found.order_MB)
  out: list[dict[str, Any]] = []
  for b in np.flatnonzero(rows.age_B >= 0):
    row = samples.row_of_response(row_of, tok, rollouts, int(b))
    own = arrays["advantages_BT"][b][mask_BT[b]]
    correct = int(rows.correct_B[b])
    out.append(
        dict(
            response=int(b),
            group=int(rollouts.ids_B[b]),
            prompt=row.prompt,
            answer=row.answer,
            text=texts[b],
            correct=correct if correct >= 0 else None,
            truncated=bool(rollouts.truncated_B[b]),
            length=int(rollouts.policy_lengths_B[b]),
            age=int(rows.age_B[b]),
            reward=json_files.number(arrays["rewards_B"][b]),
            advantage=_ends(own),
            ratio_after=_ends(arrays["ratio_after_BT"][b][mask_BT[b]]),
            share=json_files.number(share_B[b], 6),
        )
    )
  of_group: dict[int, float] = {}
  for line in out:
    of_group.setdefault(line["group"], 0.0)
    of_group[line["group"]] += abs(line["share"] or 0.0)
  return sorted(out, key=lambda x: (-of_group[x["group"]], x["response"]))


# --- what would have been different -------------------------------------------


def different(found: Any) -> dict[str, Any]:
  """How another config's credit and update differ from the run's.

  Pairs are of the run and of the other config.
  """
  other = found.other
  one, two = found.batch, other.batch
  mask_BT = one.mask_BT | two.mask_BT
  before, after = one.advantages_BT[mask_BT], two.advantages_BT[mask_BT]
  gap = np.abs(after - before)
  rewards = np.abs(other.credit["rewards_B"] - found.credit["rewards_B"])
  rewards = rewards[(found.rows.age_B >= 0) & np.isfinite(rewards)]
  returns = np.abs(two.returns_BT - one.returns_BT)[mask_BT]
  pairs = [*zip(found.steps, other.steps, strict=False)]
  cosines = found.cosines or (None,) * len(pairs)
  number = json_files.number
  return dict(
      rewards=dict(
          max=number(rewards.max(initial=0)),
          responses_changed=int((rewards > 0).sum()),
      ),
      advantages=dict(
          max=number(gap.max(initial=0)),
          mean=number(gap.mean() if gap.size else 0),
          sign_changes=int((np.sign(before) != np.sign(after)).sum()),
          tokens=int(mask_BT.sum()),
      ),
      returns=dict(max=number(returns.max(initial=0))),
      tokens_in_the_loss=[int(x.mask_BT.sum()) for x in (one, two)],
      number_of_optimizer_steps=[len(found.steps), len(other.steps)],
      optimizer_steps=[
          dict(
              number=m,
              clip_fraction=[number(x.metrics["pg_clipfrac"]) for x in pair],
              grad_norm=[number(x.metrics["grad_norm"]) for x in pair],
              cosine=None if cosine is None else number(cosine),
          )
          for m, (pair, cosine) in enumerate(
              zip(pairs, cosines, strict=True), 1
          )
      ],
      parameter_change=dict(
          norm=[number(found.change), number(other.change)],
          cosine=None if found.cosine is None else number(found.cosine),
      ),
  )


# --- tables -------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
  """replay.md: the tables of replay.json, for people."""
  begin = "the beginning of RL"
  if record["checkpoint"] is not None:
    begin = f"checkpoint {record['checkpoint']}"
  batch, step = record["batch"], record["step"]
  parts = [
      f"# Replay of step {step}",
      f"    {record['command']}",
      f"From {begin}; {verdict(record['recorded'], step)}.",
      f"{batch['responses']} responses to {batch['groups']} prompts,"
      f" {batch['tokens_in_the_loss']} tokens in the loss. Rewards"
      f" {_range(batch['rewards'])}; advantages {_range(batch['advantages'])}."
      f" Ratios after the step {_range(record['ratio_after'])}.",
  ]
  if "different" in record:
    parts += ["## What would have been different", *_different(record)]
  parts += [
      "## Optimizer steps",
      table(
          ("step", "tokens", "gradient norm", "clip fraction", "ratios"),
          (
              (
                  f"{x['number']}{'' if x['updated'] else ' (skipped)'}",
                  x["tokens"],
                  text(x["grad_norm"]),
                  text(x["clip_fraction"]),
                  _range(x["ratio"]),
              )
              for x in record["optimizer_steps"]
          ),
      ),
      "## Gradient norm by layer",
      _layers(record["optimizer_steps"]),
      "## Tokens with the largest share of the gradient",
      "The share of a token is its own gradient times the whole gradient,"
      " divided by the squared norm of the whole: the shares of an optimizer"
      " step add up to 1, and a token of negative share pulls against the"
      " others. The weight is the derivative of the loss by the log-prob.",
      _token_table(record["tokens"]),
      "## Largest ratios",
      _token_table(record["ratios"]) if record["ratios"] else "All are 1.",
      "## Responses",
      f"The {GROUPS} prompts with the largest shares of the gradient;"
      " replay.json has all.",
      *_groups(record["responses"]),
  ]
  return "\n\n".join(parts) + "\n"


def _different(record: dict[str, Any]) -> list[str]:
  d = record["different"]
  overrides = ", ".join(f"{k} = {x}" for k, x in record["overrides"].items())
  advantages, change = d["advantages"], d["parameter_change"]
  out = [
      f"With {overrides}:",
      f"- Rewards: {d['rewards']['responses_changed']} responses change, by at"
      f" most {text(d['rewards']['max'])}.\n"
      f"- Advantages: they change by at most {text(advantages['max'])}, by"
      f" {text(advantages['mean'])} on average; the sign changes at"
      f" {advantages['sign_changes']} of {advantages['tokens']} tokens.\n"
      f"- Tokens in the loss: {_pair(d['tokens_in_the_loss'])}.\n"
      f"- Change of the parameters: norm {_pair(change['norm'])}, cosine"
      f" {text(change['cosine'])}.",
  ]
  if len({*d["number_of_optimizer_steps"]}) > 1:
    steps = _pair(d["number_of_optimizer_steps"])
    return [*out, f"Optimizer steps: {steps}, which cannot be paired."]
  return [*out, table(*_different_steps(d))]


def _different_steps(d: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
  head = ["step", "clip fraction", "gradient norm", "gradient cosine"]
  return head, [
      [
          str(x["number"]),
          _pair(x["clip_fraction"]),
          _pair(x["grad_norm"]),
          text(x["cosine"]),
      ]
      for x in d["optimizer_steps"]
  ]


def _pair(pair: list) -> str:
  before, after = map(text, pair)
  return f"{before} -> {after}"


def _layers(steps: list[dict]) -> str:
  names = list(steps[0]["norms"])
  return table(
      ("", *(f"step {x['number']}" for x in steps)),
      ((name, *(text(x["norms"][name]) for x in steps)) for name in names),
  )


TOKEN_HEAD = (
    *("step", "response", "position", "token", "probability"),
    *("ratio", "advantage", "weight", "share", ""),
)


def _token_rows(tokens: list[dict]) -> list[list[str]]:
  return [
      [
          str(x["optimizer_step"]),
          str(x["response"]),
          str(x["position"]),
          repr(x["token"]),
          text(None if x["logps"] is None else np.exp(x["logps"])),
          text(x["ratio"]),
          text(x["advantage"]),
          text(x["weight"]),
          text(x["share"]),
          "clipped" if x["clipped"] else "",
      ]
      for x in tokens
  ]


def _token_table(tokens: list[dict]) -> str:
  return table(TOKEN_HEAD, _token_rows(tokens))


def _groups(responses: list[dict]) -> list[str]:
  """Prompts and responses as code blocks: text of a model is no markup."""
  shown = list(dict.fromkeys(x["group"] for x in responses))[:GROUPS]
  out = []
  for group in shown:
    lines = [x for x in responses if x["group"] == group]
    out += [f"### Prompt {group}", _code(lines[0]["prompt"])]
    for x in lines:
      correct = samples.VERDICTS[x["correct"]]
      out.append(
          f"Response {x['response']}: correct: {correct}, reward"
          f" {text(x['reward'])}, advantage {_range(x['advantage'])},"
          f" {x['length']} tokens{', truncated' * x['truncated']}, share"
          f" {text(x['share'])}, ratio after {_range(x['ratio_after'])}"
      )
      out.append(_code(excerpt(x["text"], 600, 20)))
  return out


def _code(lines: str) -> str:
  return "\n".join(f"    {x}" for x in lines.split("\n"))


def _range(x: dict[str, Any]) -> str:
  """One number, or mean and ends."""
  if not x:
    return "none"
  if x["min"] == x["max"]:
    return text(x["mean"])
  return f"{text(x['mean'])} ({text(x['min'])} to {text(x['max'])})"


def text(x: Any) -> str:
  """A number with four significant digits."""
  if x is None:
    return "-"
  return str(x) if isinstance(x, int) else f"{float(x):.4g}"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
  """A table of Markdown."""
  head = list(head)
  lines = [head, ["---"] * len(head), *rows]
  cells = [
      [str(x).replace("|", "\\|").replace("\n", " ") for x in line]
      for line in lines
  ]
  return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _show(record: dict[str, Any], display: Display) -> None:
  """The essence on the screen."""
  step, batch = record["step"], record["batch"]
  display.say(f"step {step}: {verdict(record['recorded'], step)}")
  # The record has None for numbers that are not finite: NaN here.
  norms, fractions = (
      np.array([x[name] for x in record["optimizer_steps"]], float)
      for name in ("grad_norm", "clip_fraction")
  )
  display.say(
      f"step {step}: {batch['responses']} responses, rewards"
      f" {_range(batch['rewards'])}, advantages {_range(batch['advantages'])},"
      f" gradient norm {_range(_ends(norms))}, clip fraction"
      f" {_range(_ends(fractions))} in {len(norms)} optimizer steps"
  )
  display.table(
      f"step {step}: tokens with the largest share of the gradient",
      [*TOKEN_HEAD],
      _token_rows(record["tokens"][:5]),
  )
  if "different" in record:
    d = record["different"]
    for line in _different(record)[1].split("\n"):
      display.say(line.removeprefix("- "))
    if len({*d["number_of_optimizer_steps"]}) == 1:
      display.table("what would have been different", *_different_steps(d))
