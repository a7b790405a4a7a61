"""Which block of the pool holds which tokens of which path.

A path is cut into blocks of S tokens. Equal beginnings are one chain of blocks, so the blocks in use form a tree: what
goes on from a path shares its whole blocks and starts with a copy of the part that is left over.
"""

import dataclasses
import itertools
from collections.abc import Sequence


@dataclasses.dataclass(eq=False)
class Block:
    """A node of the tree: at most S tokens after those of its parent."""

    number: int
    parent: "Block | None" = None  # None at the root, which is no block of the pool
    depth: int = 0
    ids: tuple[int, ...] = ()
    ready: int = 0  # of ids, those in the pool since an earlier round
    used: int = 0  # the last round that touched it; never before one that touched a child
    children: list["Block"] = dataclasses.field(default_factory=list)
    whole: dict[tuple[int, ...], "Block"] = dataclasses.field(default_factory=dict)  # children of S tokens


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the tokens of a request go, and what of them is there already."""

    blocks: tuple[Block, ...]  # of its path, with room for what will be sampled
    cached: int  # leading tokens that need not be computed
    source: Block | None  # holds the cached part of blocks[cached // S], if there is one


class BlockTable:
    """The tree of blocks. A round is the requests served together: what it touches is not forgotten before its end."""

    def __init__(self, blocks: int, size: int):
        self._count, self._size = blocks, size
        self._round = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything: the pool's content is void."""
        self._root = Block(-1)
        self._free = list(range(self._count))[::-1]
        self._held: set[Block] = set()
        self._oldest: list[Block] | None = None

    def begin_round(self) -> None:
        self._round += 1
        self._oldest = None

    def place(self, ids: Sequence[int], room: int) -> Placement | None:
        """Blocks for ids [n] and what follows, `room` tokens in all; None if the round has taken too many.

        The last id is always left to compute, as sampling starts from its hidden state. What an earlier request of
        the round will compute counts as cached where it fills a block.
        """
        S, ids = self._size, tuple(ids)
        path = self._whole_blocks(ids)
        start = len(path) * S
        source, common = self._longest_start(path[-1] if path else self._root, ids[start:-1][: S - 1])
        # A block is written on only where nothing else goes on from it, now or in this round.
        extends = 0 < common == source.ready == len(source.ids) and not source.children and source.used < self._round
        for block in path if source is None else (*path, source):
            block.used = self._round
        fresh = self._allocate(-(-room // S) - len(path) - extends)
        if fresh is None:
            return None
        own = [source, *fresh] if extends else fresh
        self._chain(path, own, ids[start:])
        return Placement((*path, *own), start + common, source)

    def place_copy(self, leader: Placement, n: int, room: int) -> Placement | None:
        """Blocks for a request with the same n ids as one already placed in this round: all of them cached."""
        S = self._size
        path = leader.blocks[: n // S]
        own = self._allocate(-(-room // S) - len(path))
        if own is None:
            return None
        self._chain(path, own, ())
        return Placement((*path, *own), n, leader.blocks[n // S] if n % S else None)

    def commit(self, placement: Placement, ids: Sequence[int]) -> None:
        """The pool now holds ids along this path. Blocks it did not need are free again."""
        S, ids = self._size, tuple(ids)
        for i, block in enumerate(placement.blocks[placement.cached // S :], start=placement.cached // S):
            piece = ids[i * S : (i + 1) * S]
            if piece:
                self._name(block, piece)
                block.ready = len(piece)
            else:
                self._release(block)

    def _whole_blocks(self, ids: tuple[int, ...]) -> list[Block]:
        """The longest chain of whole blocks that ids begin with, and go beyond."""
        S, path, node = self._size, [], self._root
        for end in range(S, len(ids), S):
            node = node.whole.get(ids[end - S : end])
            if node is None:
                break
            path.append(node)
        return path

    def _longest_start(self, node: Block, ids: tuple[int, ...]) -> tuple[Block | None, int]:
        """The child that shares the longest beginning with ids, as far as it is computed, and how long that is."""
        best, longest = None, 0
        for child in node.children:
            pairs = zip(child.ids[: child.ready], ids, strict=False)
            common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if common > longest:
                best, longest = child, common
        return best, longest

    def _chain(self, path: Sequence[Block], own: Sequence[Block], ids: tuple[int, ...]) -> None:
        """Hang own blocks one below the other at the end of a path; ids are what they will hold."""
        parent = path[-1] if path else self._root
        for i, block in enumerate(own):
            if block.parent is None:
                block.parent, block.depth = parent, parent.depth + 1
                parent.children.append(block)
            self._name(block, ids[i * self._size : (i + 1) * self._size])
            block.used = self._round
            parent = block

    def _name(self, block: Block, ids: tuple[int, ...]) -> None:
        block.ids = ids
        if len(ids) == self._size:
            block.parent.whole.setdefault(ids, block)

    def _allocate(self, count: int) -> list[Block] | None:
        """New blocks, in place of the longest unused ones where none are free; None if there are too few."""
        while len(self._free) < count:
            if self._oldest is None:  # children before their parents
                idle = (block for block in self._held if block.used < self._round)
                self._oldest = sorted(idle, key=lambda b: (b.used, -b.depth, b.number), reverse=True)
            while self._oldest and self._oldest[-1].used == self._round:
                self._oldest.pop()
            if not self._oldest:
                return None
            self._release(self._oldest.pop())
        new = [Block(self._free.pop()) for _ in range(count)]
        self._held.update(new)
        return new

    def _release(self, block: Block) -> None:
        block.parent.children.remove(block)
        if block.parent.whole.get(block.ids) is block:
            del block.parent.whole[block.ids]
        self._held.remove(block)
        self._free.append(block.number)
