"""Sampling ahead of learning: asynchronous generation, bounded by RL steps.

A thread samples batches of later steps while the policy learns, on the devices
that learn or on some of their own; see README.md.
"""

from collections.abc import Iterator, Mapping

from rl_reason.base import config, feature
from rl_reason.base.fields import choice, number
from rl_reason.checks import config_facts


def _clips_at_the_sampler(c) -> bool:
  """Whether the old log-probs of older rows are the sampler's."""
  return c.rl.old_logps == "sampler"


class _SamplingAhead(feature.Declaration):
  marks = {
      "samplers": ("mesh.rollout",),
      "lag": ("rl.staleness",),
      "older_policy": ("rl.staleness",),
      "progress": {"rl.staleness": bool},
      "one_process": {
          "rl.staleness": "threads would start programs in different orders"
      },
      "other_names": {
          "max_staleness": "rl.staleness",
          "off_policy_steps": "rl.staleness",
      },
      "shown": {
          "rl.staleness": "batches sampled at most {:g} steps ahead",
          "mesh.rollout": "{:g} devices that only sample",
      },
  }

  def fields(self, c) -> None:
    config.extend(
        c,
        "mesh",
        # Devices that only sample; 0: all sample and learn.
        rollout=number(0, low=0, needs="rl.staleness"),
    )
    config.extend(
        c,
        "rl",
        staleness=number(0, low=0),  # steps that sampling is ahead of learning
        # Of batches sampled ahead.
        old_logps=choice("sampler", "trainer", needs="rl.staleness"),
    )

  def used(self, c) -> bool:
    return bool(c.rl.staleness)

  def rules(self, c) -> Iterator[feature.Rule]:
    if feature.judge(c):
      yield "rl.staleness", (
          "trajectories of several turns are not sampled ahead: set it to 0"
      )
    if c.mesh.rollout and c.rollout.engine.name != "own":
      yield "mesh.rollout", "the engine has devices of its own: leave it at 0"
    if c.mesh.rollout and config_facts.reward_models(c):
      yield "mesh.rollout", (
          "reward models score evaluations, too, which only the devices that"
          " learn sample: leave it at 0"
      )
    if config_facts.reads_squares(c) and _clips_at_the_sampler(c):
      yield "rl.old_logps", (
          f"{c.advantage.name} reads log-probs beside the distribution that"
          " they are of, and these are of an older policy: use 'trainer'"
      )
    if feature.marked("corrects", c) and _clips_at_the_sampler(c):
      yield "correction.name", "does nothing here: set rl.old_logps = 'trainer'"

  def cautions(self, c) -> Iterator[feature.Rule]:
    if not (feature.marked("corrects", c) or _clips_at_the_sampler(c)):
      yield "rl.old_logps", (
          "nothing corrects for the age of the policy that sampled;"
          " correction.name = 'truncate' does"
      )

  def devices(
      self, c, count: int, sizes: Mapping[str, int]
  ) -> Iterator[feature.Rule]:
    from rl_reason.checks import machine_checks

    samplers, tensor = c.mesh.rollout, sizes["tensor"]
    if samplers >= count:
      yield "mesh.rollout", f"of {count} devices, some must learn"
    elif samplers % tensor:
      yield "mesh.rollout", f"must be a multiple of {tensor=}"
    elif samplers:
      yield from machine_checks.uneven(
          c, machine_checks.sampled(c), samplers // tensor, sizes
      )

  def arrays(self, c) -> dict:
    from rl_reason.features.sampling_ahead import ahead

    return dict(ahead=ahead.no_batches(c))

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.sampling_ahead import ahead, replayed_rows

    session = loop.session
    mesh = session.rollout_engine.mesh
    return ahead.Ahead(
        loop.collector,
        staleness=c.rl.staleness,
        steps=c.rl.steps,
        sampler_logps=_clips_at_the_sampler(c),
        mesh=mesh,
        empty=ahead.no_batches(c),
        replay=replayed_rows.replayer(
            session.model.cfg,
            mesh,
            c.rollout.temperature,
            session.output.display,
        ),
    )


FEATURE = _SamplingAhead()
