"""The table of signs: what shows that RL goes wrong, and what to change.

`signs.toml` is the table, with a predicate on the metrics of the last steps in
each row; the predicates that are more than a bound are here. `doctor.py` asks
for the signs at every step. docs/playbook.md is rendered from the table: after
a change, replace that of the page by the output of

  python -m rl_reason.monitoring.signs
"""

import pathlib
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason.monitoring import alarms, updates as updates_lib

SIGN = "sign/"  # names of what only the doctor reads; it is not logged
WINDOW = 10  # steps that predicates see
OF_PRETRAINING = (  # signs that value pretraining can have, too
    "Failures of the verifier",
    "Failures of reward functions",
    "Clipped targets of the critic",
)
GAP = "rollout/logp_gap_mean"
BROKEN = "rollout/broken_responses"  # share; only where there are any
BROKEN_HELD_OUT = "val-aux/broken_responses"  # responses; likewise

Steps = Sequence[dict[str, Any]]  # lines of metrics.jsonl, the newest last
Fields = dict[str, Any]  # the flat config


class Sign(NamedTuple):
  """A row of the table.

  Attributes:
    name: of the symptom.
    where: the metric and its bound, in Markdown.
    seen: (steps, fields) -> what is seen, in numbers; '' without the sign.
    cause: the likely one.
    remedy: with the fields to change.
    ends: the field that says how many steps in a row with this sign end a run;
      '': they never do.
    all_lines: `seen` takes all lines of a run; asked after an evaluation.
  """

  name: str
  where: str
  seen: Callable[[Steps, Fields], str]
  cause: str
  remedy: str
  ends: str = ""
  all_lines: bool = False

  @property
  def metric(self) -> str:
    """The name in metrics.jsonl: 1 in a step that has the sign, or missing."""
    return "alarm/" + re.sub(r"\W+", "_", self.name.lower())

  def text(self, seen: str, fields: Fields) -> str:
    """One line for the screen: the remedy with the present values of fields."""

    def value(found: re.Match) -> str:
      now = fields.get(found["field"])
      known = isinstance(now, (bool, int, float, str))
      return f"{found[0]} (now {now!r})" if known else found[0]

    is_so = {f"{name} {now!r}" for name, now in fields.items()}
    parts = [x for x in self.remedy.split("; ") if x not in is_so]
    remedy = _ADVICE.sub(value, "; ".join(parts))
    return f"{self.name}: {seen}. Likely cause: {self.cause}. Try: {remedy}"


_FIELD = re.compile(r"(?P<field>\b[a-z_]+(?:\.[a-z_]+)+\b)")
_ADVICE = re.compile(_FIELD.pattern + r"( '\w+'| True| False| \d+(\.\d+)?)?")


# --- predicates: (steps, fields) -> what is seen, or '' ----------------------


def number(x: dict[str, Any], name: str) -> float:
  """A metric of a step; 0 where it is missing or not finite."""
  return x.get(name) or 0.0


def _beyond(name: str, bound: float, words: str) -> Callable:
  """Whether |metric| of the newest step > bound."""

  def seen(steps, fields):
    del fields
    value = abs(number(steps[-1], name))
    return words.format(value) if value > bound else ""

  return seen


def _other_weights(steps, fields):
  del fields
  return steps[-1].get(SIGN + "other_weights", "")


def _other_logps(steps, fields):
  del fields
  x = steps[-1]
  gap, bound = number(x, GAP), number(x, SIGN + "gap_bound")
  if not 0 < bound < gap:
    return ""
  return f"they differ by {gap:.3g} nats a token, and precision by {bound:.1g}"


def _responses(x: dict[str, Any], fields: Fields) -> str:
  rounds = x.get("train/generation_rounds") or 1
  batches = fields["dynamic_sampling.batches"]
  return f"{rounds * batches * fields['rollout.batch']:,.0f} responses"


def _failed(x: dict[str, Any]) -> dict[str, int]:
  """Failures of each reward function that had any."""
  names = [k for k in x if re.fullmatch("reward/.+/failures", k) and x[k]]
  return {k[len("reward/") : -len("/failures")]: int(x[k]) for k in names}


def _verifier(steps, fields):
  x = steps[-1]
  failures = number(x, "train/verifier_failures") - sum(_failed(x).values())
  if failures <= 0:
    return ""
  return f"the verifier failed on {failures:,.0f} of {_responses(x, fields)}"


def _functions(steps, fields):
  x = steps[-1]
  if not (failed := _failed(x)):
    return ""
  times = f"{', '.join(failed)} failed {sum(failed.values()):,} times"
  return f"{times} on {_responses(x, fields)}"


def _rewards(steps, fields):
  x = steps[-1]
  lost = number(x, "train/rewards_not_finite")
  # Where the verifier or a function failed, the reward is NaN by design.
  if not lost or number(x, "train/verifier_failures"):
    return ""
  of = f"{lost:,.0f} of {fields['rollout.batch']:,} responses"
  return f"the rewards of {of} are NaN or infinite"


