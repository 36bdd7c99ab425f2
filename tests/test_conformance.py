"""The conformance kit: our own verdicts, and cases that can fail."""

import functools
import importlib.util
import json
import re
import sys
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

from conformance import cases, run as conformance
from conformance.adapters import __main__ as worker, ours
from rl_reason.algorithms import (
    advantage_variants,
    advantages,
    credit,
    kl,
    objective,
    reductions,
    rewards,
    surrogate_variants,
    surrogates,
    values,
)
from rl_reason.base.structs import Rollouts
from rl_reason.checks import config_facts
from rl_reason.collect import dynamic_sampling
from rl_reason.features.mismatch_corrections import corrections
from rl_reason.models import decoder

CASES = {x.name: x for x in cases.CASES}
KNOWN = conformance.differences()
RESULT = conformance.results.read("conformance")
stop = jax.lax.stop_gradient


def verdict(name: str) -> dict:
  """Our verdict on a case."""
  case = CASES[name]
  question = dict(name=name, operation=case.operation, inputs=case.inputs)
  known = KNOWN[conformance.OURS].get(name)
  return conformance.judge(case, worker.run(ours, question), known)


@pytest.mark.parametrize("name", CASES)
def test_ours(name):
  found = verdict(name)
  known = KNOWN[conformance.OURS].get(name)
  if known is None:
    assert found["verdict"] == "pass" and "note" not in found, found
  else:
    assert found["note"] == known["note"], found


# --- each case can fail ------------------------------------------------------


def patch(module, **changes):
  """(module, name, change): change(the function) replaces it."""
  ((name, change),) = changes.items()
  return module, name, change


def instead(function):
  """A change that forgets the function."""
  return lambda _: function


def keywords_with(change):
  """A change of the keywords that the function gets."""

  def changed(function):
    @functools.wraps(function)
    def inner(*arrays, **keywords):
      return function(*arrays, **change(**keywords))

    return inner

  return changed


def first_only(_):
  """Mean of the first rollout of each group."""

  def mean(rewards_B, groups_B):
    first_B = jnp.argmax(groups_B[:, None] == groups_B, 1)
    size_B = reductions.group_sum(jnp.ones_like(rewards_B), groups_B)
    return rewards_B[first_B], size_B

  return mean


def one_pass(_):
  """E[x^2] - E[x]^2."""

  def std(rewards_B, groups_B, ddof):
    mean_B, size_B = advantages._group_mean(rewards_B, groups_B)
    square_B, _ = advantages._group_mean(rewards_B**2, groups_B)
    variance_B = (square_B - mean_B**2) * size_B / (size_B - ddof)
    return jnp.sqrt(jnp.maximum(variance_B, 0))

  return std


def last_sample(assign):
  """Every sample gets the masked advantages of the last one."""

  def all_alike(rows, **keywords):
    out = assign(rows, **keywords)
    last_T = out["advantages_BT"][-1]
    return out | dict(advantages_BT=jnp.tile(last_T, (4, 1)))

  return all_alike


def whole(mask_BT):
  """All positions up to the last one of the mask."""
  return jnp.cumsum(mask_BT[:, ::-1], 1)[:, ::-1] > 0


def max_for_negative(_):
  def clip(ratio_BT, advantages_BT, low, high, dual):
    free_BT = ratio_BT * advantages_BT
    bound_BT = jnp.where(advantages_BT > 0, 1 + high, 1 - low) * advantages_BT
    loss_BT = -jnp.where(
        advantages_BT > 0,
        jnp.minimum(free_BT, bound_BT),
        jnp.maximum(free_BT, bound_BT + 0 * free_BT),
    )
    no_BT = jnp.zeros_like(free_BT, bool)
    return loss_BT, dict(ratio=ratio_BT, clipped=no_BT, clipped_lower=no_BT)

  return clip


def clip_with(change):
  """The clip with other arguments: change(low, high, dual)."""
  return lambda clip: lambda ratio_BT, advantages_BT, low, high, dual: clip(
      ratio_BT, advantages_BT, *change(low, high, dual)
  )


def dual_everywhere(clip):
  def both_signs(ratio_BT, advantages_BT, low, high, dual):
    loss_BT, aux = clip(ratio_BT, advantages_BT, low, high, 0.0)
    return jnp.minimum(loss_BT, -dual * advantages_BT), aux

  return both_signs


