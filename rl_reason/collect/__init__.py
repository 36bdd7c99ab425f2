"""Collection: from prompts to graded groups of responses with signal."""
