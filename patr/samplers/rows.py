"""Which row of the pool holds which tokens."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a request's tokens go and what of them is there already."""

    row: int
    source: int  # row to copy the cached prefix from; equal to `row` when it is extended in place
    cached: int  # length of that prefix


class RowTable:
    """Finds the longest cached prefix of a request; forgets the least recently used row.

    A request that extends a whole row takes it over; a second one with the same
    prefix (a fork) gets a row of its own and copies. Rows touched in the current
    round are never forgotten in it.
    """

    def __init__(self, rows: int, capacity: int):
        self._tokens = np.zeros((rows, capacity), np.int32)
        self._lengths = np.zeros(rows, np.int64)
        self._used = np.zeros(rows, np.int64)
        self._round = 0
        self._claimed = np.zeros(rows, bool)

    def begin_round(self) -> None:
        self._round += 1
        self._claimed[:] = False

    def place(self, ids: np.ndarray) -> Placement | None:
        """Claim a row for ids [n]. At least the last id is left to prefill. None: no row is free this round."""
        known = len(ids) - 1
        agree = self._tokens[:, :known] == ids[:known]
        common = np.where(agree.all(axis=1), known, agree.argmin(axis=1)) if known else np.zeros_like(self._lengths)
        common = np.minimum(common, self._lengths)
        longest = int(common.max())
        if longest:
            whole = np.flatnonzero((common == longest) & (self._lengths == longest) & ~self._claimed)
            if len(whole):
                return Placement(self._claim(int(whole[0])), int(whole[0]), longest)
            source = int(common.argmax())
            self._used[source] = self._round
            row = self.place_copy()
            return None if row is None else Placement(row, source, longest)
        row = self.place_copy()
        return None if row is None else Placement(row, row, 0)

    def place_copy(self) -> int | None:
        """Claim the least recently used row, its content forgotten."""
        free = np.flatnonzero(self._used < self._round)
        if not len(free):
            return None
        row = int(free[np.lexsort((free, self._used[free]))[0]])
        self._lengths[row] = 0
        return self._claim(row)

    def _claim(self, row: int) -> int:
        self._claimed[row] = True
        self._used[row] = self._round
        return row

    def commit(self, row: int, ids: np.ndarray) -> None:
        """Row now holds ids [n]."""
        self._tokens[row, : len(ids)] = ids
        self._lengths[row] = len(ids)

    def forget(self) -> None:
        """Drop everything: the weights the rows were computed with are gone."""
        self._lengths[:] = 0
