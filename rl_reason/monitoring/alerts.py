"""Alerts: the evidence that RL goes wrong, the likely cause and the remedy.

`alerts.toml` has one rule for each alert: a bound of a metric, or the name of a
predicate of this module. `health.py` checks the rules at every step.
docs/alerts.md is written from the rules by `python docs/reference_pages.py`.
"""

import pathlib
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_reason import features
from rl_reason.base import feature
from rl_reason.base.structs import call_by_name
from rl_reason.monitoring import updates

ALERT = "alert/"  # prefix of the metrics of alerts
HEALTH = "health/"  # prefix of metrics that only rules read; never logged
WINDOW = 10  # steps that predicates see
SOLVED = 0.75  # share of the groups that are all correct
BROKEN_POLICY, NO_UPDATE = "Broken policy", "No update"  # names of alerts
GAP = "rollout/logp_gap_mean"
BROKEN = "rollout/broken_responses"  # share; logged only if there are any
BROKEN_HELD_OUT = "val-aux/broken_responses"  # number; only if there are any

START = 3  # steps of a mean of the entropy
EXPLODED = 1.5  # nats per token: a rise of the entropy that no learning has
ENTROPY_START = HEALTH + "entropy_start"
# Of a relative collapse: the share that is left of the highest mean so far,
# the accuracy of a skill that is learned, and a rise of the accuracy.
LOST, LEARNED, RISE = 0.2, 0.6, 0.05

Steps = Sequence[dict[str, Any]]  # lines of metrics.jsonl, the newest last
Fields = dict[str, Any]  # the flat config


class Rule(NamedTuple):
  """A rule of alerts.toml.

  Attributes:
    name: of the alert.
    where: the metric and its bound, in Markdown.
    predicate: gets the inputs that its parameters name, of `step`, `steps` and
      `fields` (see `of_step`), and returns the evidence, in numbers; '' without
      an alert. With `whole_run`: lines of metrics.jsonl -> messages.
    cause: the likely cause.
    remedy: with the fields to change.
    limit: the field with the number of consecutive steps with this alert that
      ends a run; '': the alert never ends a run.
    whole_run: the predicate reads all lines of a run, after an evaluation.
    pretraining: steps of value pretraining are checked, too.
  """

  name: str
  where: str
  predicate: Callable[..., Any]
  cause: str
  remedy: str
  limit: str = ""
  whole_run: bool = False
  pretraining: bool = False

  @property
  def metric(self) -> str:
    """The name in metrics.jsonl: 1 in a step with the alert, else missing."""
    return ALERT + _identifier(self.name)

  def message(self, evidence: str, fields: Fields) -> str:
    """One line for the screen; the remedy has the present values of fields."""

    def value(found: re.Match) -> str:
      now = fields.get(found["field"])
      known = isinstance(now, (bool, int, float, str))
      return f"{found[0]} (now {now!r})" if known else found[0]

    is_so = {f"{name} {now!r}" for name, now in fields.items()}
    parts = [x for x in self.remedy.split("; ") if x not in is_so]
    remedy = _ADVICE.sub(value, "; ".join(parts))
    return f"{self.name}: {evidence}. Likely cause: {self.cause}. Try: {remedy}"


class Alert(NamedTuple):
  """An alert of a step: its rule, and one line for the screen."""

  rule: Rule
  message: str


_ADVICE = re.compile(
    r"(?P<field>\b[a-z_]+(?:\.[a-z_]+)+\b)( '\w+'| True| False| \d+(\.\d+)?)?"
)


# --- predicates: any of (step, steps, fields) -> the evidence, or '' ----------


def number(x: dict[str, Any], name: str) -> float:
  """A metric of a step; 0 if it is missing or not finite."""
  return x.get(name) or 0.0


def _above(name: str, bound: float, evidence: str) -> Callable[..., str]:
  """Whether |metric| of the step > bound."""

  def check(step):
    value = abs(number(step, name))
    return evidence.format(value) if value > bound else ""

  return check


def _weights_of_another_policy(step):
  return step.get(HEALTH + "other_weights", "")


def _log_probs_of_another_policy(step):
  gap, bound = number(step, GAP), number(step, HEALTH + "gap_bound")
  if not 0 < bound < gap:
    return ""
  return (
      f"sampler and trainer differ by {gap:.3g} nats per token, and rounding"
      f" explains {bound:.1g}"
  )


