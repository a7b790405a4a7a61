"""Writes data/frozen_lake_trees.jsonl, the trees the notebooks draw: PaTR with a scripted policy, no model needed.

`python notebooks/make_data.py` gives the same file, byte for byte.
"""

import asyncio
import tempfile
from pathlib import Path

from patr.envs.frozen_lake import FrozenLake
from patr.envs.frozen_lake_corpus import frozen_lake_corpus
from patr.envs.frozen_lake_maps import reference_tasks
from patr.envs.grid_paths import MOVES, expert_action
from patr.records import append_trees
from patr.rollouts.base import Limits
from patr.rollouts.engine import Engine
from patr.rollouts.patr import Patr
from patr.samplers.base import Sample, SampleRequest
from patr.scorers.grid import GridProgress
from patr.seeds import generator_for
from patr.text.chat import Chat
from patr.text.tokenizer import train_tokenizer

FILE = Path(__file__).with_name("data") / "frozen_lake_trees.jsonl"
TASKS = 6
NOISE = 0.4  # chance of a random move: enough for some branches to succeed and some to fail
LIMITS = Limits(max_turns=10, max_turn_tokens=16, max_response_tokens=1280, max_context=2048)


class NoisyExpert:
    """A sampler that reads the last grid of the conversation and takes a shortest path, or a random move."""

    max_context = LIMITS.max_context

    def __init__(self, chat: Chat):
        self._chat = chat

    async def sample(self, request: SampleRequest) -> Sample:
        rng = generator_for(request.seed, "noisy_expert")
        rows, row, column = _last_grid(self._chat.tokenizer.decode(request.prompt_ids))
        move = rng.choice(list(MOVES)) if rng.random() < NOISE else expert_action(rows, row, column)
        ids = self._chat.tokenizer.encode(f"```{move}```") + self._chat.stop_ids
        return Sample(
            ids=ids,
            logprobs=(0.0,) * len(ids),
            finish_reason="stop",
            weight_version=0,
            prefilled_tokens=len(request.prompt_ids),
            cached_tokens=0,
        )


def _last_grid(text: str) -> tuple[list[str], int, int]:
    """Map, row and column; the start is unknown by then and does not matter to a path."""
    message = text.rsplit("user\n", 1)[1]
    lines = [line.replace(" ", "") for line in message.splitlines() if set(line) <= set("P_OG ") and line.strip()]
    row = next(i for i, line in enumerate(lines) if "P" in line)
    return [line.translate(str.maketrans("P_O", "FFH")) for line in lines], row, lines[row].index("P")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        chat = Chat(train_tokenizer(frozen_lake_corpus(50, seed=0), 384, directory))
        engine = Engine(
            NoisyExpert(chat), FrozenLake, chat, GridProgress(), LIMITS, run_seed=0, step=0, clock=lambda: 0.0
        )
        tasks = [task for task in reference_tasks("test") if task.data["size"] in (5, 6, 7)][:TASKS]
        trees = asyncio.run(engine.run(tasks, Patr(score_every=2, prune_margin=0.3, max_leaves=10)))
    FILE.parent.mkdir(exist_ok=True)
    FILE.unlink(missing_ok=True)
    append_trees(FILE, trees)


if __name__ == "__main__":
    main()
