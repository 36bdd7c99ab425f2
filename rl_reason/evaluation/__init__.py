"""Held-out accuracy, during a run and as a command of its own."""
