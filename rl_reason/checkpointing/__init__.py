"""Atomic checkpoints, and training stages that resume from them."""
