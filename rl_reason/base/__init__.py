"""Arrays, errors, named functions, fields, files: what every room may use."""
