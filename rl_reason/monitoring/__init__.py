"""Logs, progress on the screen, and health of a run."""
