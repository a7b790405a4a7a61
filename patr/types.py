"""The nouns everything else speaks of, checked when they are made.

Shape letters, the same in every file:
  B rows            T tokens in a row    N packed unique tokens   M trained tokens
  S segments        P path length        L leaves                 G group size
  V vocabulary      E embedding          H query heads            K key/value heads
  D head size

A rollout is a `Tree`. Its nodes are `Branch`es, addressed by their path from
the root: `()` is the prompt, `(2,)` the third initial branch, `(2, 0)` the
first child it was expanded into. Each branch holds only the turns it added;
its tokens are those of the branches on its root path, joined.
"""

import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """One problem instance. `data` is whatever its environment needs to reset to it."""

    id: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not self.id:
            raise ValueError("a Task needs a non-empty id: groups and seeds are keyed by it")
        object.__setattr__(self, "data", types.MappingProxyType(dict(self.data)))


class Status(enum.StrEnum):
    """What became of a branch."""

    ACTIVE = "active"  # still rolling out
    EXPANDED = "expanded"  # replaced by its children; not a leaf
    DONE = "done"  # the environment ended the episode
    TURN_LIMIT = "turn_limit"  # the interaction budget is used up
    LENGTH = "length"  # the context is full
    PRUNED = "pruned"  # stopped early by the controller
    ERROR = "error"  # environment or server failed; left out of the group


@dataclasses.dataclass(frozen=True)
class Turn:
    """One policy action and the environment's answer.

    `action_ids` are the sampled tokens, the sampled end-of-turn included (mask 1).
    `observation_ids` are what the chat template appended after them (mask 0);
    empty after the last turn of an episode.
    """

    action_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of action_ids, at the temperature they were sampled with
    observation_ids: tuple[int, ...]
    action: str  # the action in the environment's own words; what the repeat rule compares
    reward: float
    finish_reason: str  # 'stop' | 'length'
    observation: str = ""  # text view of what the environment answered
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON-serialisable
    weight_version: int = 0

    def __post_init__(self):
        if len(self.action_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.action_ids)} sampled ids but {len(self.logprobs)} log-probs")
        if not self.action_ids:
            raise ValueError("a turn without sampled tokens has nothing to train on")
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(f"finish_reason {self.finish_reason!r}: expected 'stop' or 'length'")


@dataclasses.dataclass(frozen=True)
class Branch:
    """A node of the tree: the turns added since it was forked from its parent."""

    path: Path
    turns: tuple[Turn, ...]
    status: Status
    reward: float | None = None  # outcome reward; set on leaves that did not fail
    error: str = ""

    @property
    def is_leaf(self) -> bool:
        return self.status is not Status.EXPANDED


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a checkpoint did to one active branch, with the numbers that caused it."""

    turn: int  # turns the branch had taken in all
    path: Path
    kind: str  # 'expand' | 'survive' | 'prune'
    rule: str  # which rule decided: 'top_k', 'random', 'margin', 'repeat', 'none', ...
    score: float | None = None  # None: the scorer failed and the branch survived by default
    threshold: float | None = None  # the number the rule compared with
    rank: int | None = None


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What a rollout cost. Ledgers add up."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    environment_steps: int = 0
    scorer_calls: int = 0
    scorer_failures: int = 0
    environment_errors: int = 0
    wall_seconds: float = 0.0

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A leaf read from the root: one token list that only ever grew.

    ids[:prompt_length] is the prompt; afterwards mask is 1 where the policy
    sampled and 0 where the environment spoke. logprobs is 0.0 where mask is 0.
    """

    task_id: str
    path: Path
    prompt_length: int
    ids: tuple[int, ...]  # [T]
    mask: tuple[int, ...]  # [T]
    logprobs: tuple[float, ...]  # [T]
    reward: float
    status: Status
    turns: int

    def __post_init__(self):
        if not len(self.ids) == len(self.mask) == len(self.logprobs):
            raise ValueError("ids, mask and logprobs of a trajectory differ in length")
        if self.turns and not any(self.mask):
            raise ValueError(f"trajectory {self.path} of task {self.task_id} has turns but no sampled token")

    @property
    def response_length(self) -> int:
        """Sampled and observation tokens after the prompt."""
        return len(self.ids) - self.prompt_length


@dataclasses.dataclass(frozen=True)
class Tree:
    """All that was rolled out for one task in one step."""

    task: Task
    prompt_ids: tuple[int, ...]
    branches: tuple[Branch, ...]  # parents before children
    decisions: tuple[Decision, ...] = ()
    ledger: Ledger = Ledger()
    step: int = 0
    method: str = ""
    group: str = "keep_all"  # 'keep_all' | 'best_n': whether pruned leaves are trained on

    def __post_init__(self):
        if not self.prompt_ids and any(branch.status is not Status.ERROR for branch in self.branches):
            raise ValueError(f"task {self.task.id}: a tree needs a prompt unless its environment never started")
        if self.group not in ("keep_all", "best_n"):
            raise ValueError(f"group {self.group!r}: expected 'keep_all' or 'best_n'")
        seen: dict[Path, Branch] = {}
        for branch in self.branches:
            if branch.path in seen or not branch.path:
                raise ValueError(f"task {self.task.id}: branch path {branch.path} is empty or occurs twice")
            parent = branch.path[:-1]
            if parent and (parent not in seen or seen[parent].is_leaf):
                raise ValueError(f"task {self.task.id}: branch {branch.path} has no expanded parent before it")
            seen[branch.path] = branch

    def lineage(self, path: Path) -> tuple[Branch, ...]:
        """The branches on the root path of `path`, eldest first."""
        by_path = {b.path: b for b in self.branches}
        return tuple(by_path[path[:i]] for i in range(1, len(path) + 1))

    def leaves(self) -> Iterator[Branch]:
        """The leaves that belong to the group, in path order of creation."""
        for branch in self.branches:
            if not branch.is_leaf or branch.status is Status.ERROR or not self.lineage_turns(branch.path):
                continue
            if branch.status is Status.PRUNED and self.group == "best_n":
                continue
            yield branch

    def lineage_turns(self, path: Path) -> tuple[Turn, ...]:
        return tuple(turn for branch in self.lineage(path) for turn in branch.turns)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """The rollout group G(x) (PaTR eq. 6): every valid leaf read from the root."""
        return tuple(self._trajectory(leaf) for leaf in self.leaves())

    def _trajectory(self, leaf: Branch) -> Trajectory:
        ids, mask, logprobs = list(self.prompt_ids), [0] * len(self.prompt_ids), [0.0] * len(self.prompt_ids)
        turns = self.lineage_turns(leaf.path)
        for turn in turns:
            ids += turn.action_ids + turn.observation_ids
            mask += [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)
            logprobs += turn.logprobs + (0.0,) * len(turn.observation_ids)
        return Trajectory(
            task_id=self.task.id,
            path=leaf.path,
            prompt_length=len(self.prompt_ids),
            ids=tuple(ids),
            mask=tuple(mask),
            logprobs=tuple(logprobs),
            reward=float(leaf.reward),
            status=leaf.status,
            turns=len(turns),
        )
