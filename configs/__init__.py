"""One file an algorithm, each a few changes to base.py."""
