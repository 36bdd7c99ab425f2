"""Checkpoints that are whole or absent, and stages that resume from them."""
