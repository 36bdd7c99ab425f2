"""One-off studies: plan, script, data and page of each in one folder."""
