"""Trees packed as their unique tokens: what several leaves share is computed once and trained once.

A tree is cut where it forks. Each piece is a segment, the tokens that exactly the same leaves hold, laid into rows of
T tokens of its own. For a prompt `p q`, a branch `a b c d e` and its children `x y` and `z`, with T = 4:

    row   tokens     positions   sees rows
    0     p q . .    0 1 . .     0
    1     a b c d    2 3 4 5     0 1
    2     e . . .    6 . . .     0 1 2
    3     x y . .    7 8 . .     0 1 2 3
    4     z . . .    7 . . .     0 1 2 4

A token sees what stands in these rows up to its own position. The packed index of row r, column c is r * T + c.
Whatever is trained is an entry: `source`, where the prediction is made, and `target`, the sampled token. Here `e` (8)
is the source of two entries, x and z. All a loss must know of the leaves that share an entry are its `TokenWeights`.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from patr.batching.buckets import Buckets, Size, first_fit
from patr.models.attention import NOWHERE, TILE_KEYS
from patr.objectives.policy_losses import TokenWeights
from patr.objectives.reductions import group_shares
from patr.types import Branch, Path, Tree, Turn


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pack:
    """One micro-batch of whole trees in a fixed shape. Padding holds zeros, where nothing else is said."""

    tokens: np.ndarray  # int32 [B, T]
    positions: np.ndarray  # int32 [B, T] along the root path; NOWHERE where there is no token
    tile_query: np.ndarray  # int32 [N] a row of queries ...
    tile_keys: np.ndarray  # int32 [N, TILE_KEYS] ... and rows that it sees; row B is none
    source: np.ndarray  # int32 [M] packed index of the token that predicts
    target: np.ndarray  # int32 [M] the sampled token
    old_logprobs: np.ndarray  # float32 [M] of the targets, when they were sampled
    weights: TokenWeights  # float32 [M] each
    denominator: np.ndarray  # float32 [] what this pack adds to the denominator of the batch


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """The trees of a batch in packs. The sum of their losses, over the sum of their denominators, is the loss."""

    packs: tuple[Pack, ...]
    denominator: float  # of the whole batch
    groups: int  # trees with a trained leaf
    zero_variance_groups: int  # of these, those whose advantages are all zero
    skipped_groups: int  # of these, those left out of the packs; token metrics do not cover them
    unique_tokens: int  # tokens in packs
    flat_tokens: int  # what they would be with every leaf written out
    padding_tokens: int  # places in packs without a token


def pack_trees(
    trees: Sequence[Tree],
    advantages: Sequence[Sequence[float]] | None,
    *,
    reduction: str,
    buckets: Buckets,
    share_prefixes: bool = True,
    skip_zero_variance: bool = False,
) -> PackedBatch:
    """Pack groups for `tree_loss`. Runs on the host; the same arguments give the same packs.

    advantages: for each tree, those of its `trajectories()`, in that order; None for imitation, where only shares
        count. Branches that lead to no trajectory of the group are left out.
    reduction: the objective's; see reductions.py.
    share_prefixes: False writes every leaf out as a chain of its own: the same loss without the saving.
    skip_zero_variance: leave out groups whose advantages are all zero, which only KL and entropy terms can learn
        from. They still count in the denominator.
    Raises ValueError for advantages that do not match their tree or are not finite, and for a tree larger than every
    bucket: trees are never split.
    """
    if advantages is None:
        advantages = [np.zeros(len(list(tree.leaves()))) for tree in trees]
    groups = [
        _group(tree, a, reduction, buckets.row_length, share_prefixes)
        for tree, a in zip(trees, advantages, strict=True)
    ]
    groups = [group for group in groups if group.segments]
    packed = [group for group in groups if not (skip_zero_variance and group.zero_variance)]
    skipped_denominator = sum(group.denominator for group in groups if skip_zero_variance and group.zero_variance)

    packs = []
    for members in first_fit([group.size for group in packed], [group.name for group in packed], buckets):
        packs.append(_pack([packed[i] for i in members], buckets, skipped_denominator if not packs else 0.0))

    unique = sum(len(segment.ids) for group in packed for segment in group.segments)
    return PackedBatch(
        packs=tuple(packs),
        denominator=sum(group.denominator for group in groups),
        groups=len(groups),
        zero_variance_groups=sum(group.zero_variance for group in groups),
        skipped_groups=len(groups) - len(packed),
        unique_tokens=unique,
        flat_tokens=sum(len(segment.ids) * segment.leaves for group in packed for segment in group.segments),
        padding_tokens=sum(pack.tokens.size for pack in packs) - unique,
    )


@dataclasses.dataclass(frozen=True)
class _Segment:
    """Consecutive tokens [n] that the same leaves hold."""

    path: Path
    parent: Path | None  # None at a root
    ids: list[int]
    mask: list[int]  # 1 where sampled
    logprobs: list[float]
    weights: np.ndarray  # [6] in the order of TokenWeights' fields
    leaves: int


@dataclasses.dataclass(frozen=True)
class _Group:
    """One tree, ready to be placed."""

    name: str
    segments: list[_Segment]  # parents before children; empty if no leaf is trained
    size: Size
    denominator: float
    zero_variance: bool


def _group(tree: Tree, advantages: Sequence[float], reduction: str, row_length: int, share_prefixes: bool) -> _Group:
    leaves = list(tree.leaves())
    advantages = np.asarray(advantages, np.float64)
    if advantages.shape != (len(leaves),) or not np.isfinite(advantages).all():
        raise ValueError(f"task {tree.task.id}: its {len(leaves)} leaves need one finite advantage each: {advantages}")
    lengths = [sum(len(turn.action_ids) for turn in tree.lineage_turns(leaf.path)) for leaf in leaves]
    shares, denominator = group_shares(reduction, lengths)
    gains = shares * advantages
    up, down = advantages > 0, advantages < 0
    leaf_weights = np.stack([gains * up, gains * down, shares, np.ones(len(leaves)), up, down], axis=1)  # [L, 6]
    segments = (_shared_segments if share_prefixes else _chains)(tree, leaves, leaf_weights)
    return _Group(
        name=f"task {tree.task.id}",
        segments=segments,
        size=_size(segments, row_length),
        denominator=denominator,
        zero_variance=not advantages.any(),
    )


def _shared_segments(tree: Tree, leaves: list[Branch], leaf_weights: np.ndarray) -> list[_Segment]:
    """The prompt, then one segment for each branch that is, or leads to, one of the leaves."""
    n = len(tree.prompt_ids)
    prompt = list(tree.prompt_ids), [0] * n, [0.0] * n
    pieces = [((), None, prompt)]
    pieces += [(branch.path, branch.path[:-1], _joined(branch.turns)) for branch in tree.branches]
    segments = []
    for path, parent, tokens in pieces:
        below = [i for i, leaf in enumerate(leaves) if leaf.path[: len(path)] == path]
        if below:
            segments.append(_Segment(path, parent, *tokens, leaf_weights[below].sum(axis=0), len(below)))
    return segments


def _joined(turns: Sequence[Turn]) -> tuple[list[int], list[int], list[float]]:
    ids, mask, logprobs = [], [], []
    for turn in turns:
        ids += turn.action_ids + turn.observation_ids
        mask += [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)
        logprobs += turn.logprobs + (0.0,) * len(turn.observation_ids)
    return ids, mask, logprobs


def _chains(tree: Tree, leaves: list[Branch], leaf_weights: np.ndarray) -> list[_Segment]:
    """One segment for each leaf: its whole trajectory."""
    return [
        _Segment(t.path, None, list(t.ids), list(t.mask), list(t.logprobs), weights, 1)
        for t, weights in zip(tree.trajectories(), leaf_weights, strict=True)
    ]


def _size(segments: list[_Segment], row_length: int) -> Size:
    tiles, ends = 0, {None: 0}  # rows from the root to the end of each segment
    for segment in segments:
        start = ends[segment.parent]
        end = ends[segment.path] = start + _rows(segment, row_length)
        tiles += sum(-(-seen // TILE_KEYS) for seen in range(start + 1, end + 1))
    return Size(
        rows=sum(_rows(segment, row_length) for segment in segments),
        tiles=tiles,
        trained=sum(sum(segment.mask) for segment in segments),
    )


def trajectory_size(tokens: int, trained: int, row_length: int) -> Size:
    """What a trajectory of so many tokens needs that shares nothing."""
    rows = -(-tokens // row_length)
    return Size(rows, sum(-(-seen // TILE_KEYS) for seen in range(1, rows + 1)), trained)


def _rows(segment: _Segment, row_length: int) -> int:
    return -(-len(segment.ids) // row_length)


def _pack(groups: list[_Group], buckets: Buckets, skipped_denominator: float) -> Pack:
    """Lay groups one after another into the smallest bucket that holds them."""
    size = buckets.smallest(sum((group.size for group in groups), start=Size(0, 0, 0)))
    T = buckets.row_length
    tokens, positions = np.zeros(size.rows * T, np.int32), np.full(size.rows * T, NOWHERE, np.int32)
    tile_query = np.full(size.tiles, size.rows, np.int32)
    tile_keys = np.full((size.tiles, TILE_KEYS), size.rows, np.int32)
    source, target = np.zeros((2, size.trained), np.int32)
    old_logprobs = np.zeros(size.trained, np.float32)
    weights = np.zeros((len(dataclasses.fields(TokenWeights)), size.trained), np.float32)

    row = tile = entry = 0
    for group in groups:
        ends = {None: ([], -1)}  # where each segment ends: the rows from the root, the packed index of its last token
        for segment in group.segments:
            seen, last = ends[segment.parent]
            own = row * T + np.arange(len(segment.ids), dtype=np.int32)
            tokens[own] = segment.ids
            positions[own] = np.arange(len(own)) + (positions[last] + 1 if last >= 0 else 0)
            for query in range(row, row + _rows(segment, T)):
                seen = [*seen, query]
                for start in range(0, len(seen), TILE_KEYS):
                    keys = seen[start : start + TILE_KEYS]
                    tile_query[tile], tile_keys[tile, : len(keys)] = query, keys
                    tile += 1
            ends[segment.path] = seen, own[-1] if len(own) else last

            sampled = np.flatnonzero(segment.mask)
            at = slice(entry, entry + len(sampled))
            source[at] = np.concatenate([[last], own])[sampled]
            target[at] = tokens[own[sampled]]
            old_logprobs[at] = np.asarray(segment.logprobs)[sampled]
            weights[:, at] = segment.weights[:, None]
            row, entry = row + _rows(segment, T), entry + len(sampled)
    return Pack(
        tokens=tokens.reshape(size.rows, T),
        positions=positions.reshape(size.rows, T),
        tile_query=tile_query,
        tile_keys=tile_keys,
        source=source,
        target=target,
        old_logprobs=old_logprobs,
        weights=TokenWeights(*weights),
        denominator=np.float32(sum(group.denominator for group in groups) + skipped_denominator),
    )
