"""The RL loop and the other training stages."""
