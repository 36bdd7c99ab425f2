"""Conformance: who computes what the papers say, and who has known faults."""
