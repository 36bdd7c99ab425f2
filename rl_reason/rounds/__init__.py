"""Rounds: a policy writes samples, learns from what is kept, and again."""
