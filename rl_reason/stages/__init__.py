"""Stages of a run: they read the config, and call the rooms that compute."""
