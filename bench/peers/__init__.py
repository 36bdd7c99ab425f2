"""Workers that run in the virtual environments of other libraries."""
