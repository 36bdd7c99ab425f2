"""What a config says of the reference of its KL; imported without JAX."""

FULL = "full"  # the kind of a KL over the whole vocabulary
ARRAY = "full_kl_BT"  # what terms of the loss call it


def on_server(c) -> bool:
  """Whether the teacher runs on a server."""
  return is_url(c.kl.reference)


def is_url(reference: str) -> bool:
  """Whether kl.reference is the address of a server."""
  return reference.startswith(("http://", "https://"))


def is_full(c) -> bool:
  """Whether the KL is computed over the whole vocabulary."""
  return c.kl.kind == FULL


def prompt_slots(c) -> int:
  """Tokens of the longest prompt of the reference."""
  if not c.kl.privileged:
    return c.rollout.max_prompt
  return c.kl.max_prompt or 2 * c.rollout.max_prompt
