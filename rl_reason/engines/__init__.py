"""Inference engines of others, which sample with the weights of a run."""
