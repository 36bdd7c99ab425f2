"""Tables of rl_reason beside other libraries."""