def advantages_as_mask(token_weights):
  def wrong(o, b):
    w = token_weights(o, b)
    return w | dict(all=reductions.token_mean(b.advantages_BT, b.groups_B))

  return wrong


def local_weights(loss):
  """Each micro-batch divides by its own counts."""

  def of_micro_batch(o, logps_BT, entropy_BT, b, w, coefs):
    own = objective.token_weights(o, b)
    return loss(o, logps_BT, entropy_BT, b, own, coefs)

  return of_micro_batch


def logged_times(factor):
  def change(loss):
    def wrong(*args):
      total, metrics = loss(*args)
      return total, metrics | dict(pg_loss=factor * metrics["pg_loss"])

    return wrong

  return change


class NoMask:
  """jax.numpy without `where` and `clip`."""

  where = staticmethod(lambda condition, x, y: x)
  clip = staticmethod(lambda x, *_: x)

  def __getattr__(self, name):
    return getattr(jnp, name)


def no_mask(_):
  return NoMask()


def in_last_column(_):
  def per_token(rewards_B, mask_BT, kl_BT, coef, turns=None):
    out_BT = jnp.zeros(mask_BT.shape).at[:, -1].set(rewards_B)
    return out_BT - coef * kl_BT * mask_BT

  return per_token


def unmasked_kl(per_token):
  def wrong(rewards_B, mask_BT, kl_BT, coef, turns=None):
    outcome_BT = per_token(rewards_B, mask_BT, 0 * kl_BT, 0.0)
    return outcome_BT - coef * kl_BT

  return wrong


def unmasked_returns(returns):
  return lambda rewards_BT, mask_BT, gamma: returns(
      rewards_BT, whole(mask_BT), gamma=gamma
  )


def gae_with(change):
  """GAE with other keywords or another mask."""

  def changed(gae):
    def wrong(rewards_BT, values_BT, mask_BT, *, gamma, lam):
      more = dict(gamma=gamma, lam=lam, mask_BT=mask_BT)
      more |= change(**more)
      return gae(rewards_BT, values_BT, **more)

    return wrong

  return changed


def not_clipped_below(_):
  def adaptive(rewards_BT, values_BT, mask_BT, *, gamma=1.0, alpha=0.05):
    lam_B1 = 1 - 1 / (alpha * mask_BT.sum(1, keepdims=True))
    return advantages.gae(
        rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam_B1
    )

  return adaptive


def without_rows(mask_BT, groups_B):
  """Divides by the maximal length only."""
  return mask_BT / 4


def with_filtered(mask_BT, groups_B):
  """Divides by all tokens, filtered ones included."""
  return mask_BT / 10


def of_lengths(mask_BT, groups_B):
  """Token weights whose row 2 counts though it is filtered."""
  return mask_BT / jnp.array([[1.0], [2], [4], [3]]) / 4


def estimator(kind, function):
  return patch(kl, ESTIMATORS=lambda known: known | {kind: function})


