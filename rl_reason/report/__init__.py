"""The page of a run: curves, samples and a token viewer."""
