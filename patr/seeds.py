"""Every random choice is a function of its address; no generator carries state.

An address is (run seed, purpose, then whatever places the choice: step, task id,
branch path, turn). Two choices with different addresses are independent; the
same address gives the same seed in any process, order or resumed run.
"""

import hashlib

import numpy as np


def seed_for(run_seed: int, purpose: str, *address) -> int:
    """A 63-bit seed for one choice.

    address: ints, strings and tuples of them, in an order fixed by the purpose.
    Raises TypeError for anything whose text could differ between processes.
    """
    digest = hashlib.blake2b(repr((run_seed, purpose, *map(_plain, address))).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator_for(run_seed: int, purpose: str, *address) -> np.random.Generator:
    """A NumPy generator seeded by an address."""
    return np.random.default_rng(seed_for(run_seed, purpose, *address))


def _plain(part):
    if isinstance(part, (int, np.integer)):
        return int(part)
    if isinstance(part, str):
        return part
    if isinstance(part, tuple):
        return tuple(map(_plain, part))
    raise TypeError(f"an address holds ints, strings and tuples, not {type(part).__name__}: {part!r}")