def group_norm_of_four(group_norm):
  return lambda rewards_B, groups_B: group_norm(rewards_B, jnp.arange(8) // 4)


def one_mean(values_BT, mask_BT):
  return jnp.mean(values_BT)


def at_temperature_1(chunked):
  return lambda cfg, temperature, *args: chunked(cfg, 1.0, *args)


def twice_the_entropy(chunked):
  def wrong(*args):
    logps_WX, entropy_WX = chunked(*args)
    return logps_WX, 2 * entropy_WX

  return wrong


def ratio_to_itself(_):
  return lambda logps_BT, *_: logps_BT - stop(logps_BT)


def detached(cispo):
  def wrong(logps_BT, old_BT, advantages_BT, mask_BT, **clip):
    _, aux = cispo(logps_BT, old_BT, advantages_BT, mask_BT, **clip)
    return -stop(jnp.minimum(aux["ratio"], 5)) * advantages_BT, aux

  return wrong


def old_values_anew(loss):
  return lambda new_BT, old_BT, target_BT, clip: loss(
      new_BT, new_BT, target_BT, clip=clip
  )


def of_all_tokens(second_moment):
  """AReaL's mask does not read the advantages."""

  def wrong(old_BT, sampler_BT, mask_BT, advantages_BT, *, threshold):
    signs_BT = jnp.sign(old_BT - sampler_BT)
    return second_moment(
        old_BT, sampler_BT, mask_BT, signs_BT, threshold=threshold
    )

  return wrong


def shorter(loss):
  return lambda new_BT, old_BT, target_BT, clip: jnp.minimum(
      (new_BT - target_BT) ** 2, (old_BT - target_BT) ** 2
  )


def not_floored(lengths_B, *, max_tokens, buffer):
  over_B = (lengths_B - max_tokens + buffer) / buffer
  return -jnp.maximum(over_B, 0)


def from_the_end(first_fit):
  def wrong(found, room):
    return first_fit(found[::-1], room)

  return wrong


NORM = patch(advantages, group_norm=instead(advantages.group_mean))
LOCAL = [patch(objective, loss=local_weights)]
UNWHITENED = [patch(reductions, whiten=instead(lambda x_BT, mask_BT: x_BT))]
MUTATIONS = {
    "grpo/by_hand": [NORM],
    "grpo/rows_apart": [patch(advantages, group_norm=group_norm_of_four)],
    "grpo/all_rollouts_count": [patch(advantages, _group_mean=first_only)],
    "grpo/equal_rewards": [
        patch(
            advantages,
            group_constant=instead(lambda x_B, _: jnp.zeros(len(x_B), bool)),
        )
    ],
    "grpo/large_offset": [patch(advantages, _group_std=one_pass)],
    "dr_grpo/by_hand": [
        patch(advantages, group_mean=instead(lambda rewards_B, _: rewards_B))
    ],
    "rloo/by_hand": [
        patch(advantages, leave_one_out=instead(advantages.group_mean))
    ],
    "lite_ppo/by_hand": [
        patch(
            advantages,
            group_mean_batch_std=instead(
                lambda rewards_B, groups_B, _: advantages.group_norm(
                    rewards_B, groups_B
                )
            ),
        )
    ],
    "max_rl/by_hand": [
        patch(advantages, max_rl=instead(advantages.group_norm))
    ],
    "credit/every_sample_has_its_own_tokens": [
        patch(credit, assign=last_sample)
    ],
    "gae/by_hand": [patch(advantages, gae=gae_with(lambda **_: dict(lam=1.0)))],
    "gae/discount": [
        patch(advantages, gae=gae_with(lambda **_: dict(gamma=1.0)))
    ],
    "gae/padding": [
        patch(
            advantages,
            gae=gae_with(lambda mask_BT, **_: dict(mask_BT=mask_BT >= 0)),
        )
    ],
    "gae/observations": [
        patch(
            advantages,
            gae=gae_with(lambda mask_BT, **_: dict(mask_BT=whole(mask_BT))),
        )
    ],
    "gae/length_adaptive": [
        patch(advantages, gae_length_adaptive=not_clipped_below)
    ],
    "kl_reward/by_hand": [
        patch(
            rewards,
            per_token=lambda f: lambda r, m, k, c, *more: f(r, m, k, -c, *more),
        )
    ],
    "kl_reward/outcome_on_the_last_token": [
        patch(rewards, per_token=in_last_column)
    ],
    "kl_reward/observations": [
        patch(rewards, per_token=unmasked_kl),
        patch(advantages, returns_to_go=unmasked_returns),
    ],
    "whiten/padding": [patch(reductions, masked_mean=instead(one_mean))],
    "reinforce_pp/by_hand": UNWHITENED,
    "reinforce_pp_baseline/by_hand": UNWHITENED,
    "opo/by_hand": [
        patch(
            advantage_variants,
            opo=instead(
                lambda rewards_B, groups_B, mask_BT: advantages.group_mean(
                    rewards_B, groups_B
                )
            ),
        )
    ],
    "otb/by_hand": [
        patch(
            advantage_variants,
            optimal_token_baseline=instead(
                lambda rewards_B, groups_B: advantages.group_mean(
                    rewards_B, groups_B
                )
            ),
        )
    ],
    "gdpo/by_hand": [
        patch(
            advantage_variants,
            group_norm=instead(
                lambda part_B, groups_B, **_: advantages.group_mean(
                    part_B, groups_B
                )
            ),
        )
    ],
    "pass_at_k/by_hand": [
        patch(
            advantage_variants,
            pass_at_k=lambda f: lambda *args, k: f(*args, k=k + 1),
        )
    ],
    "w_reinforce/by_hand": [
        patch(
            advantage_variants,
            weak_positives=lambda f: lambda x_B, weight: f(x_B, weight=1.0),
        )
    ],
    "m2po/by_hand": [patch(corrections, second_moment=of_all_tokens)],
    "ppo/by_hand": [
        patch(surrogates, _clip=clip_with(lambda low, high, d: (1, 9, d)))
    ],
    "ppo/negative_advantage": [patch(surrogates, _clip=max_for_negative)],
    "ppo/clip_higher": [
        patch(surrogates, _clip=clip_with(lambda low, high, d: (high, low, d)))
    ],
    "ppo/lower_bound": [
        patch(
            surrogates, _clip=clip_with(lambda low, high, d: (1 - low, high, d))
        )
    ],
    "ppo/ratio_to_the_old_policy": [
        patch(surrogates, _log_ratio=ratio_to_itself)
    ],
    "ppo/advantages_are_not_the_mask": [
        patch(objective, token_weights=advantages_as_mask)
    ],
    "ppo/dual_clip_negative": [
        patch(
            surrogates, _clip=clip_with(lambda low, high, d: (low, high, 0.0))
        )
    ],
    "ppo/dual_clip_positive": [patch(surrogates, _clip=dual_everywhere)],
    "mask/overflow": [
        patch(objective, jnp=no_mask),
        patch(surrogates, jnp=no_mask),
    ],
    "mask/infinite_log_prob": [
        patch(ours.step, jnp=no_mask),
        patch(surrogates, jnp=no_mask),
    ],
    "gspo/by_hand": [
        patch(surrogates, row_mean=instead(lambda x, mask: (x * mask).sum(1)))
    ],
    "gspo/masked_tokens": [
        patch(surrogates, row_mean=instead(lambda x, _: x.mean(1))),
    ],
    "luspo/by_hand": [
        patch(
            reductions,
            seq_mean_token_sum=instead(reductions.seq_mean_token_mean),
        )
    ],
    "cispo/by_hand": [patch(surrogates, cispo=detached)],
    "sapo/by_hand": [
        patch(
            surrogate_variants,
            sapo=keywords_with(
                lambda tau_positive, tau_negative: dict(
                    tau_positive=tau_negative, tau_negative=tau_positive
                )
            ),
        )
    ],
    "gmpo/by_hand": [
        patch(
            surrogate_variants,
            row_mean=instead(lambda x, mask: (x * mask).sum(1)),
        )
    ],
    "dppo/by_hand": [
        patch(
            surrogate_variants,
            dppo=keywords_with(lambda **given: given | dict(change_low=1.0)),
        )
    ],
    "vespo/by_hand": [
        patch(
            surrogate_variants,
            vespo=keywords_with(
                lambda k_positive, k_negative, **given: given
                | dict(k_positive=k_negative, k_negative=k_positive)
            ),
        )
    ],
    "sequence_mask/by_hand": [
        patch(
            surrogate_variants,
            row_mean=instead(lambda x, mask: (x * mask).sum(1)),
        )
    ],
    "reduction/token_mean": [
        patch(reductions, token_mean=instead(reductions.seq_mean_token_mean))
    ],
    "reduction/seq_mean_token_mean": [
        patch(reductions, seq_mean_token_mean=instead(reductions.token_mean))
    ],
    "reduction/seq_mean_token_sum": [
        patch(reductions, seq_mean_token_sum=instead(reductions.token_mean))
    ],
    "reduction/token_sum": [
        patch(reductions, token_sum=instead(reductions.seq_mean_token_sum))
    ],
    "reduction/constant": [patch(reductions, constant=instead(without_rows))],
    "reduction/prompt_token_mean": [
        patch(reductions, prompt_token_mean=instead(reductions.token_mean))
    ],
    "overlong_filtering/token_mean": [
        patch(reductions, token_mean=instead(with_filtered))
    ],
    "overlong_filtering/seq_mean_token_mean": [
        patch(reductions, seq_mean_token_mean=instead(of_lengths))
    ],
    "micro_batches/token_mean": LOCAL,
    "micro_batches/seq_mean_token_mean": LOCAL,
    "micro_batches/constant": LOCAL,
    "micro_batches/logged_loss": [patch(objective, loss=logged_times(2))],
    "micro_batches/positive_nll": LOCAL,
    "tis/by_hand": [
        patch(
            corrections,
            truncate=lambda f: lambda *args, high: f(*args, high=100.0),
        )
    ],
    "icepop/by_hand": [
        patch(
            corrections,
            two_sided=lambda f: lambda *args, low, high: corrections.truncate(
                *args, high=high
            ),
        )
    ],
    "kl/k1": [estimator("k1", lambda a, b: b - a)],
    "kl/k2": [estimator("k2", lambda a, b: (a - b) ** 2)],
    "kl/k3": [estimator("k3", lambda a, b: jnp.expm1(a - b) - (a - b))],
    "kl/abs": [estimator("abs", kl.k1)],
    "kl/gradient_default": [estimator("k3", kl.k1)],
    "kl/gradient_unbiased": [estimator("k2", kl.k1)],
    "value/clip": [patch(values, value_loss=shorter)],
    "logps/temperature": [patch(decoder, _chunked_logps=at_temperature_1)],
    "entropy/by_hand": [patch(decoder, _chunked_logps=twice_the_entropy)],
    "entropy/zero_probability": [
        patch(decoder, _chunked_logps=twice_the_entropy)
    ],
    "overlong/by_hand": [
        patch(
            rewards,
            soft_overlong=lambda f: lambda *args, **more: -f(*args, **more),
        )
    ],
    "overlong/tokens": [
        patch(
            Rollouts,
            policy_lengths_B=instead(
                property(lambda self: 4 * self.mask_BT.sum(1))
            ),
        )
    ],
    "overlong/floor": [patch(rewards, soft_overlong=instead(not_floored))],
    "dynamic_sampling/accuracy": [
        patch(
            dynamic_sampling,
            partly_correct=lambda f: lambda rows: dynamic_sampling.accuracy(
                rows
            )
            > 0,
        )
    ],
    "dynamic_sampling/shaped_reward": [
        patch(
            dynamic_sampling,
            partly_correct=instead(
                lambda _: np.array([True, True, False, True])
            ),
        )
    ],
    "dynamic_sampling/order": [patch(dynamic_sampling, first_fit=from_the_end)],
    "old_policy/several_updates": [
        patch(config_facts, off_policy_fields=instead(lambda c: []))
    ],
}


# The faults of the threads, where the mutation above is another one.
AS_IN_THE_THREAD = {
    "ppo/clip_higher": [
        patch(surrogates, _clip=clip_with(lambda low, high, d: (1, 9, d)))
    ],
    "reduction/token_mean": [
        patch(
            reductions,
            token_mean=instead(
                lambda mask_BT, groups_B: jnp.full(mask_BT.shape, 1 / 10)
            ),
        ),
        patch(ours.step, without_padding=instead(lambda batch: batch)),
    ],
    "micro_batches/logged_loss": [patch(objective, loss=logged_times(1 / 2))],
    "value/clip": [patch(values, value_loss=old_values_anew)],
}


@pytest.mark.parametrize(
    ("name", "mutation"),
    [*MUTATIONS.items(), *AS_IN_THE_THREAD.items()],
    ids=[*MUTATIONS, *(f"{x}, thread" for x in AS_IN_THE_THREAD)],
)
def test_a_case_fails_where_the_function_is_broken(name, mutation):
  known = KNOWN[conformance.OURS].get(name)
  patches = [
      mock.patch.object(module, attribute, change(getattr(module, attribute)))
      for module, attribute, change in mutation
  ]
  for one in patches:
    one.start()
  try:
    found = verdict(name)
  finally:
    for one in patches:
      one.stop()
  assert found["verdict"] == "fail" and "raises" not in found["note"], found
  assert known is None or found["note"] != known["note"]


# --- the kit -----------------------------------------------------------------


def test_cases_have_a_source_and_faults_a_thread():
  assert len(CASES) == len(cases.CASES) >= 50
  assert MUTATIONS.keys() == CASES.keys()
  assert len({x.issue for x in CASES.values()} - {""}) >= 15
  for case in CASES.values():
    assert case.source and case.formula
    assert bool(case.issue) == bool(case.fault)
  for name, rows in KNOWN.items():
    assert rows.keys() <= CASES.keys(), name
    for row in rows.values():
      extra = dict(fail="reach", convention="option")[row["verdict"]]
      assert row.keys() == {"verdict", "where", "note", "values", extra}


def test_verdicts():
  case = CASES["dr_grpo/by_hand"]
  good = dict(values=case.expected, calls="f")
  other = dict(values=dict(advantages_B=[0.0] * 8), calls="f")
  row = dict(
      verdict="convention", note="n", values=dict(advantages_B=[0.0] * 8)
  )
  assert conformance.judge(case, good, None)["verdict"] == "pass"
  assert "out of date" in conformance.judge(case, good, row)["note"]
  assert conformance.judge(case, other, row)["verdict"] == "convention"
  assert conformance.judge(case, other, None)["note"] == "not explained"
  row["values"] = dict(advantages_B=[1.0] * 8)
  assert conformance.judge(case, other, row)["verdict"] == "fail"
  nothing = dict(values=dict(advantages_B=[float("nan")] * 8), calls="f")
  short = dict(values=dict(advantages_B=[0.0] * 3), calls="f")
  ragged = dict(values=dict(advantages_B=[[0.0], [0.0, 1.0]]), calls="f")
  missing = dict(values={}, calls="f")
  for answer in (nothing, short, ragged, missing):
    assert conformance.judge(case, answer, None)["verdict"] == "fail"
    found = conformance.judge(case, answer, row)
    assert found["verdict"] == "fail"
    assert found["note"].startswith("differs from its explanation")
  died = dict(error="Traceback\nValueError: no")
  assert conformance.judge(case, died, None)["note"] == "raises ValueError: no"


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ([1.0, None], [1.0, 5.0], True),
        ([1.0, None], [1.0, float("nan")], True),
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("nan")], [1.0, 5.0], False),
        ([1.0, 1.0], 1.0, False),  # would broadcast
        (1.0, [1.0], False),
    ],
)
def test_agree(wanted, got, same):
  assert conformance.agree(dict(x=wanted), dict(x=got), 1e-6, 0) == same