def _responses(step, fields) -> str:
  rounds = step.get("train/generation_rounds") or 1
  batches = fields["dynamic_sampling.batches"]
  return f"{rounds * batches * fields['rollout.batch']:,.0f} responses"


def _failed(step) -> dict[str, int]:
  """Failures of each reward function that had any."""
  names = [k for k in step if re.fullmatch("reward/.+/failures", k) and step[k]]
  return {k[len("reward/") : -len("/failures")]: int(step[k]) for k in names}


def _failures_of_the_verifier(step, fields):
  failures = number(step, "train/verifier_failures")
  failures -= sum(_failed(step).values())
  if failures <= 0:
    return ""
  return f"the verifier failed on {failures:,.0f} of {_responses(step, fields)}"


def _failures_of_reward_functions(step, fields):
  if not (failed := _failed(step)):
    return ""
  times = f"{', '.join(failed)} failed {sum(failed.values()):,} times"
  return f"{times} on {_responses(step, fields)}"


def _rewards_that_are_not_finite(step, fields):
  lost = number(step, "train/rewards_not_finite")
  # Where the verifier or a function failed, the reward is NaN by design.
  if not lost or number(step, "train/verifier_failures"):
    return ""
  of = f"{lost:,.0f} of {fields['rollout.batch']:,} responses"
  return f"the rewards of {of} are NaN or infinite"


def _broken_policy(step):
  why = "log-probs that are not finite, or all the same"
  if BROKEN_HELD_OUT in step:
    return f"{step[BROKEN_HELD_OUT]:,} responses of the evaluation have {why}"
  share = number(step, BROKEN)
  return f"{share:.0%} of the responses have {why}" if share else ""


def _nan_skipped_updates(step, fields):
  wanted = updates.per_step(fields)
  count = updates.count(step, wanted).not_finite
  if not count and step.get("critic/grad_norm", 0) is not None:
    return ""
  what = f"{count} of {wanted} updates" if count else "updates of the critic"
  out = f"{what} skipped, gradients not finite"
  if step.get("critic/advantages/mean", 0) is None:
    return out + "; the advantages are not finite"
  half = fields["model.dtype"] == "float16"
  return out + "; float16 overflows beyond 65,504" * half


def _no_update_of_the_critic(step, fields):
  wanted = updates.per_step(fields)
  skipped = number(step, "critic/update_skipped")
  if skipped < wanted or step.get("critic/grad_norm", 0) is not None:
    return ""
  return f"{skipped:.0f} of {wanted} updates of the critic skipped"


def _updates_too_large(step):
  out = []
  kl, clipped = number(step, "actor/ppo_kl"), number(step, "actor/pg_clipfrac")
  if kl > 0.5:
    out.append(f"KL to the policy that sampled {kl:.3g} nats per token")
  if clipped > 0.9:
    out.append(f"{clipped:.0%} of the tokens clipped")
  if number(step, "actor/updates") and number(step, "actor/ess") < 0.05:
    out.append(f"effective sample size {number(step, 'actor/ess'):.2g} of 1")
  return ", ".join(out)


def _growing_gradient(steps):
  for name in ("actor/grad_norm", "critic/grad_norm"):
    norms = [number(x, name) for x in steps[-5:]]
    pairs = zip(norms, norms[1:], strict=False)
    if len(norms) == 5 and all(b >= 1.3 * a > 0 for a, b in pairs):
      return f"{name} grew from {norms[0]:.3g} to {norms[-1]:.3g} in 4 steps"
  return ""


def _jump_of_the_gradient(steps):
  for name in ("actor/grad_norm", "critic/grad_norm"):
    before = [x for x in (number(x, name) for x in steps[:-1]) if x]
    if len(before) < 3:
      continue
    median, now = statistics.median(before), number(steps[-1], name)
    if now > 100 * median:
      return f"{name} is {now:.3g}, {now / median:.2g} times its median"
  return ""


def _loss_that_is_not_finite(step):
  for network in ("actor", "critic"):
    if step.get(f"{network}/grad_norm") is None:  # has an alert of its own
      continue
    names = [k for k in step if re.fullmatch(rf"{network}/\w*loss", k)]
    if lost := [k for k in names if step[k] is None]:
      return f"{', '.join(lost)} is not finite, and the gradient is"
  return ""


