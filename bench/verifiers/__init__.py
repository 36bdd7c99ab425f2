"""Answers that are easy to misjudge, and reference answers."""
