"""Types of keyword arguments with bounds, for functions that a config names.

Closed ranges (low, high); None is no bound. The check of the config reads them.
"""

from typing import Annotated

UnitInterval = Annotated[float, (0, 1)]
NonNegative = Annotated[float, (0, None)]
Positive = Annotated[float, (1e-9, None)]
