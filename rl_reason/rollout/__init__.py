"""Sampling of responses: a stateless function of parameters and prompts."""
