"""Where rows come from: files, templates, tokenizers, grain pipelines."""
