"""The report of a run: scores, charts, machine and HTML pages."""
