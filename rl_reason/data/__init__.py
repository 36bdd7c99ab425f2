"""Data: known sets, files, preparation, templates, tokenizers, pipelines."""
