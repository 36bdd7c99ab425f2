"""`python -m rl_reason.ablate`."""

import sys

from rl_reason import ablate

sys.exit(ablate.main(sys.argv[1:]))
