"""Terms of the loss beside the surrogate, of the named algorithms."""

import functools

from rl_reason.algorithms import kl as kl_lib, reductions
from rl_reason.algorithms.objective import Term
from rl_reason.base.structs import Array


def terms(
    *,
    kl: str = "none",
    entropy: bool = False,
    positive_nll: float = 0.0,
    on_policy: bool = False,
) -> tuple[Term, ...]:
  """The terms of a loss, in the order in which they are added.

  Args:
    kl: a KL to the reference with the coefficient `kl`: its estimator, one of
      `kl.ESTIMATORS`, or 'none'.
    entropy: whether there is an entropy bonus with the coefficient `entropy`.
    positive_nll: mu, coefficient of the mean NLL over the tokens of the correct
      responses of the minibatch (VAPO, arXiv:2504.05118, sec 4.3); 0 for none.
    on_policy: as of `objective.Objective`.
  """
  of_kl = functools.partial(kl_lib.estimate, kl)
  # Without a pass before the update, the update measures the KL, too.
  measured = kl != "none" and on_policy
  possible = {
      Term("kl_loss", of_kl, "kl"): kl != "none",
      Term("kl/reference", of_kl, 0, reductions.token_mean): measured,
      # The metric of this name is the entropy, and not the term.
      Term("entropy", minus_entropy, "entropy"): entropy,
      Term("nll_loss", nll, positive_nll, of_correct): positive_nll > 0,
  }
  return tuple(term for term, exists in possible.items() if exists)


def minus_entropy(entropy_BT: Array) -> Array:
  """An entropy bonus lowers the loss."""
  return -entropy_BT


def nll(logps_BT: Array) -> Array:
  """-log p of the tokens that the policy chose."""
  return -logps_BT


def of_correct(mask_BT: Array, groups_B: Array, correct_B: Array) -> Array:
  """Weights of the mean over the tokens of correct responses."""
  return reductions.token_mean(mask_BT * correct_B[:, None], groups_B)