def _broken(steps, fields):
  del fields
  x, why = steps[-1], "log-probabilities that are not finite, or all the same"
  if BROKEN_HELD_OUT in x:
    return f"{x[BROKEN_HELD_OUT]:,} responses to held-out prompts have {why}"
  share = number(x, BROKEN)
  return f"{share:.0%} of the responses have {why}" if share else ""


def _not_finite(steps, fields):
  x, wanted = steps[-1], updates_lib.per_step(fields)
  count = updates_lib.count(x, wanted).not_finite
  if not count and x.get("critic/grad_norm", 0) is not None:
    return ""
  what = f"{count} of {wanted} updates" if count else "updates of the critic"
  out = f"{what} skipped, gradients not finite"
  if x.get("critic/advantages/mean", 0) is None:
    return out + "; the advantages are not finite"
  half = fields["model.dtype"] == "float16"
  return out + "; float16 overflows beyond 65,504" * half


def _no_critic(steps, fields):
  x, wanted = steps[-1], updates_lib.per_step(fields)
  skipped = number(x, "critic/update_skipped")
  if skipped < wanted or x.get("critic/grad_norm", 0) is not None:
    return ""
  return f"{skipped:.0f} of {wanted} updates of the critic skipped"


def _too_large(steps, fields):
  del fields
  x, out = steps[-1], []
  kl, clipped = number(x, "actor/ppo_kl"), number(x, "actor/pg_clipfrac")
  if kl > 0.5:
    out.append(f"KL to the policy that sampled {kl:.3g} nats per token")
  if clipped > 0.9:
    out.append(f"{clipped:.0%} of the tokens clipped")
  if number(x, "actor/updates") and number(x, "actor/ess") < 0.05:
    out.append(f"effective sample size {number(x, 'actor/ess'):.2g} of 1")
  return ", ".join(out)


def _grows(steps, fields):
  del fields
  for name in ("actor/grad_norm", "critic/grad_norm"):
    norms = [number(x, name) for x in steps[-5:]]
    pairs = zip(norms, norms[1:], strict=False)
    if len(norms) == 5 and all(b >= 1.3 * a > 0 for a, b in pairs):
      return f"{name} grew from {norms[0]:.3g} to {norms[-1]:.3g} in 4 steps"
  return ""


def _spike(steps, fields):
  del fields
  for name in ("actor/grad_norm", "critic/grad_norm"):
    before = [x for x in (number(x, name) for x in steps[:-1]) if x]
    if len(before) < 3:
      continue
    usual, now = statistics.median(before), number(steps[-1], name)
    if now > 100 * usual:
      return f"{name} is {now:.3g}, {now / usual:.2g} times the usual"
  return ""


def _loss(steps, fields):
  del fields
  x = steps[-1]
  for network in ("actor", "critic"):
    if x.get(f"{network}/grad_norm") is None:  # has a sign of its own
      continue
    names = [k for k in x if re.fullmatch(rf"{network}/\w*loss", k)]
    if lost := [k for k in names if x[k] is None]:
      return f"{', '.join(lost)} is not finite, and the gradient is"
  return ""


def _falls(steps, fields):
  del fields
  best, now = _best_and_now(steps, "train/accuracy")
  if best >= 0.1 and now < best / 4:
    return f"accuracy in training fell from {best:.1%} to {now:.1%}"
  best, now = _best_and_now(steps, "critic/rewards/mean")
  spread = max(number(x, "critic/rewards/std") for x in steps)
  if not spread or now > best - 2 * spread:
    return ""
  return f"the mean reward fell from {best:.3g} to {now:.3g}"


def _best_and_now(steps, name) -> tuple[float, float]:
  """The best mean of 3 steps in a row, and the greatest of the last 3."""
  known = [x[name] for x in steps if x.get(name) is not None]
  means = [statistics.mean(known[t : t + 3]) for t in range(len(known) - 2)]
  return (max(means), max(known[-3:])) if means else (0.0, 0.0)


def _window(steps, name, of) -> list[float]:
  """A metric in the steps that have rows; [] if the newest one has none."""
  known = [number(x, name) for x in steps if number(x, of) > 0]
  return known if number(steps[-1], of) > 0 else []


def _collapse(steps, fields):
  del fields
  found = _window(steps[-1:], "actor/entropy", "actor/updates")
  if not found or found[-1] >= 1e-3:
    return ""
  return f"the entropy is {found[-1]:.2g} nats per token"


def _explosion(steps, fields):
  del fields
  found = _window(steps, "actor/entropy", "actor/updates")
  if not found or found[-1] <= min(3.5, min(found) + 1.5):
    return ""
  return f"the entropy is {found[-1]:.3g} nats per token, from {min(found):.3g}"


