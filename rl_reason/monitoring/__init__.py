"""Metrics, progress on the screen, and alarms of a run."""
