"""Rows that are imitated during RL: responses of SFT, and plain text.

The loss is then a sum of streams with their own rows, weights and denominators;
see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import feature
from rl_reason.base.fields import number, path, section

_STREAMS = ("streams.sft", "streams.text")  # their coefficients


def _coefs(c) -> dict[str, float]:
  """The coefficients of the streams, by their names."""
  return {x: c.streams[x] for x in ("sft", "text") if c.streams[x]}


class _RowsBesideRL(feature.Declaration):
  marks = {
      "imitates": ("streams.sft",),
      "unreplayed": dict.fromkeys(_STREAMS, "has the gradient of RL alone"),
      "learned_rows": {f"{x}_batch": x for x in _STREAMS},
      "sources": ("streams.text_sources",),
      "shown": {
          "streams.sft": "SFT during RL, {:g}",
          "streams.text": "language modelling during RL, {:g}",
      },
  }

  def fields(self, c) -> None:
    c.streams = section(  # of the loss, next to RL
        "streams",
        sft=number(
            0.0, low=0
        ),  # coefficient of the NLL of SFT's rows; 0 is off
        sft_batch=number(64, low=1, needs="streams.sft"),  # an optimizer step
        text=number(
            0.0, low=0
        ),  # coefficient of the NLL of plain text; 0 is off
        # Rows of rollout.max_prompt + rollout.max_tokens, an optimizer step.
        text_batch=number(64, low=1, needs="streams.text"),
        # Sources with a column `text`, as in data.train, or files that end in
        # .txt.
        text_sources=path(needs="streams.text"),
    )

  def used(self, c) -> bool:
    return bool(_coefs(c))

  def rules(self, c) -> Iterator[feature.Rule]:
    if c.streams.text and not c.streams.text_sources:
      yield "streams.text", "has no rows: name files in streams.text_sources"

  def update(self, c, cfg):
    from rl_reason.features.rows_beside_rl import streams

    return dict(stream=streams.gradient_of(c, cfg, _coefs(c)))

  def abstract(self, c, shapes):
    length, out = c.rollout.max_tokens, {}
    for name in _coefs(c):
      rows = c.streams[f"{name}_batch"]
      every_token = c.rollout.max_prompt + length - 1
      predicted = every_token if name == "text" else length
      mask = shapes.by_row(bool, predicted, rows=rows)
      out[name] = shapes.packed(rows, predicted), mask
    return dict(rows_M=out)

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.rows_beside_rl import streams

    return streams.start(c, loop)


FEATURE = _RowsBesideRL()