def _fall_of_the_reward(steps):
  best, now = _best_and_now(steps, "train/accuracy")
  if best >= 0.1 and now < best / 4:
    return f"accuracy in training fell from {best:.1%} to {now:.1%}"
  best, now = _best_and_now(steps, "critic/rewards/mean")
  spread = max(number(x, "critic/rewards/std") for x in steps)
  if not spread or now > best - 2 * spread:
    return ""
  return f"the mean reward fell from {best:.3g} to {now:.3g}"


def _best_and_now(steps, name) -> tuple[float, float]:
  """The best mean of 3 consecutive steps, and the maximum of the last 3."""
  known = [x[name] for x in steps if x.get(name) is not None]
  means = [statistics.mean(known[t : t + 3]) for t in range(len(known) - 2)]
  return (max(means), max(known[-3:])) if means else (0.0, 0.0)


def _window(steps, name, of) -> list[float]:
  """A metric in the steps that have rows; [] if the newest step has none."""
  known = [number(x, name) for x in steps if number(x, of) > 0]
  return known if number(steps[-1], of) > 0 else []


def _entropy_collapse(steps):
  found = _window(steps, "actor/entropy", "actor/updates")
  if not found:
    return ""
  # Of nearly all responses correct no other ones are wanted.
  if found[-1] < 1e-3 and number(steps[-1], "train/accuracy") < 0.99:
    return f"the entropy is {found[-1]:.2g} nats per token"
  start = number(steps[-1], ENTROPY_START)
  if not (_is_lost(steps, start) and _is_lost(steps[:-1], start)):
    return ""
  return (
      f"the entropy is {found[-1]:.2g} nats per token, from {start:.2g} at its"
      " highest, and the accuracy no longer rises"
  )


def _is_lost(steps, start: float) -> bool:
  """Whether the entropy is gone before the skill is learned.

  On the way to 100% the entropy falls as far, but then the accuracy rises.
  """
  entropy = _window(steps, "actor/entropy", "actor/updates")[-START:]
  known = [x.get("train/accuracy") for x in steps[-2 * START :]]
  if len(entropy) < START or len(known) < 2 * START or None in known:
    return False
  before, now = statistics.mean(known[:START]), statistics.mean(known[START:])
  low = statistics.mean(entropy) < LOST * start
  return low and now < LEARNED and now <= before + RISE


def _entropy_explosion(steps):
  found = _window(steps, "actor/entropy", "actor/updates")
  if not found or found[-1] <= min(3.5, min(found) + EXPLODED):
    return ""
  return f"the entropy is {found[-1]:.3g} nats per token, from {min(found):.3g}"


def _length_explosion(steps):
  known = _window(steps, "response_length/mean", "response_length/max")
  if not known or known[-1] < 3 * max(min(known), 1e-9):
    return ""
  found = [number(x, "train/accuracy") for x in steps]
  if statistics.mean(found[-3:]) > statistics.mean(found[:3]) + 0.1:
    return ""  # correct responses need the length
  return f"responses have {known[-1]:.4g} tokens, from {min(known):.4g}"


def _length_collapse(steps):
  known = _window(steps, "response_length/mean", "response_length/max")
  if not known or known[-1] > max(known) / 3:
    return ""
  return f"responses have {known[-1]:.4g} tokens, from {max(known):.4g}"


def _critic_without_predictive_power(steps):
  found = [number(x, "critic/vf_explained_var") for x in steps[-5:]]
  if len(found) < 5 or max(found) >= 0:
    return ""
  if statistics.mean(number(x, "train/accuracy") for x in steps[-5:]) >= 0.9:
    return ""  # rare mistakes are left, which no state announces
  return f"explained variance {found[-1]:.2g}, negative in 5 consecutive steps"


def perhaps_right(step: dict[str, Any]) -> str:
  """How many rejected responses the verifier may not have read; '' without."""
  if count := number(step, "train/perhaps_right"):
    return f"; {count:g} rejected responses are perhaps right"
  return ""


