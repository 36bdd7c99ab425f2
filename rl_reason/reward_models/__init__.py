"""Reward models: training one, and using those of others."""
