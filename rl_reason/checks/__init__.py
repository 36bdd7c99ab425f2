"""What is checked before a run begins: its config and its work directory."""
