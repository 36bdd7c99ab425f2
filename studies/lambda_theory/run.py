"""When does VAPO's lambda help? Exact, with the functions of the package.

  python -m studies.lambda_theory.run          # a minute; nothing is sampled
  python -m studies.lambda_theory.run --table  # page and figure, from JSON

A response of l tokens is correct if each of k decisive tokens is right. All 2^k
outcomes are enumerated, and `advantages.gae` computes their advantages with the
values of a critic that is wrong in a known way. Writes lambda_theory.json, .md
and .png (the figure needs matplotlib).
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import results
from rl_reason.algorithms import advantages, credit
from rl_reason.report import figures

NAME = "lambda_theory"
LENGTHS = (128, 512, 1024)
DECISIVE = (1, 4, 10)
ACCURACY = 0.3
ALPHA = 0.05  # of VAPO
LAMBDAS = ("0.95", "adaptive", "1")
UNSEEN = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
OFFSETS = (0.1, 0.3, 0.5)
CRITIC = (0.95, 0.99, 1.0)  # lambdas of the critic
MOST_FITS = 1000


class Task(NamedTuple):
  """Responses of one length whose decisive tokens are spread evenly.

  Attributes:
    tokens: T of a response.
    decisive: k; token j is in the middle of the j-th part of the response.
    accuracy: chance that all of them are right; each is right independently.
  """

  tokens: int
  decisive: int
  accuracy: float = ACCURACY

  def chance(self) -> float:
    """That one decisive token is right."""
    return self.accuracy ** (1 / self.decisive)

  def places(self) -> np.ndarray:
    """The decisive tokens, [k]."""
    parts = np.arange(self.decisive) + 0.5
    return (parts * self.tokens / self.decisive).astype(int)


def outcomes(task: Task) -> tuple[np.ndarray, np.ndarray]:
  """All outcomes of the decisive tokens, [N, k], and their chances, [N]."""
  both = [(1.0, 0.0)] * task.decisive
  right_NK = np.array([*itertools.product(*both)])
  p = task.chance()
  return right_NK, np.where(right_NK > 0, p, 1 - p).prod(1)


def values(task: Task, right_NK: np.ndarray) -> np.ndarray:
  """The chance of a correct response before each token, [N, T]."""
  before_KT = task.places()[:, None] < np.arange(task.tokens)
  wrong_NT = (1 - right_NK) @ before_KT
  left_T = task.decisive - before_KT.sum(0)
  return (wrong_NT == 0) * task.chance() ** left_T


# --- critics that are wrong in a known way -----------------------------------


def unseen(share: float, task: Task, values_NT: np.ndarray) -> np.ndarray:
  """A critic that has learned a part: the rest is the mean accuracy."""
  return (1 - share) * values_NT + share * task.accuracy


def offset(size: float, task: Task, values_NT: np.ndarray) -> np.ndarray:
  """A critic whose values are too high everywhere."""
  return values_NT + size


def rising(size: float, task: Task, values_NT: np.ndarray) -> np.ndarray:
  """Too low at the first token and right at the end.

  A reward model reads whole responses: "assigns lower scores to earlier
  tokens" (VC-PPO, arXiv:2503.01491, section 3.1).
  """
  return values_NT - size * (1 - np.arange(task.tokens) / task.tokens)


Critic = Callable[[float, Task, np.ndarray], np.ndarray]
CRITICS: dict[str, Critic] = dict(unseen=unseen, offset=offset, rising=rising)


# --- moments of the gradient -------------------------------------------------


@functools.partial(jax.jit, static_argnames="lam")
def _advantages(rewards_NT, critic_NT, lam: str):
  mask_NT = jnp.ones_like(critic_NT)
  if lam == "adaptive":
    return advantages.gae_length_adaptive(
        rewards_NT, critic_NT, mask_NT, alpha=ALPHA
    )
  return advantages.gae(rewards_NT, critic_NT, mask_NT, lam=float(lam))


def gae(task: Task, critic_NT: np.ndarray, lam: str) -> np.ndarray:
  """Advantages of all outcomes, [N, T]; the last token has the reward."""
  right_NK, _ = outcomes(task)
  rewards_NT = np.zeros((len(right_NK), task.tokens))
  rewards_NT[:, -1] = right_NK.all(1)
  with jax.enable_x64(True):
    arrays = jnp.array(rewards_NT), jnp.array(critic_NT)
    return np.asarray(_advantages(*arrays, lam=lam))


def moments(task: Task, critic_NT: np.ndarray, lam: str) -> dict[str, float]:
  """What one response tells the policy.

  The policy has a logit for each token: of right against wrong where a token
  is decisive, and of two words that mean the same elsewhere.

  Returns:
    signal: the expected gradient of the decisive tokens, of the true one.
    noise: the variance of the gradient of a response, over all tokens, in
      units of the squared true gradient.
    responses: noise / signal^2: responses whose mean gradient has as much
      noise as signal.
    drift: the mean advantage of a token that decides nothing.
  """
  right_NK, chance_N = outcomes(task)
  places, p = task.places(), task.chance()
  advantages_NT = gae(task, critic_NT, lam)
  decisive_NK = advantages_NT[:, places]
  scores_NK = right_NK - p  # d log pi by the logit of right
  gradient_K = chance_N @ (decisive_NK * scores_NK)
  true = p * (1 - p) * p ** (task.decisive - 1)  # d accuracy by this logit
  squares = chance_N @ ((decisive_NK * scores_NK) ** 2).sum(1)
  plain_NT = np.delete(advantages_NT, places, axis=1)
  squares += chance_N @ (plain_NT**2).sum(1) / 4  # scores of +-1/2
  norm = task.decisive * true**2
  noise = (squares - gradient_K @ gradient_K) / norm
  signal = float(gradient_K.mean() / true)
  along = gradient_K.sum() ** 2 / task.decisive / norm
  return dict(
      signal=signal,
      noise=float(noise),
      responses=float(noise / along) if along > 0 else float("inf"),
      drift=float(chance_N @ plain_NT.mean(1)),
  )


def ending(task: Task, critic_NT: np.ndarray, lam: str) -> float:
  """Advantage of EOS over an idle token after the last decisive one.

  Neither changes the verdict, so that the true difference is 0. EOS comes in
  the middle of what is left.
  """
  right_NK, chance_N = outcomes(task)
  at = (task.places()[-1] + task.tokens) // 2
  goes_on_N = gae(task, critic_NT, lam)[:, at]
  return float(chance_N @ (right_NK.all(1) - critic_NT[:, at] - goes_on_N))


# --- how fast a critic learns ------------------------------------------------


@functools.partial(jax.jit, static_argnames="lam")
def _fitted(rewards_NT, state_NT, chance_N, critic_T2, lam: float):
  """The mean target of each state: of a token, and whether one was wrong."""
  tokens = jnp.arange(rewards_NT.shape[1])
  critic_NT = critic_T2[tokens, state_NT]
  targets_NT, _ = credit.targets(
      rewards_NT, critic_NT, jnp.ones_like(critic_NT), gamma=1.0, lam=lam
  )
  weights_NT = jnp.broadcast_to(chance_N[:, None], state_NT.shape)
  total_T2 = jnp.zeros_like(critic_T2).at[tokens, state_NT].add(weights_NT)
  sum_T2 = jnp.zeros_like(critic_T2)
  sum_T2 = sum_T2.at[tokens, state_NT].add(weights_NT * targets_NT)
  return jnp.where(total_T2 > 0, sum_T2 / total_T2, critic_T2)


def fits(task: Task, lam: float, share: float = 0.1) -> int:
  """How often a critic must fit its own targets until it sees the decisions.

  The critic begins with the mean accuracy, has one value for each state, and
  each fit gives a state the mean of its targets: no noise, no generalization.

  Args:
    task: the responses.
    lam: of the critic's targets.
    share: of the first error that may be left, mean absolute over tokens.
  """
  right_NK, chance_N = outcomes(task)
  true_NT = values(task, right_NK)
  before_KT = task.places()[:, None] < np.arange(task.tokens)
  state_NT = ((1 - right_NK) @ before_KT > 0).astype(int)
  rewards_NT = np.zeros_like(true_NT)
  rewards_NT[:, -1] = right_NK.all(1)
  steps = np.arange(task.tokens)
  with jax.enable_x64(True):
    arrays = [jnp.array(x) for x in (rewards_NT, state_NT, chance_N)]
    critic_T2 = jnp.full((task.tokens, 2), task.accuracy)
    first = None
    for done in range(MOST_FITS):
      wrong_NT = abs(np.asarray(critic_T2)[steps, state_NT] - true_NT)
      error = chance_N @ wrong_NT.mean(1)
      first = first or error
      if error <= share * first:
        return done
      critic_T2 = _fitted(*arrays, critic_T2, lam=lam)
  return MOST_FITS


# --- data, page and figure ---------------------------------------------------


def measure(_) -> dict:
  """All numbers."""
  rows = []
  for length, k in itertools.product(LENGTHS, DECISIVE):
    task = Task(length, k)
    values_NT = values(task, outcomes(task)[0])
    cases = [("unseen", x) for x in UNSEEN]
    cases += [(x, y) for x in ("offset", "rising") for y in OFFSETS]
    for critic, size in cases:
      critic_NT = CRITICS[critic](size, task, values_NT)
      for lam in LAMBDAS:
        found = moments(task, critic_NT, lam)
        found["ending"] = ending(task, critic_NT, lam)
        rows.append(
            dict(tokens=length, k=k, critic=critic, size=size, lam=lam) | found
        )
  return dict(
      command=f"python -m studies.{NAME}.run",
      environment=results.environment(),
      rows=rows,
      fits=[
          dict(tokens=t, k=k, fits={x: fits(Task(t, k), x) for x in CRITIC})
          for t, k in itertools.product(LENGTHS, DECISIVE[:2])
      ],
  )


def of(result: dict, **where: Any) -> list[dict]:
  """The rows with these entries."""
  return [x for x in result["rows"] if all(x[k] == y for k, y in where.items())]


def best(result: dict, **where: Any) -> str:
  """The lambda that needs the fewest responses."""
  rows = of(result, **where)
  return min(rows, key=lambda x: x["responses"])["lam"]


def _smaller_wins(result: dict) -> list[float]:
  """Unseen shares up to which the smaller lambda below 1 is always best."""
  out = []
  for size in UNSEEN:
    for length, k in itertools.product(LENGTHS, DECISIVE):
      where = dict(tokens=length, k=k, critic="unseen", size=size)
      adaptive = 1 - 1 / (ALPHA * length)
      if best(result, **where) != ("0.95" if adaptive > 0.95 else "adaptive"):
        return out
    out.append(size)
  return out


def _number(x: float) -> str:
  """Three significant digits; an infinite number of responses as such."""
  if x >= 1e6:
    return f"10^{np.log10(x):.0f}"
  return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  small = max(_smaller_wins(result))
  longest, k = LENGTHS[-1], DECISIVE[1]
  [fitted] = [
      x["fits"] for x in result["fits"] if (x["tokens"], x["k"]) == (longest, k)
  ]
  tilt = {
      lam: of(result, tokens=longest, k=1, critic="rising", size=0.5, lam=lam)[
          0
      ]["ending"]
      for lam in LAMBDAS
  }
  out = [
      "# When lambda of VAPO helps, exactly",
      "",
      f"As long as a critic sees {1 - small:.0%} of how decisive tokens change"
      " the chance of a correct response, the smaller of lambda .95 and VAPO's"
      f" 1 - 1 / ({ALPHA} l) needs the fewest responses, at every length here;"
      " lambda 1 wins where it sees next to nothing. What lambda 1 of the"
      " critic buys is time: at"
      f" {longest:,} tokens a critic with lambda .95 fits its targets"
      f" {fitted['0.95']} times before it sees {k} decisions, and with lambda 1"
      " once. And a biased critic tilts the end of a response: with values that"
      f" rise by .5 from the first token to the last, the advantage of EOS is"
      f" {tilt['0.95']:.3f} too high at lambda .95, {tilt['adaptive']:.3f} with"
      " the adaptive one and 0 at lambda 1, so that responses get shorter for"
      " no reason.",
      "",
      "The question: under which conditions do value pretraining, decoupled and"
      " length-adaptive GAE (VAPO, arXiv:2504.05118) matter? A response of l"
      " tokens is correct if each of k decisive tokens, spread evenly, is"
      f" right; {ACCURACY:.0%} are correct. Every number is a sum over all"
      " 2^k outcomes by `advantages.gae`, `advantages.gae_length_adaptive` and"
      " `credit.targets`: nothing is sampled.",
      "",
      "![Responses needed, fits of a critic, and the advantage of EOS]"
      f"({NAME}.png)",
      "",
      "## Responses for an equal signal, by what the critic sees",
      "",
      "Variance of the gradient of one response over its squared mean along the"
      " true gradient: so many responses have as much noise as signal. The"
      " policy has a logit for each token; tokens that decide nothing add"
      " noise. `unseen`: the share of the true value that the critic replaces"
      " by the mean accuracy.",
      "",
      "| l | k | unseen | lambda .95 | adaptive | lambda 1 |",
      "|---|---|---|---|---|---|",
  ]
  for length, count, size in itertools.product(LENGTHS, DECISIVE, UNSEEN):
    where = dict(tokens=length, k=count, critic="unseen", size=size)
    cells = []
    for lam in LAMBDAS:
      [row] = of(result, lam=lam, **where)
      text = _number(row["responses"])
      cells.append(f"**{text}**" if best(result, **where) == lam else text)
    out.append(results.row(f"{length:,}", count, f"{size:.0%}", *cells))
  out += [
      "",
      "## Fits until a critic sees the decisions",
      "",
      "A critic begins with the mean accuracy and has one value for each state;"
      " each fit gives a state the mean of its targets. So many fits until its"
      " mean absolute error is a tenth.",
      "",
      "| l | k | critic's lambda .95 | .99 | 1 |",
      "|---|---|---|---|---|",
  ]
  for x in result["fits"]:
    counts = [x["fits"][name] for name in map(str, CRITIC)]
    out.append(results.row(f"{x['tokens']:,}", x["k"], *counts))
  out += [
      "",
      "## The advantage of EOS",
      "",
      "After the last decisive token, ending and going on have the same value."
      " The difference of their advantages is the bias that lengthens"
      " (negative) or shortens (positive) responses. `offset`: all values are"
      " too high by so much. `rising`: too low by so much at the first token,"
      " right at the end, as of a reward model that was trained on whole"
      " responses (VC-PPO, arXiv:2503.01491).",
      "",
      "| l | k | critic | bias | lambda .95 | adaptive | lambda 1 |",
      "|---|---|---|---|---|---|---|",
  ]
  for length, count, critic, size in itertools.product(
      LENGTHS, DECISIVE, ("offset", "rising"), OFFSETS
  ):
    cells = [
        f"{round(x['ending'], 4) + 0.0:.4f}"
        for lam in LAMBDAS
        for x in of(
            result, tokens=length, k=count, critic=critic, size=size, lam=lam
        )
    ]
    out.append(results.row(f"{length:,}", count, critic, size, *cells))
  out += [
      "",
      "What this leaves out: errors of a critic that differ from prefix to"
      " prefix, generalization between prefixes, and clipping. An experiment"
      " shows VAPO's reasons best where responses are long, the critic begins"
      " biased, and updates of the critic are few.",
      "",
      f"Made by `{result['command']}`; data in `{NAME}.json`.",
      "",
  ]
  return [*out, *results.footer(result)]


def figure(result: dict) -> dict:
  """Responses by what a critic sees, fits by length, EOS by length."""
  labels = {"0.95": "lambda .95", "adaptive": "adaptive", "1": "lambda 1"}
  k = DECISIVE[1]
  needed = [
      figures.series(
          labels[lam],
          [100 * x for x in UNSEEN],
          [
              np.log10(x["responses"])
              for x in of(
                  result, tokens=LENGTHS[-1], k=k, critic="unseen", lam=lam
              )
          ],
          color=i,
          marker=True,
      )
      for i, lam in enumerate(LAMBDAS)
  ]
  fitted = [x for x in result["fits"] if x["k"] == k]
  fit_lines = [
      figures.series(
          f"lambda {lam}",
          LENGTHS,
          [x["fits"][lam] for x in fitted],
          color=i,
          marker=True,
      )
      for i, lam in enumerate(map(str, CRITIC))
  ]
  ends = [
      figures.series(
          labels[lam],
          LENGTHS,
          [
              of(result, tokens=t, k=1, critic="rising", size=0.5, lam=lam)[0][
                  "ending"
              ]
              for t in LENGTHS
          ],
          color=i,
          marker=True,
      )
      for i, lam in enumerate(LAMBDAS)
  ]
  panels = [
      figures.lines(
          needed,
          x="% of the decisions that the critic does not see",
          y="log10 responses",
          title=f"Responses needed, {LENGTHS[-1]:,} tokens, k = {k}",
          labels=True,
      ),
      figures.lines(
          fit_lines,
          x="tokens",
          y="fits",
          title=f"Fits until the critic sees, k = {k}",
          labels=True,
          ticks=LENGTHS,
      ),
      figures.lines(
          ends,
          x="tokens",
          y="advantage of EOS",
          title="EOS, values that rise by .5, k = 1",
          labels=True,
          ticks=LENGTHS,
      ),
  ]
  return figures.figure(figures.block(panels, columns=3, height=2.8), width=12)


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure)
