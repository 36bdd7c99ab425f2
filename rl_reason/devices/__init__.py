"""Meshes, shardings, random keys, and programs that compile once."""
