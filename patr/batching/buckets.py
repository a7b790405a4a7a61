"""The few shapes that packs may have, so that few programs are compiled, and which tree goes into which pack."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Size:
    """What a pack offers or a tree needs. Sizes put side by side in one pack add up."""

    rows: int  # B
    tiles: int  # N, of attention
    trained: int  # M, entries

    def __add__(self, other: "Size") -> "Size":
        return Size(self.rows + other.rows, self.tiles + other.tiles, self.trained + other.trained)

    def fits(self, offered: "Size") -> bool:
        return self.rows <= offered.rows and self.tiles <= offered.tiles and self.trained <= offered.trained


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Shapes of packs: rows of `row_length` tokens, in one of `sizes`, listed from cheap to dear.

    Each size is one compilation. Raises ValueError if there is none, or a number is below 1.
    """

    row_length: int  # T
    sizes: tuple[Size, ...]

    def __post_init__(self):
        if not self.sizes or min(self.row_length, *(n for size in self.sizes for n in dataclasses.astuple(size))) < 1:
            raise ValueError(f"buckets: need at least one size and only numbers >= 1, got {self}")

    def smallest(self, needed: Size) -> Size | None:
        """The first size that offers what is needed; None if none does."""
        return next((size for size in self.sizes if needed.fits(size)), None)


def first_fit(needs: Sequence[Size], names: Sequence[str], buckets: Buckets) -> list[list[int]]:
    """Put things into packs: the members of each pack, by index.

    Largest first, each into the first pack with room. A pack is of the first bucket that holds its largest member
    and never grows into a dearer one. The same needs in the same order give the same packs. Raises ValueError naming
    what no bucket can hold.
    """
    packs: list[tuple[Size, Size, list[int]]] = []  # offered, held, members
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i].rows, -needs[i].trained)):
        smallest = buckets.smallest(needs[i])
        if smallest is None:
            raise ValueError(
                f"{names[i]} needs {needs[i]} in rows of {buckets.row_length} tokens, and no bucket offers that: "
                f"{', '.join(map(str, buckets.sizes))}; add a larger one, or limit turns and tokens of a rollout"
            )
        for at, (offered, held, members) in enumerate(packs):
            if (held + needs[i]).fits(offered):
                packs[at] = offered, held + needs[i], [*members, i]
                break
        else:
            packs.append((smallest, needs[i], [i]))
    return [members for _, _, members in packs]