class Adapter:
  """Operations by a keyword."""

  def __init__(self, **operations):
    vars(self).update(operations)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ([0.0], "TypeError: dr_grpo_advantages returns no dict of results"),
        (None, "TypeError: dr_grpo_advantages returns no dict of results"),
        (dict(advantages_B=[[0.0], [0.0, 1.0]]), "ValueError: "),
    ],
)
def test_what_an_adapter_returns_is_an_error_of_its_case(out, error):
  case = CASES["dr_grpo/by_hand"]
  question = dict(name=case.name, operation=case.operation, inputs=case.inputs)
  adapter = Adapter(dr_grpo_advantages=lambda **_: out)
  answer = worker.run(adapter, question)
  assert conformance.judge(case, answer, None)["note"].startswith(
      f"raises {error}"
  )


def result_of(monkeypatch, tmp_path, before, against):
  """`measure` with a peer that answers nothing, after a run with `before`."""
  monkeypatch.setattr(conformance.harness, "ENVIRONMENTS", tmp_path)
  python = conformance.interpreter("verl")
  python.parent.mkdir(parents=True)
  python.touch()
  nothing = {x: dict(absent="no") for x in CASES}
  answers = dict(versions=dict(x="1"), results=nothing)
  monkeypatch.setattr(conformance, "ask", lambda *_: answers)
  monkeypatch.setattr(conformance.results, "read", lambda _: before)
  monkeypatch.setattr(conformance.results, "environment", dict)
  given = types.SimpleNamespace(against=against, python="python3")
  return conformance.measure(given)


