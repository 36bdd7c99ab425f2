"""What a run logs, shows on the screen, and warns about."""
