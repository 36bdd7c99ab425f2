"""Whole runs: the main experiment, speedrun, bands, the first run."""
