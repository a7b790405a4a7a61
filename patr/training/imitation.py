"""Warm start of a policy that starts from nothing: imitation of shortest paths, easy tasks first.

Real runs start from pretrained weights and have no use for this.
"""

import dataclasses
from collections.abc import Callable, Sequence

from patr.envs.base import Env
from patr.rollouts.base import Limits
from patr.seeds import generator_for
from patr.text.chat import Chat
from patr.types import Branch, Status, Task, Tree, Turn


@dataclasses.dataclass(frozen=True)
class Lessons:
    """Tasks from easy to hard, and when which are taught.

    The first lesson draws from the easiest FIRST of them; the share grows evenly until all are in after `ramp` of the
    lessons. ramp=0 teaches everything from the start. Raises ValueError for a ramp outside [0, 1].
    """

    tasks: Sequence[Task]
    ramp: float

    FIRST = 0.15

    def __post_init__(self):
        if not 0 <= self.ramp <= 1:
            raise ValueError(f"warm_start.ramp={self.ramp}: expected a share of the lessons, 0 to 1")

    def draw(self, seed: int, lesson: int, lessons: int, count: int) -> list[Task]:
        """`count` tasks, with replacement, for one of `lessons`."""
        passed = 1.0 if not self.ramp else min(1.0, lesson / (self.ramp * lessons))
        taught = max(1, round(len(self.tasks) * (self.FIRST + (1 - self.FIRST) * passed)))
        return [self.tasks[i] for i in generator_for(seed, "lesson", lesson).integers(taught, size=count)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demonstrator:
    """Walks an expert's way, but takes a random action with probability `noise`.

    The noise is what leaves something to learn: the imitator becomes as uncertain as its model.
    """

    make_env: Callable[[], Env]
    chat: Chat
    limits: Limits
    expert: Callable[[Env], str]  # the reply the expert would give now
    replies: Sequence[str]  # all replies a random action is drawn from
    noise: float

    def __post_init__(self):
        if not 0 <= self.noise <= 1:
            raise ValueError(f"warm_start.noise={self.noise}: expected a probability")

    def demonstrate(self, task: Task, seed: int, index: int) -> Tree:
        """One episode as a tree of one branch. seed and index address its randomness."""
        rng = generator_for(seed, "demonstration", index)
        env = self.make_env()
        ids = list(self.chat.prompt(env.reset(task)))
        prompt, turns, status = tuple(ids), [], Status.TURN_LIMIT
        for number in range(self.limits.max_turns):
            reply = self.replies[rng.integers(len(self.replies))] if rng.random() < self.noise else self.expert(env)
            action = self.chat.tokenizer.encode(reply) + self.chat.stop_ids
            result = env.step(reply, int(rng.integers(2**62)))
            observation = self.chat.observation(result.observation, "stop")
            room = self.limits.max_context - len(ids) - len(action) - len(observation)
            status = Status.DONE if result.done else Status.LENGTH if room < self.limits.max_turn_tokens else status
            last = status is not Status.TURN_LIMIT or number + 1 == self.limits.max_turns
            turns.append(
                Turn(action, (0.0,) * len(action), () if last else observation, result.action, result.reward, "stop")
            )
            if last:
                break
            ids += action + observation
        branch = Branch((0,), tuple(turns), status, env.outcome())
        env.close()
        return Tree(task, prompt, (branch,), method="demonstration")
