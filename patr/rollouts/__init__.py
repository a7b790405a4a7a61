"""Rollout controllers, each one frozen dataclass with `check(limits)` and `async rollout(task, engine)`."""

from patr.rollouts.flat import Flat
from patr.rollouts.patr import Patr
from patr.rollouts.tree_random import TreeRandom

ROLLOUTS = {"flat": Flat, "patr": Patr, "tree_random": TreeRandom}