def _few_groups_with_signal(step, steps, fields):
  if any(fields.get(name) for name in feature.marked("teaches")):
    return ""  # every response has a signal
  solved = number(step, "train/all_correct") >= SOLVED
  if solved and len(steps) == WINDOW:
    return ""  # the run has learned the task: it is not ill
  size = fields["rollout.group_size"]
  filled = number(step, "train/groups_with_signal") * size
  if filled >= fields["rollout.batch"] / 2:
    return ""  # dynamic sampling has filled the batch
  # A critic learns from groups of equal rewards; a group of one has no others.
  alone = size == 1 or "critic/vf_loss" in step
  same = number(step, "train/no_signal")
  if "train/no_signal" in step:
    few = same >= 0.9 and not alone
    return f"{same:.0%} of the groups have equal rewards" * few
  shares = [number(step, f"train/all_{y}") for y in ("incorrect", "correct")]
  if sum(shares) < 0.9 or (alone and max(shares) < 0.98):
    return ""
  text = "{:.0%} of the groups are all incorrect, {:.0%} all correct"
  return text.format(*shares) + perhaps_right(step)


def _incomplete_batches(step, steps, fields):
  if fields.get("dynamic_sampling.max_rounds") == 1:
    return ""  # dropped groups are not replaced
  missing = number(step, "train/groups_missing")
  groups = fields["rollout.batch"] / fields["rollout.group_size"]
  # A single step is chance: of 32 healthy runs 4 had one, and one had two.
  lately = [number(x, "train/groups_missing") for x in steps[-2:]]
  if len(lately) < 2 or min(lately) < groups / 2:
    return ""
  rounds = number(step, "train/generation_rounds")
  of = f"{missing:g} of {groups:g} groups of the batch"
  return f"{of} are missing after {rounds:g} rounds"


def _gradient_of_0(step, fields):
  count = updates.count(step, updates.per_step(fields))
  return "the gradient is exactly 0" if count.constant else ""


def _no_update(step, fields):
  count = updates.count(step, updates.per_step(fields))
  return "" if count.made else "this step made no update"


# --- a predicate on a whole run: lines -> messages ---------------------------

_MEAN = re.compile(r"val-core/[^/]+/acc/mean@\d+")
_REWARD, _SCORE = "critic/rewards/mean", "critic/score/mean"
_LENGTH = "val-aux/response_length/mean"
_REPETITION = "val-aux/repetition/mean"


def _reward_hacking(
    lines: list[dict],
    *,
    window: int = 5,
    longer: float = 2.0,
    repeats: float = 0.2,
) -> list[str]:
  """Evidence of reward hacking, and of unlearning the task, in a run so far.

  Accuracy changes if two held-out evaluations differ by more than the sum of
  the half-widths of their 95% intervals. A reward rises if the means over
  `window` steps differ by more than two standard errors of the difference.

  Args:
    lines: lines of metrics.jsonl.
    window: number of RL steps in a mean.
    longer: factor of the length before RL above which responses are too long.
    repeats: increase of the fraction of repetitive responses that is too large.

  Returns:
    one line for each finding; [] if there is none.
  """
  evaluations = [
      {name: value for name, value in x.items() if value is not None}
      for x in lines
      if x["stage"] == "evaluate"
  ]
  steps = [x for x in lines if x["stage"] == "rl"]
  out = []
  for name in sorted({k for x in evaluations for k in x if _MEAN.fullmatch(k)}):
    known = [x for x in evaluations if name in x]
    if len(known) < 2:
      continue
    first, last = known[0], known[-1]
    best = max(known, key=lambda x: x[name])
    task = name.split("/")[1]
    before, after = (
        [x for x in steps if x["step"] <= at["step"]][-window:]
        or steps[:window]  # it was best before RL
        for at in (best, last)
    )
    if _change(best, last, name) < 0 and _rose(before, after, _REWARD):
      out.append(
          f"the reward rises, but accuracy on {task} falls since step"
          f" {best['step']} ({best[name]:.1%} to {last[name]:.1%}): the reward"
          " pays for something else; read the samples"
      )
    elif _change(best, last, name) < 0 and last[name] <= best[name] / 2:
      out.append(
          f"accuracy on {task} has fallen to half of step {best['step']}'s or"
          f" less ({best[name]:.1%} to {last[name]:.1%}): the policy unlearns"
          " the task; export a checkpoint before the fall, and start again with"
          " a lower optimizer.lr"
      )
    if _change(first, last, name) > 0:
      continue
    if last.get(_LENGTH, 0) > longer * first.get(_LENGTH, float("inf")):
      out.append(
          f"responses are {last[_LENGTH] / first[_LENGTH]:.1f} times as long as"
          f" before RL without higher accuracy on {task}: penalize length, or"
          " mask truncated responses"
      )
    if last.get(_REPETITION, 0) > first.get(_REPETITION, 1) + repeats:
      out.append(
          f"{last[_REPETITION]:.0%} of the responses are repetitive, before RL"
          f" {first[_REPETITION]:.0%}, without higher accuracy on {task}: look"
          " for loops"
      )
  start, now = steps[:window], steps[-window:]
  verified = any(_SCORE in x for x in steps)
  if verified and _rose(start, now, _REWARD) and not _rose(start, now, _SCORE):
    # The rest of the reward is no function whose weight could be lowered.
    terms = re.compile(r"reward/(?!outcome/).+/mean")
    names = {k for x in steps for k in x if terms.fullmatch(k)}
    risen = sorted(k for k in names if _rose(start, now, k))
    if risen:
      sources = (x.removeprefix("reward/").removesuffix("/mean") for x in risen)
      out.append(
          f"the whole gain of the reward comes from {', '.join(sources)}, while"
          " responses are not more often correct; lower its weight"
      )
  return out


