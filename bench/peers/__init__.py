"""Scripts that run inside the environments of other libraries."""
