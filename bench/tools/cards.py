"""Algorithm cards: loss and gradient of each surrogate against the ratio.

  python -m bench.pages   # writes results/surrogates.html, among others

The page has the formulas in JavaScript, and a test compares them in a browser
with the functions of `rl_reason.algorithms.surrogates` and
`surrogate_variants`.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from bench import results
from rl_reason.base import functions
from rl_reason.checks import config_files
from rl_reason.report import rendering

NAME = "surrogates"
# Text of each card, the ends and the step of the slider of each keyword, and,
# where the loss depends on it, the token's probability before the update.
CARDS: dict[str, dict[str, Any]] = {
    "ppo": dict(
        formula="L = -min(r A, clip(r, 1 - low, 1 + high) A); with a dual clip"
        " c, at most -c A where A < 0",
        source="PPO, arXiv:1707.06347, eq 7; clip-higher: DAPO,"
        " arXiv:2503.14476, eq 10; dual clip: arXiv:1912.09729, eq 5",
        why="A token stops learning when it has moved far enough in the"
        " direction of its advantage, and only then: a token that moved the"
        " wrong way keeps its gradient. The bound is on the ratio, so a rare"
        " token soon has none: at high = .28, .01 stops at .0128. The bound is"
        " on the gradient, not on the step: the step that crosses it, momentum"
        " and the negative samples carry the token further (clip_law.md). For"
        " A < 0 the loss has no bound above r = 1, and one token that became"
        " likely can dominate the gradient; the dual clip sets its gradient to"
        " 0.",
        sliders=dict(
            clip_low=(0, 1, 0.01), clip_high=(0, 4, 0.01), dual_clip=(0, 12, 1)
        ),
        window="0 to 3",
    ),
    "reinforce": dict(
        formula="L = -A log p",
        source="Williams (1992); RLOO, arXiv:2402.14740, eq 7",
        why="Nothing bounds an update and nothing corrects for data of an older"
        " policy: the gradient does not depend on the ratio. It is the policy"
        " gradient only on-policy, with one optimizer step a rollout.",
        sliders={},
        p_old=0.05,
        window="0 to 3",
    ),
    "gspo": dict(
        formula="L = -min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of"
        " log r over the response)",
        source="GSPO, arXiv:2507.18071, eq 5; by token, eq 14",
        why="The ratio is one number a response, s: all tokens of a response"
        " are clipped together or not at all. A mean of logarithms moves"
        " little, so the bounds of the paper, 3e-4 and 4e-4, are 500 times"
        " tighter than those of PPO; the responses of gspo.py are short, and"
        " its bounds are .03 and .04. The card shows a response whose tokens"
        " all have the same ratio.",
        sliders=dict(clip_low=(0, 0.1, 0.0001), clip_high=(0, 0.1, 0.0001)),
        window="1 ± 0.002",
    ),
    "cispo": dict(
        formula="L = -stop_gradient(clip(r, 1 - low, 1 + high)) A log p",
        source="CISPO (MiniMax-M1), arXiv:2506.13585, eq 4",
        why="The weight of a token is clipped, and not its objective: the"
        " gradient is never 0, also for rare tokens whose ratio leaves the"
        " bounds, which PPO drops from the update. Nothing stops a token that"
        " has moved far; the weight only stops growing.",
        sliders=dict(clip_low=(0, 1, 0.01), clip_high=(0, 9, 0.05)),
        p_old=0.05,
        window="0 to 12",
    ),
}
CARDS |= {
    "sapo": dict(
        formula="L = -4 / tau sigmoid(tau (r - 1)) A",
        source="SAPO, arXiv:2511.20347",
        why="The gate has no edge: at r = 1 the gradient is that of -r A, and"
        " the factor between the two falls smoothly on both sides, so that a"
        " token which has moved the wrong way also loses weight. The derivative"
        " by log p, r times this factor, is largest near r = 2 at tau = 1. A"
        " larger tau narrows the gate; the one of A < 0 is slightly larger,"
        " because these gradients raise all other tokens of the vocabulary.",
        sliders=dict(tau_positive=(0.1, 5, 0.05), tau_negative=(0.1, 5, 0.05)),
        window="0 to 3",
    ),
    "gmpo": dict(
        formula="L = -s A, s = exp(mean over the response of log r), where log"
        " r is at most high if A > 0 and at least -low if A < 0",
        source="GMPO, arXiv:2507.20673",
        why="The geometric mean of the ratios of a response moves little when"
        " one ratio is extreme, so each log-ratio may move by .4, further than"
        " in PPO. The card shows a response whose tokens all have the same"
        " ratio.",
        sliders=dict(clip_low=(0, 2, 0.01), clip_high=(0, 2, 0.01)),
        window="0 to 3",
    ),
    "dppo": dict(
        formula="L = -stop_gradient(min(r, max)) A log p, and 0 where p - p_old"
        " > high and A > 0, or p_old - p > low and A < 0",
        source="DPPO (Binary-TV), arXiv:2602.04879",
        why="The mask looks at the change of the probability and not at its"
        " ratio: a rare token may become many times as probable, and a frequent"
        " one is stopped earlier than by PPO. At p_old = .5, bounds of .2 stop"
        " at r = 1.4 and r = .6; at p_old = .05, only at r = 5.",
        sliders=dict(
            change_low=(0, 1, 0.01),
            change_high=(0, 1, 0.01),
            ratio_max=(1, 20, 0.5),
        ),
        p_old=0.5,
        window="0 to 3",
    ),
    "vespo": dict(
        formula="L = -stop_gradient(W^k exp(lam (1 - W))) A log p, W = product"
        " of r over the response",
        source="VESPO, arXiv:2602.10693; defaults of TRL",
        why="The weight of a whole response is largest at W = k / lam and falls"
        " to 0 on both sides without an edge. W is a product: long responses"
        " leave the neighbourhood of 1 sooner. The card shows a response of one"
        " token.",
        sliders=dict(
            k_positive=(0, 6, 0.1),
            lam_positive=(0, 6, 0.1),
            k_negative=(0, 6, 0.1),
            lam_negative=(0, 6, 0.1),
        ),
        p_old=0.05,
        window="0 to 3",
    ),
    "ppo_sequence_mask": dict(
        formula="L = -min(r A, clip(r, 1 - low, 1 + high) A), and 0 where A < 0"
        " and the mean of -log r over the response exceeds delta",
        source="DeepSeek-V3.2, arXiv:2512.02556, eq 9",
        why="An incorrect response that the policy would hardly sample any more"
        " teaches little, and its gradient can be large: the whole response"
        " leaves the loss. The card shows a response whose tokens all have the"
        " same ratio.",
        sliders=dict(
            clip_low=(0, 1, 0.01), clip_high=(0, 4, 0.01), delta=(0, 2, 0.05)
        ),
        window="0 to 3",
    ),
}
WINDOWS = {  # from the narrowest to the widest
    "1 ± 0.002": (0.998, 1.002),
    "1 ± 0.1": (0.9, 1.1),
    "1 ± 0.5": (0.5, 1.5),
    "0 to 3": (0.0, 3.0),
    "0 to 12": (0.0, 12.0),
}

# Whose keywords the sliders can be set to.
CONFIGS = (
    *("ppo", "grpo", "dapo", "vapo", "reinforce", "rloo", "gspo", "luspo"),
    *("cispo", "scale_rl", "sapo", "gmpo", "dppo", "vespo", "deepseek_v3_2"),
)


def of_package(
    name: str, ratio: float, advantage: float, old: float, **keywords: float
) -> tuple[float, float]:
  """Loss and its derivative by the log-prob, by the package's own function.

  Args:
    name: of the surrogate.
    ratio: of a response of one token.
    advantage: of the token.
    old: its probability before the update.
    **keywords: of the surrogate.
  """
  function = functions.signature("surrogate", name).function
  old_BT = jnp.log(jnp.full((1, 1), old))

  def loss(logp):
    losses_BT, _ = function(
        jnp.full((1, 1), logp),
        old_BT,
        jnp.full((1, 1), advantage),
        jnp.ones((1, 1)),
        **keywords,
    )
    return losses_BT[0, 0]

  value, slope = jax.value_and_grad(loss)(jnp.log(old * ratio))
  return float(value), float(slope)


def settings() -> dict[str, dict[str, dict[str, float]]]:
  """By surrogate: the keywords of its defaults, and of `CONFIGS`."""
  out: dict[str, dict] = {}
  for name in functions.names("surrogate"):
    section = ml_collections.ConfigDict(dict(name=name, args={}))
    found = functions.arguments("surrogate", section)
    out[name] = {"defaults of the function": _shown(name, found)}
  for name in CONFIGS:
    c = config_files.read(str(results.ROOT / "configs" / f"{name}.py"))
    found = functions.arguments("surrogate", c.surrogate)
    out[c.surrogate.name][f"{name}.py"] = _shown(c.surrogate.name, found)
  return out


def _shown(name: str, keywords: dict[str, float]) -> dict[str, float]:
  """The keywords that have a slider."""
  return {x: keywords[x] for x in CARDS[name]["sliders"]}


def page() -> str:
  """results/surrogates.html."""
  found = settings()
  cards = [
      dict(name=name, settings=found[name]) | card
      for name, card in CARDS.items()
  ]
  data = dict(title="Surrogates", notes=[], cards=cards, windows=WINDOWS)
  return rendering.render("cards", data, pathlib.Path(__file__).parent)
