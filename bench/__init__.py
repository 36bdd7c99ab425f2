"""Measurements: one command a table, results committed as data."""
