"""Metrics of the server in the text format of Prometheus."""

import math
from collections.abc import Sequence

import prometheus_client as prometheus

from rl_reason.serve.engine import Engine
from rl_reason.serve.responses import Response

_LENGTHS = [2**n for n in range(17)]
_SECONDS = [0.05 * 2**n for n in range(15)]
_SHARES = [n / 20 for n in range(1, 21)]


class Metrics:
  """Counters and histograms of a server, and gauges of its engines."""

  def __init__(self, engines: Sequence[Engine]):
    self.registry = prometheus.CollectorRegistry()

    def make(kind, name: str, about: str, labels=(), **options):
      return kind(
          f"rl_reason_{name}", about, labels, registry=self.registry, **options
      )

    counter, gauge, histogram = (
        prometheus.Counter,
        prometheus.Gauge,
        prometheus.Histogram,
    )
    self.requests = make(
        counter, "requests", "Requests by status", ("route", "status")
    )
    self.refusals = make(
        counter, "refusals", "Responses withheld by serve.filter", ("rule",)
    )
    self._responses = make(
        counter, "responses", "Responses by their end", ("finish_reason",)
    )
    self._prompt = make(
        histogram, "prompt_tokens", "Tokens of prompts", buckets=_LENGTHS
    )
    self._response = make(
        histogram, "response_tokens", "Tokens of responses", buckets=_LENGTHS
    )
    self._confidence = make(
        histogram,
        "confidence",
        "Geometric mean of the probabilities of a response's tokens",
        buckets=_SHARES,
    )
    self.seconds = make(
        histogram, "request_seconds", "Time of a request", buckets=_SECONDS
    )
    self.first_token = make(
        histogram, "first_token_seconds", "Until a token", buckets=_SECONDS
    )
    for name, about, value in (
        ("queue", "Responses that wait", lambda x: x.waiting),
        ("running", "Responses being decoded", lambda x: x.running),
        ("tokens_per_second", "Over the last seconds", lambda x: x.rate()),
        ("sampled_tokens", "Since the start", lambda x: x.tokens),
        ("prefills", "Prompts prefilled", lambda x: x.prefills),
        ("prefix_cache_hits", "Responses without", lambda x: x.hits),
    ):
      total = lambda value=value: sum(map(value, engines))  # noqa: E731
      make(gauge, name, about).set_function(total)

  def prompt(self, tokens: int) -> None:
    """Counts a prompt."""
    self._prompt.observe(tokens)

  def response(self, finish: str, response: Response) -> None:
    """Counts a finished response, before a rule may withhold it."""
    self._responses.labels(finish).inc()
    self._response.observe(len(response.ids))
    if response.logps:
      mean = sum(response.logps) / len(response.logps)
      self._confidence.observe(math.exp(mean))

  def text(self) -> bytes:
    """Returns the text of /metrics."""
    return prometheus.generate_latest(self.registry)