def _length(steps, factor):
  """Whether the mean length grew (factor > 1) or fell by a factor."""
  known = _window(steps, "response_length/mean", "response_length/max")
  if not known:
    return ""
  before = min(known) if factor > 1 else max(known)
  ratio = known[-1] / max(before, 1e-9)
  if ratio < factor if factor > 1 else ratio > factor:
    return ""
  return f"responses have {known[-1]:.4g} tokens, from {before:.4g}"


def _critic(steps, fields):
  del fields
  found = [number(x, "critic/vf_explained_var") for x in steps[-5:]]
  if len(found) < 5 or max(found) >= 0:
    return ""
  return f"explained variance {found[-1]:.2g}, negative in 5 steps in a row"


def _no_signal(steps, fields):
  x, size = steps[-1], fields["rollout.group_size"]
  filled = number(x, "train/groups_with_signal") * size
  if filled >= fields["rollout.batch"] / 2:
    return ""  # dynamic sampling has filled the batch
  # A critic learns from groups of equal rewards; a group of one has no others.
  alone = size == 1 or "critic/vf_loss" in x
  same = number(x, "train/no_signal")
  if "train/no_signal" in x:
    few = same >= 0.9 and not alone
    return f"{same:.0%} of the groups have equal rewards" * few
  shares = [number(x, f"train/all_{y}") for y in ("incorrect", "correct")]
  if sum(shares) < 0.9 or (alone and max(shares) < 0.98):
    return ""
  text = "{:.0%} of the groups are all incorrect, {:.0%} all correct"
  return text.format(*shares)


def _incomplete(steps, fields):
  missing = number(steps[-1], "train/groups_missing")
  groups = fields["rollout.batch"] / fields["rollout.group_size"]
  if missing < groups / 2:
    return ""
  rounds = number(steps[-1], "train/generation_rounds")
  of = f"{missing:g} of {groups:g} groups of the batch"
  return f"{of} are missing after {rounds:g} rounds"


def _constant(steps, fields):
  count = updates_lib.count(steps[-1], updates_lib.per_step(fields))
  return "the gradient is exactly 0" if count.constant else ""


def _no_update(steps, fields):
  count = updates_lib.count(steps[-1], updates_lib.per_step(fields))
  return "" if count.made else "this step made no update"


def _longer(steps, fields):
  del fields
  return _length(steps, 3)


def _shorter(steps, fields):
  del fields
  return _length(steps, 1 / 3)


def _hacking(lines, fields):
  del fields
  return "; ".join(alarms.alarms(list(lines)))


# --- the table ---------------------------------------------------------------


def _sign(row: dict[str, Any]) -> Sign:
  """A row of signs.toml; its predicate is a bound, or a function above."""
  bound = [row.pop(k) for k in ("metric", "above", "words") if k in row]
  seen = _beyond(*bound) if bound else globals()[f"_{row.pop('seen')}"]
  return Sign(seen=seen, **row)


TABLE = tuple(
    map(
        _sign,
        tomllib.loads(
            pathlib.Path(__file__).with_suffix(".toml").read_text("utf-8")
        )["sign"],
    )
)


def found(steps: Steps, fields: Fields) -> list[tuple[Sign, str]]:
  """The signs of a step with their lines for the screen, causes first.

  Args:
    steps: the last lines of metrics.jsonl of stage 'rl', at most `WINDOW`; the
      newest with the numbers under `SIGN`, if they are known.
    fields: the flat config.
  """
  known = [(x, x.seen(steps, fields)) for x in TABLE if not x.all_lines]
  return [(sign, sign.text(seen, fields)) for sign, seen in known if seen]


def of_pretraining(x: dict[str, Any], fields: Fields) -> dict[str, str]:
  """The signs of a step of value pretraining: name -> line for the screen."""
  rows = [sign for sign in TABLE if sign.name in OF_PRETRAINING]
  seen = {y.name: (y, y.seen([x], fields)) for y in rows}
  return {k: y.text(what, fields) for k, (y, what) in seen.items() if what}


def of_run(lines: Steps) -> list[str]:
  """The alarms of a whole run, one line each; [] of a healthy one.

  Args:
    lines: of metrics.jsonl.
  """
  steps = [x for x in lines if x["stage"] == "rl"]
  out = alarms.alarms(list(lines))
  for sign in TABLE:
    at = [x["step"] for x in steps if x.get(sign.metric)]
    if at:
      out.append(
          f"{sign.name} in {len(at):,} of {len(steps):,} steps, {at[0]} to"
          f" {at[-1]}: {sign.cause} (docs/playbook.md)"
      )
  return out


def table() -> str:
  """The table as Markdown, for docs/playbook.md."""
  rows = ["| symptom | metric | likely cause | try |", "|---|---|---|---|"]
  for x in TABLE:
    remedy = _FIELD.sub(r"`\g<0>`", x.remedy)
    rows.append(f"| {x.name} | {x.where} | {x.cause} | {remedy} |")
  return "\n".join(rows) + "\n"


if __name__ == "__main__":
  print(table(), end="")
