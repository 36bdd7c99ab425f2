"""Commands that measure no run: cards, pictures, mutants, the code."""
