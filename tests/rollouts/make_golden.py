"""The golden trees: scripted policies whose whole trees are known.

`python tests/rollouts/make_golden.py` rewrites them; check by hand against Algorithm 1 what changed.

In every case the score is the share of the corridor walked, and a turn is one letter unless the script says otherwise.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from patr.records import tree_to_json
from patr.rollouts import Flat, Patr, TreeRandom
from patr.rollouts.base import Limits
from patr.rollouts.engine import Controller, Engine
from patr.testing import ScriptedSampler, ScriptedScorer, ToyChat, ToyEnv, script
from patr.types import Task, Tree

GOLDEN = Path(__file__).parents[1] / "golden"


def main() -> None:
    for name, case in CASES.items():
        (GOLDEN / f"{name}.json").write_text(as_text(tree_to_json(case.tree())), encoding="utf-8")


def as_text(tree: Mapping[str, Any]) -> str:
    """JSON with one turn and one decision a line, so that a difference is seen in one line."""
    return _lines(tree) + "\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(_lines, value)) + "]"
    if isinstance(value, dict) and {"branches", "turns"} & value.keys():
        return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def walked(goal: int) -> Callable:
    """The score of a history: the share of the corridor walked."""
    return lambda history: history[-1].info["cell"] / goal


@dataclasses.dataclass(frozen=True)
class Case:
    """One scripted rollout."""

    controller: Controller
    goal: int
    turns: Mapping | Callable  # a script by branch path, or a function of (prompt_ids, seed)
    limits: Mapping[str, int]
    score: Callable | None = None
    before_step: Callable = lambda task, steps, text: None
    slip: float = 0.0

    def tree(self, passes: Callable[[int], int] = lambda seed: 0) -> Tree:
        chat, seeds = ToyChat(), dict(run_seed=7, step=3)
        answer = self.turns if callable(self.turns) else script(self.turns, **seeds, task_id="walk")
        limits = dict(max_turns=10, max_turn_tokens=4, max_response_tokens=100, max_context=200) | self.limits
        engine = Engine(
            ScriptedSampler(answer, chat, passes=passes),
            lambda: ToyEnv(self.before_step),
            chat,
            ScriptedScorer(self.score or walked(self.goal)),
            Limits(**limits),
            **seeds,
            env_retries=1,
            scorer_retries=0,
            clock=lambda: 0.0,
        )
        [tree] = asyncio.run(engine.run([Task("walk", {"goal": self.goal, "slip": self.slip})], self.controller))
        return tree


def _breaks_on_x(task, steps, text):
    if text == "X":
        raise ConnectionError("the corridor collapsed")


def _down_at_first_checkpoint(history):
    if len(history) == 2:
        raise TimeoutError("no answer from the scorer")
    return walked(6)(history)


CASES = {
    # Turn 2: scores 1/5, 1/5, 0; the two best are expanded. Turn 4: 2/5 for (2), 3/5 for (0, 0), and 2/5, 2/5, 1/5:
    # second place is a tie of (2), (0, 1) and (1, 0), and goes to (2), the oldest.
    "expand_twice": Case(
        Patr(initial_branches=3, score_every=2),
        goal=5,
        limits=dict(max_turns=6),
        turns={
            (0,): "RW",
            (1,): "WR",
            (2,): "WWRR",
            (0, 0): "RR",
            (0, 1): "RWWW",
            (1, 0): "WRRR",
            (1, 1): "WWWL",
            (0, 0, 0): "RR",
            (0, 0, 1): "RL",
            (2, 0): "RR",
            (2, 1): "WW",
        },
    ),
    # Turn 2: scores 1/2, 1/2, 1/4, 0 have the median 3/8; only (3) is below 3/8 - 1/4. Without the expanded (0) the
    # median would be 1/4, and (3) would live.
    "prune_margin": Case(
        Patr(initial_branches=4, score_every=2, top_k=1, prune_margin=0.25),
        goal=4,
        limits=dict(max_turns=4),
        turns={(0,): "RR", (1,): "RRRR", (2,): "RWRW", (3,): "RL", (0, 0): "RW", (0, 1): "LL"},
    ),
    # (0) waits three times and stops at turn 3; (2, 0) stops at turn 6, two of its three steps right being (2)'s.
    "repeat_each_turn": Case(
        Patr(initial_branches=3, top_k=1, repeat_limit=3),
        goal=9,
        limits=dict(max_turns=8),
        turns={(0,): "WWW", (1,): "RWWLWRWL", (2,): "RLLRR", (2, 0): "R", (2, 1): "WRR"},
    ),
    # Asked at turn 5 only: (0) stops there; (2) repeats too but is expanded; (2, 0) repeats on to the turn limit.
    "repeat_at_checkpoint": Case(
        Patr(initial_branches=3, top_k=1, repeat_limit=3, repeat_check="checkpoint"),
        goal=9,
        limits=dict(max_turns=8),
        turns={(0,): "RWWWW", (1,): "RWWLWRWL", (2,): "RLRRR", (2, 0): "RRR", (2, 1): "WRR"},
    ),
    # (1) breaks in its second turn, and again after a fresh reset and a replayed first: an error, not a reward of 0.
    "environment_error": Case(
        Patr(initial_branches=3, score_every=2, top_k=1),
        goal=4,
        limits=dict(max_turns=4),
        turns={(0,): "RR", (1,): "RX", (2,): "RWLR", (0, 0): "RR", (0, 1): "WR"},
        before_step=_breaks_on_x,
    ),
    # No scores at turn 2, so that all survive; at turn 4 scores 3/6 and 1/6, and (1) is expanded.
    "scorer_failure": Case(
        Patr(initial_branches=2, score_every=2, top_k=1),
        goal=6,
        limits=dict(max_turns=6),
        turns={(0,): "RRLLRW", (1,): "WRRR", (1, 0): "RR", (1, 1): "WW"},
        score=_down_at_first_checkpoint,
    ),
    # A turn costs 3 tokens, or 6 if it is cut after its 4th. (0) and (1) tie at turn 2 and (0) is expanded; with 10
    # tokens its children have one left for turn 4, and (1) for turn 3.
    "length": Case(
        Patr(initial_branches=2, score_every=2, top_k=1),
        goal=5,
        limits=dict(max_response_tokens=10),
        turns={(0,): "RR", (1,): ["R     ", "R", "R"], (0, 0): "RR", (0, 1): "WL"},
    ),
    "tree_random": Case(
        TreeRandom(initial_branches=3, score_every=2, top_k=1),
        goal=6,
        limits=dict(max_turns=6),
        turns=lambda prompt_ids, seed: "RWL"[seed % 3],
    ),
    # The second of four waits out its turns; the slippery corridor is a function of each branch's address.
    "flat": Case(
        Flat(group_size=4),
        goal=3,
        limits=dict(max_turns=5),
        turns={(0,): "RRRRR", (1,): "WWWWW", (2,): "RRRRR", (3,): "RLRRR"},
        slip=0.3,
    ),
}


if __name__ == "__main__":
    main()
