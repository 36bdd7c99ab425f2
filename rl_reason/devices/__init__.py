"""Meshes, shardings, randomness and programs that compile once."""
