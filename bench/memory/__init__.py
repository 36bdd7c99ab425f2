"""Memory of a run: formulas, compiled programs, measurements."""
