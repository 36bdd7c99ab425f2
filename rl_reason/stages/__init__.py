"""Stages of a run: they read the config, and call the folders that compute."""
