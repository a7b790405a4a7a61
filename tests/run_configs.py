"""The config of a run short enough for tests."""

import sys
from pathlib import Path

from ml_collections import ConfigDict


def smoke(**overrides) -> ConfigDict:
    """configs/frozen_lake.py:smoke, with some of its values replaced: smoke(**{"training.steps": 2})."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "configs"))
    try:
        from frozen_lake import get_config
    finally:
        sys.path.pop(0)
    config = get_config("smoke")
    config.update_from_flattened_dict(overrides)
    return config
