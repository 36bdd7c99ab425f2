"""The fields that features add to a config."""

import pytest

from rl_reason import features
from rl_reason.base import fields
from rl_reason.configs import base


def of(names, changed=False) -> set[str]:
  """The fields of features, by the names of their folders.

  With `changed` also the fields of the core to which they add values.
  """
  base.get_config()
  others = [x for x in features.FEATURES if x not in names]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(features, "FEATURES", others)
    patch.setattr(fields, "FIELDS", {})
    features.declared.cache_clear()
    base.get_config()
    found = {**fields.FIELDS}
  features.declared.cache_clear()
  return {
      name
      for name, spec in fields.FIELDS.items()
      if name not in found or (changed and spec != found[name])
  }


def there(**changes):
  """Changes of a config, if the package has all of their fields."""
  base.get_config()
  names = [name.replace("__", ".") for name in changes]
  return changes if fields.FIELDS.keys() >= {*names} else {}
