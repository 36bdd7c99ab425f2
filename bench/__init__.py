"""Benchmarks: one command per table, results committed as data."""