def test_a_new_or_changed_case_is_not_asked_of_the_other_peers(
    monkeypatch, tmp_path
):
  new, other, text = "gae/by_hand", "kl/k1", "kl/k2"
  before = json.loads(json.dumps(RESULT))
  before["cases"] = [x for x in before["cases"] if x["name"] != new]
  for library in before["libraries"].values():
    library["verdicts"].pop(new)
  changes = {other: dict(rtol=1.0), text: dict(formula="f")}
  for case in before["cases"]:
    case |= changes.get(case["name"], {})
  result = result_of(monkeypatch, tmp_path, before, ["verl"])
  found = result["libraries"]["trl"]["verdicts"]
  assert found.keys() == CASES.keys()
  asked = {k for k, x in found.items() if x["verdict"] != "not asked"}
  assert asked == CASES.keys() - {new, other}
  page = conformance.page(result)
  assert any(x.startswith("| [gae/by_hand]") and "| ? |" in x for x in page)
  assert "| ? | 0 | 2 | 0 | 2 | 2 |" in page
  assert conformance.NOT_ASKED in page
  assert result["libraries"]["verl"]["verdicts"][new]["verdict"] == "absent"


def test_the_page():
  page = conformance.page(RESULT)
  text = " ".join(page)
  assert "?" not in "".join(page[: page.index("## Differences")])
  threads = {x.issue for x in CASES.values()} - {""}
  assert f"documented in {len(threads)} threads" in text
  alone = [
      x
      for x in CASES
      if all(
          RESULT["libraries"][p]["verdicts"][x]["verdict"] == "absent"
          for p in conformance.PEERS
      )
  ]
  assert f"{len(alone)} cases are answered by this package alone" in text


