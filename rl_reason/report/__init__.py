"""The report of a run: scores, environment and HTML page."""
