"""The presets; in a checkout they are the files of its configs/.

setup.py installs them as this package: `from rl_reason.configs import dapo`
means the same in a checkout, in an editable installation and in a wheel.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).parents[2] / "configs")]
