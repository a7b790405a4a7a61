"""Environments. Importing this package makes the grid worlds known to Gymnasium."""

import gymnasium


def register() -> None:
    """Register patr's Gymnasium environments. Does nothing the second time."""
    if "patr/FrozenLake-v0" not in gymnasium.registry:
        gymnasium.register("patr/FrozenLake-v0", entry_point="patr.envs.frozen_lake_gym:FrozenLakeGym")


register()