def test_the_page_lists_what_passes_again():
  result = json.loads(json.dumps(RESULT))
  note = "differences.toml is out of date"
  result["libraries"]["trl"]["verdicts"]["kl/k3"] |= dict(note=note)
  page = conformance.page(result)
  assert f"- `kl/k3` passes: {note}" in page
  assert len(page) == len(conformance.page(RESULT)) + 1


@pytest.mark.parametrize(
    ("against", "python", "words"),
    [
        (["trl", "my:Adapter"], "", "--against=my:Adapter: an adapter of your"),
        (["my:Adapter"], "/none", "--python=/none: No such file or directory"),
        (["nothing_here"], sys.executable, "died: ModuleNotFoundError: No mod"),
    ],
)
def test_errors_are_one_line(against, python, words):
  given = types.SimpleNamespace(against=against, python=python)
  with pytest.raises(SystemExit, match=re.escape(words)) as end:
    conformance.measure(given)
  assert "\n" not in str(end.value) and "['" not in str(end.value)


def test_the_committed_table_is_of_these_cases():
  assert RESULT["cases"] == conformance.case_data()
  assert list(RESULT["libraries"]) == [conformance.OURS, *conformance.PEERS]
  for name, library in RESULT["libraries"].items():
    rows = library["verdicts"]
    assert rows.keys() == CASES.keys()
    explained = {k for k, x in rows.items() if "where" in x}
    assert explained == KNOWN.get(name, {}).keys()
    differ = {"fail", "convention"}
    assert explained == {k for k, x in rows.items() if x["verdict"] in differ}


def test_the_adapter_of_the_guide(tmp_path, monkeypatch, capsys):
  text = (ROOT / "conformance" / "README.md").read_text()
  code = re.search(r"```python\n(.*?)```", text, re.S)[1]
  path = tmp_path / "my_adapter.py"
  path.write_text(code)
  spec = importlib.util.spec_from_file_location("my_adapter", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)

  def ask(python, adapter):
    assert (python, adapter) == ("python3", "my_adapter")
    questions = [
        dict(name=x.name, operation=x.operation, inputs=x.inputs)
        for x in cases.CASES
    ]
    results = {x["name"]: worker.run(module, x) for x in questions}
    return json.loads(json.dumps(dict(results=results)))

  monkeypatch.setattr(conformance, "ask", ask)
  given = types.SimpleNamespace(against=["my_adapter"], python="python3")
  with pytest.raises(SystemExit) as end:
    conformance.measure(given)
  out = capsys.readouterr().out
  # NumPy rounds the mean of seven 0.7, as other libraries do.
  assert end.value.code == 1 and "fail   grpo/equal_rewards" in out
  assert "pass   overlong/floor" in out and "absent gae/by_hand" in out
