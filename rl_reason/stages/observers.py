"""What watches an RL step: metrics, logged samples and the certificate."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from rl_reason import tasks
from rl_reason.algorithms import kl
from rl_reason.base import feature, functions
from rl_reason.base.structs import Array, Tree
from rl_reason.checks import config_facts, own_functions
from rl_reason.collect.collector import RolloutCollector
from rl_reason.models import critic, decoder, parameters
from rl_reason.monitoring import (
    own_metrics,
    resources,
    step_metrics as step_metrics_lib,
)
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.samples import SampleLog
from rl_reason.stages import build_step
from rl_reason.stages.model import Model
from rl_reason.stages.session import Session
from rl_reason.training import certificate


def step_metrics(
    c, cfg: decoder.ModelConfig, display: Display, *, on_policy: bool
) -> Callable[..., tuple[dict[str, float], dict[str, Any]]]:
  """`step_metrics.step_metrics` with the keywords of the config bound."""
  more: dict[str, Any] = {}
  if own := own_functions.metrics(c):
    by_label = {x.label: x.function for x in own}
    more["own"] = own_metrics.OwnMetrics(by_label, display.say)
  return functools.partial(
      step_metrics_lib.step_metrics,
      counter=counter(c, cfg, forward_passes(c, cfg, on_policy=on_policy)),
      terms=tuple(term.label for term in build_step.terms(c)),
      on_policy=on_policy,
      gamma=config_facts.discount(c),
      verified=not config_facts.no_verifier(c),
      stale=config_facts.lag(c) > 0,
      **more,
  )


def forward_passes(c, cfg: decoder.ModelConfig, *, on_policy: bool) -> float:
  """Forward passes over the batch of an RL step; a backward pass counts two.

  A pass of another model counts as its FLOPs.
  """
  learning = 3 * c.updates.epochs
  count = sum(one.passes(c) for one in feature.used(c))
  count += learning + (not on_policy)
  if config_facts.estimates_kl(c):
    count += config_facts.compares_with_start(c)
  for one in feature.used(c):
    for shape, passes in one.models(c, cfg).values():
      count += passes * flops_per_token(c, shape) / flops_per_token(c, cfg)
  if config_facts.has_critic(c):
    count += 1 + learning
  return count


def counter(c, cfg: decoder.ModelConfig, passes: float) -> resources.Counter:
  """The counter of tokens and FLOPs."""
  r, flops = c.rollout, flops_per_token(c, cfg)
  return resources.Counter(flops, passes, r.max_prompt, r.group_size)


def flops_per_token(c, cfg: decoder.ModelConfig) -> float:
  """FLOPs of a forward pass of a model over a token of a rollout."""
  r = c.rollout
  context = (r.max_prompt + r.max_tokens) / 2  # tokens attended to on average
  share = cfg.experts_per_token / max(cfg.experts, 1)
  return parameters.flops_per_token(decoder.table(cfg), context, share)


def model_sizes(c, model: Model) -> dict[str, int]:
  """Numbers of parameters, and rows of the embedding, for the report."""
  cfg, critic_cfg = model.cfg, model.critic_cfg
  out = {"parameters": parameters.count(decoder.table(cfg)), "vocab": cfg.vocab}
  if config_facts.has_critic(c):
    size = parameters.count(critic.table(critic_cfg))
    out["critic parameters"] = size
  return out


def sample_log(
    c,
    session: Session,
    collector: RolloutCollector,
    reward: Callable[[dict], Array],
    new_logps: Callable[[Any], Array],
) -> SampleLog:
  """The log of groups of responses.

  `reward` is `credit.outcome` with its keywords bound. `new_logps` turns a plan
  into log-probs [B, T] of the current policy.
  """
  estimate = None
  if config_facts.estimates_kl(c):
    estimate = functools.partial(kl.estimate, c.kl.kind)
  return SampleLog(
      session.output.log,
      session.output.display,
      session.tok,
      collector.prompts.row,
      every=c.log.samples_every,
      groups=c.log.groups,
      responses=c.log.samples,
      by_reward=config_facts.by_reward(c),
      steps=c.rl.steps,
      is_verified=functools.partial(
          tasks.has_verifier, session.row_source.task
      ),
      reward=reward,
      surrogate=functions.bind("surrogate", c.surrogate),
      estimate_kl=estimate,
      has_values=config_facts.has_critic(c),
      new_logps=new_logps if c.log.ratios else None,
  )


def certify(
    c, session: Session, frozen: Tree | None
) -> certificate.Certificate:
  """The certificate of each step; `frozen` is as of `Certificate`."""
  r = c.rollout
  if not getattr(session.rollout_engine, "answers", True):
    session.output.display.say(
        f"rollout.engine.name = {r.engine.name!r}: this engine does"
        " not say which weights it holds; certified are what it is sent, and"
        " the log-probs of its tokens; a method `held` of it would tell"
    )
  return certificate.Certificate(
      session.engine,
      frozen,
      cfg=session.model.cfg,
      kind=r.weights,
      lag=config_facts.lag(c),
      gap_bound=certificate.bound(
          {r.weights, r.cache},
          c.model.dtype,
          own_engine=r.engine.name == "own",
          has_experts=c.model.experts > 0,
          backend=jax.default_backend(),
      ),
  )
