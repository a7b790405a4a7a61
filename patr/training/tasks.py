"""Which tasks a step trains on, and whether they fit."""

import logging
from collections.abc import Callable, Sequence

from patr.envs.base import Env
from patr.rollouts.base import Limits
from patr.seeds import generator_for
from patr.text.chat import Chat
from patr.types import Task


def draw_tasks(tasks: Sequence[Task], seed: int, step: int, count: int) -> list[Task]:
    """Different tasks: those of `step` when shuffled passes over all of them are cut into steps.

    What is left of a pass when it does not fill a step is not used; there are `count` tasks or more.
    """
    epoch, place = divmod(step, len(tasks) // count)
    order = generator_for(seed, "tasks", epoch).permutation(len(tasks))
    return [tasks[i] for i in order[place * count : (place + 1) * count]]


def find_overlong(
    tasks: Sequence[Task], make_env: Callable[[], Env], chat: Chat, limits: Limits, overlong: str
) -> frozenset[str]:
    """Ids of the tasks whose prompt leaves no room for a turn.

    overlong: 'skip' warns of them; 'error' raises ValueError naming them. Raises too if no task would be left.
    """
    room = limits.max_context - limits.max_turn_tokens
    lengths = {task.id: len(chat.prompt(make_env().opening(task))) for task in tasks}
    found = [f"{name} ({length} tokens)" for name, length in lengths.items() if length > room]
    if found:
        shown = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
        message = f"{len(found)} of {len(lengths)} tasks have prompts of more than {room} tokens: {shown}"
        if overlong == "error" or len(found) == len(lengths):
            raise ValueError(f"{message}. Raise limits.max_context or skip them with overlong='skip'")
        logging.warning("%s. They are skipped", message)
    return frozenset(name for name, length in lengths.items() if length > room)