def _change(old: dict, new: dict, name: str) -> float:
  """The change of a score; 0 if it is within the intervals."""
  change = new[name] - old[name]
  both = old.get(f"{name}/ci95", 0) + new.get(f"{name}/ci95", 0)
  return change if abs(change) > both else 0.0


def _rose(old: list[dict], new: list[dict], name: str) -> bool:
  """Whether a mean over steps rose by more than two standard errors."""
  a, b = (
      [x[name] for x in rows if x.get(name) is not None] for rows in (old, new)
  )
  if min(len(a), len(b)) < 2:
    return False
  error = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
  return statistics.mean(b) - statistics.mean(a) > 2 * error**0.5


# --- the rules ---------------------------------------------------------------


def _rule(row: dict[str, Any]) -> Rule:
  """The rule of a row, with its bound or the predicate of its name."""
  bound = [row.pop(k) for k in ("metric", "above", "evidence") if k in row]
  own = "_" + _identifier(row["name"])
  known = (x.remedies.get(row["name"]) for x in features.declared())
  row["remedy"] = "; ".join([row["remedy"], *filter(None, known)])
  return Rule(predicate=_above(*bound) if bound else globals()[own], **row)


def _identifier(name: str) -> str:
  """'Entropy collapse' -> 'entropy_collapse'."""
  return re.sub(r"\W+", "_", name.lower())


RULES = tuple(
    map(
        _rule,
        tomllib.loads(
            pathlib.Path(__file__).with_suffix(".toml").read_text("utf-8")
        )["rule"],
    )
)


def of_step(
    steps: Steps, fields: Fields, rules: Sequence[Rule] = RULES
) -> list[Alert]:
  """The alerts of a step, causes first.

  Args:
    steps: the last lines of metrics.jsonl of stage 'rl', at most `WINDOW`; the
      newest with the numbers under `HEALTH`, if they are known.
    fields: the flat config.
    rules: that are checked.
  """
  inputs = dict(step=steps[-1], steps=steps, fields=fields)
  return [
      Alert(rule, rule.message(evidence, fields))
      for rule in rules
      if not rule.whole_run
      and (evidence := call_by_name(rule.predicate, inputs))
  ]


def of_pretraining(metrics: dict[str, Any], fields: Fields) -> list[Alert]:
  """The alerts of a step of value pretraining."""
  return of_step([metrics], fields, [x for x in RULES if x.pretraining])


def of_evaluation(metrics: dict[str, Any], fields: Fields) -> list[Alert]:
  """The alert of an evaluation whose policy is broken; [] otherwise."""
  if BROKEN_HELD_OUT not in metrics:
    return []
  rules = [x for x in RULES if x.name == BROKEN_POLICY]
  return of_step([metrics], fields, rules)


def of_evaluations(lines: Steps) -> list[str]:
  """The findings over all evaluations and steps of a run, one line each."""
  found = (rule.predicate(lines) for rule in RULES if rule.whole_run)
  return [text for texts in found for text in texts]


def of_run(lines: Steps) -> list[str]:
  """The alerts of a whole run by its metrics, one line each; [] if healthy."""
  steps = [x for x in lines if x["stage"] == "rl"]
  out = of_evaluations(lines)
  for rule in RULES:
    at = [x["step"] for x in steps if x.get(rule.metric)]
    if at:
      out.append(
          f"{rule.name} in {len(at):,} of {len(steps):,} steps, {at[0]} to"
          f" {at[-1]}: {rule.cause} (docs/playbook.md)"
      )
  return out
