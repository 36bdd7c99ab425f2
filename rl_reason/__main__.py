"""`python -m rl_reason`: the same command as `rl_reason`."""

from rl_reason.main import main

main()
