"""RL of reasoning language models in JAX, as a small set of pure functions."""

__version__ = "0.1.0"
