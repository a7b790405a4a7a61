"""FrozenLake's own text, to train a small tokenizer on."""

from patr.envs.frozen_lake import FrozenLake
from patr.envs.frozen_lake_maps import reference_tasks
from patr.envs.grid_paths import MOVES
from patr.seeds import generator_for


def frozen_lake_corpus(count: int, seed: int, **options) -> list[str]:
    """Every message of `count` random walks over training tasks, as "role\\ncontent".

    options: those of `FrozenLake`. One reply in eight holds no valid move.
    """
    tasks = reference_tasks("train")
    texts = []
    for episode in range(count):
        rng = generator_for(seed, "frozen_lake_corpus", episode)
        env = FrozenLake(**options)
        texts += [f"{m.role}\n{m.content}" for m in env.reset(tasks[rng.integers(len(tasks))])]
        for _ in range(env.max_turns):
            reply = "```no```" if rng.random() < 1 / 8 else f"```{rng.choice(list(MOVES))}```"
            result = env.step(reply, int(rng.integers(2**63)))
            texts += [f"assistant\n{reply}", f"user\n{result.observation}"]
            if result.done:
                break
    return texts
