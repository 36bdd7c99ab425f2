"""Batches of padding, in the shapes of a real one."""

import numpy as np

from rl_reason.structs import Experience, Rollouts, Turns


def no_rows(
    rows: int,
    max_prompt: int,
    max_tokens: int,
    num_terms: int,
    turns: bool = False,
    routes: tuple[int, str] | None = None,
) -> Experience:
  """Rows of padding, whose shapes are those of a real batch.

  Args:
    rows: B.
    max_prompt: P.
    max_tokens: T.
    num_terms: of reward.functions.
    turns: whether responses are trajectories in an environment.
    routes: experts of a token and their dtype, if they are recorded.
  """
  zeros_BT = np.zeros((rows, max_tokens), np.float32)
  zeros_B = np.zeros(rows, np.int32)
  routes_BLZ = None
  if routes:
    size, dtype = routes
    routes_BLZ = np.full((rows, max_prompt + max_tokens, size), -1, dtype)
  return Experience(
      rollouts=Rollouts(
          tokens_BL=np.zeros((rows, max_prompt + max_tokens), np.int32),
          start_B=zeros_B,
          ids_B=zeros_B - 1,
          mask_BT=zeros_BT > 0,
          logps_BT=zeros_BT,
          lengths_B=zeros_B,
          truncated_B=zeros_B > 0,
          routes_BLZ=routes_BLZ,
      ),
      correct_B=zeros_B.astype(np.float32),
      scores_EB=tuple(zeros_B.astype(np.float32) for _ in range(num_terms)),
      old_logps_BT=zeros_BT,
      stale_lengths_B=zeros_B,
      age_B=zeros_B - 1,
      types_B=zeros_B,
      problems_B=zeros_B - 1,
      turns=Turns(zeros_BT, zeros_BT.astype(np.int32)) if turns else None,
  )
