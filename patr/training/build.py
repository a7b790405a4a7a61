"""From a config to objects: the only place that knows both."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from patr.batching.buckets import Buckets, Size
from patr.batching.tree import trajectory_size
from patr.envs.base import Env
from patr.envs.frozen_lake import FrozenLake
from patr.envs.frozen_lake_corpus import frozen_lake_corpus
from patr.envs.frozen_lake_maps import four_by_four_tasks, reference_tasks
from patr.envs.grid_paths import MOVES, expert_action
from patr.models.config import PRESETS, ModelConfig, preset
from patr.models.qwen import Qwen
from patr.models.weights import find_checkpoint, load_policy, read_config
from patr.objectives.policy_losses import Objective
from patr.rollouts import ROLLOUTS
from patr.rollouts.base import Limits
from patr.rollouts.engine import Controller, Engine
from patr.samplers.jax_sampler import JaxSampler, SamplerShapes
from patr.scorers.base import Scorer
from patr.scorers.grid import GridProgress
from patr.seeds import seed_for
from patr.text.chat import Chat
from patr.text.tokenizer import Tokenizer, train_tokenizer
from patr.training import metrics_log
from patr.training.imitation import Demonstrator, Lessons
from patr.training.optimizer import OptimizerConfig
from patr.training.tasks import draw_tasks, find_overlong
from patr.types import Task

SCORERS = {"grid": GridProgress}
TASKS = {
    "reference": reference_tasks,
    # 4x4 maps of the second paper; training and test seeds never meet.
    "four_by_four": lambda split: four_by_four_tasks(seed={"train": 0, "test": 1}[split], count=1000),
}


AT_LEAST = {
    "training": {
        "steps": 0, "tasks_per_step": 1, "minibatches": 1, "evaluate_every": 1, "checkpoint_every": 1,
        "keep_checkpoints": 1,
    },
    "warm_start": {"steps": 0, "episodes_per_step": 1},
    "evaluation": {"tasks": 1, "samples": 1},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything a run is made of. Building it checks the whole config before anything starts."""

    config: ConfigDict
    controller: Controller
    make_env: Callable[[], Env]
    scorer: Scorer
    limits: Limits
    evaluation_limits: Limits
    objective: Objective
    optimizer: OptimizerConfig
    warm_optimizer: OptimizerConfig
    shapes: SamplerShapes
    buckets: Buckets
    tasks: list[Task]
    lessons: Lessons
    evaluation_tasks: list[Task]


def build(config: ConfigDict) -> Parts:
    """Raises ValueError naming key, value and what is allowed."""
    training, evaluation = config.training, config.evaluation
    _choice("rollout", config.rollout, ROLLOUTS)
    _choice("overlong", config.overlong, ("error", "skip"))
    _choice("sampler", config.sampler, ("jax",))
    _choice("env.tasks", config.env.tasks, TASKS)
    _choice("scorer.name", config.scorer.name, SCORERS)
    for section, numbers in AT_LEAST.items():
        for key, least in numbers.items():
            if config[section][key] < least:
                raise ValueError(f"{section}.{key}={config[section][key]}: must be at least {least}")
    if training.tasks_per_step % training.minibatches:
        raise ValueError(
            f"training.minibatches={training.minibatches}: must divide training.tasks_per_step="
            f"{training.tasks_per_step}"
        )
    if not config.limits.temperature > 0:
        raise ValueError(f"limits.temperature={config.limits.temperature}: training needs sampling, so above 0")
    metrics_log.check(config.logging)
    _check_model(config)
    limits = Limits(**config.limits)
    env = {key: value for key, value in config.env.items() if key != "tasks"}
    make_env = functools.partial(FrozenLake, max_turns=limits.max_turns, **env)
    make_env()
    controller = ROLLOUTS[config.rollout](**config[config.rollout])
    controller.check(limits)
    tasks, evaluation_tasks = TASKS[config.env.tasks]("train"), TASKS[config.env.tasks]("test")
    if training.tasks_per_step > len(tasks):
        raise ValueError(f"training.tasks_per_step={training.tasks_per_step}: there are {len(tasks)} tasks")
    with _naming("evaluation"):
        evaluation_limits = dataclasses.replace(limits, temperature=evaluation.temperature)
    with _naming("optimizer"):
        optimizer = OptimizerConfig(**config.optimizer)
    with _naming("warm_start.optimizer"):
        warm_optimizer = OptimizerConfig(**config.warm_start.optimizer)
    parts = Parts(
        config=config,
        controller=controller,
        make_env=make_env,
        scorer=SCORERS[config.scorer.name](**{key: value for key, value in config.scorer.items() if key != "name"}),
        limits=limits,
        evaluation_limits=evaluation_limits,
        objective=Objective(**config.objective),
        optimizer=optimizer,
        warm_optimizer=warm_optimizer,
        shapes=SamplerShapes(**config.jax_sampler),
        buckets=Buckets(config.packing.row_length, tuple(Size(*size) for size in config.packing.sizes)),
        tasks=tasks,
        lessons=Lessons(sorted(tasks, key=lambda task: task.data["size"]), config.warm_start.ramp),
        evaluation_tasks=evaluation_tasks[: evaluation.tasks],
    )
    _check_sizes(parts)
    # Made without sampler and chat, which take time to build: only their settings are looked at.
    with _naming("engine"):
        make_engine(parts, parts.shapes, None, 0, limits)
    make_demonstrator(parts, None)
    return parts


def make_chat(config: ConfigDict, workdir: Path) -> Chat:
    """The tokenizer named in the config, or that of its checkpoint; else one trained on the environment's own text.

    The last is kept in the workdir.
    """
    if config.tokenizer.path:
        return Chat(Tokenizer.load(config.tokenizer.path))
    if config.model.path:
        return Chat(Tokenizer.load(find_checkpoint(config.model.path)))
    directory = workdir / "tokenizer"
    if not (directory / "tokenizer_config.json").is_file():
        env = {key: value for key, value in config.env.items() if key != "tasks"}
        train_tokenizer(frozen_lake_corpus(200, seed=0, **env), config.tokenizer.vocab_size, directory)
    return Chat(Tokenizer.load(directory))


def without_overlong(parts: Parts, chat: Chat) -> Parts:
    """Only the tasks whose prompt leaves room for a turn. Raises ValueError where that is not allowed.

    Looks at the tasks this run will meet; skipping looks at all, as it changes which are drawn.
    """
    config = parts.config
    met = parts.tasks
    if config.overlong == "error":
        count = min(len(met), config.training.steps * config.training.tasks_per_step)
        met = draw_tasks(met, config.seed, 0, count) if count else []
    found = [
        find_overlong(tasks, parts.make_env, chat, parts.limits, config.overlong)
        for tasks in (met, parts.evaluation_tasks)
        if tasks
    ]
    left_out = frozenset().union(*found)

    def fitting(tasks: Sequence[Task]) -> list[Task]:
        return [task for task in tasks if task.id not in left_out]

    return dataclasses.replace(
        parts,
        tasks=fitting(parts.tasks),
        lessons=dataclasses.replace(parts.lessons, tasks=fitting(parts.lessons.tasks)),
        evaluation_tasks=fitting(parts.evaluation_tasks),
    )


def make_policy(config: ConfigDict, chat: Chat) -> Qwen:
    """The policy of config.model.path, or one of the preset's size with weights drawn from the run's seed."""
    model_config = _model_config(config)
    if not config.model.path:
        model_config = dataclasses.replace(model_config, vocab_size=chat.tokenizer.vocab_size)
        return Qwen(model_config, rngs=nnx.Rngs(seed_for(config.seed, "parameters") & 0x7FFFFFFF))
    if chat.tokenizer.vocab_size > model_config.vocab_size:
        raise ValueError(
            f"the tokenizer has {chat.tokenizer.vocab_size} tokens, and the policy of "
            f"model.path={config.model.path} only {model_config.vocab_size}: they do not belong together"
        )
    return load_policy(find_checkpoint(config.model.path), model_config)


def _model_config(config: ConfigDict) -> ModelConfig:
    compute = dict(dtype=config.model.dtype, remat=config.model.remat)
    if config.model.path:
        return read_config(find_checkpoint(config.model.path), **compute)
    _choice("model.preset", config.model.preset, PRESETS)
    return preset(config.model.preset, **compute)


def _check_model(config: ConfigDict) -> None:
    longest, model = config.limits.max_context, _model_config(config)
    if longest > model.max_context:
        raise ValueError(f"limits.max_context={longest}: the policy holds {model.max_context} tokens")
    if config.tokenizer.path:
        Tokenizer.load(config.tokenizer.path)


def _check_sizes(parts: Parts) -> None:
    """Raise ValueError if the sampler or the packs cannot hold a trajectory that the limits allow."""
    limits, shapes, buckets = parts.limits, parts.shapes, parts.buckets
    if limits.max_context > shapes.max_context:
        raise ValueError(
            f"limits.max_context={limits.max_context}: the sampler holds the last of jax_sampler.contexts="
            f"{shapes.contexts} tokens; add a larger one or lower the limit"
        )
    if limits.max_turn_tokens > shapes.max_new_tokens:
        raise ValueError(
            f"limits.max_turn_tokens={limits.max_turn_tokens}: the sampler ends turns at jax_sampler.max_new_tokens="
            f"{shapes.max_new_tokens}; raise that or lower the limit"
        )
    # One trajectory only: how many of a tree are that long at once is not known before.
    sampled = min(limits.max_turns * limits.max_turn_tokens, limits.max_response_tokens)
    needed = trajectory_size(limits.max_context, sampled, buckets.row_length)
    if buckets.smallest(needed) is None:
        raise ValueError(
            f"packing.sizes={parts.config.packing.sizes}: a trajectory of limits.max_context={limits.max_context} "
            f"tokens needs {needed} in rows of packing.row_length={buckets.row_length}; add a larger size or lower "
            "the limits"
        )


def make_engine(parts: Parts, sampler: JaxSampler, chat: Chat, step: int, limits: Limits) -> Engine:
    return Engine(
        sampler, parts.make_env, chat, parts.scorer, limits, parts.config.seed, step, **parts.config.engine
    )  # fmt: skip


def make_demonstrator(parts: Parts, chat: Chat) -> Demonstrator:
    def expert(env: FrozenLake) -> str:
        state = env.state()
        return f"```{expert_action(state['map'], state['row'], state['column'])}```"

    return Demonstrator(
        make_env=parts.make_env,
        chat=chat,
        limits=parts.limits,
        expert=expert,
        replies=tuple(f"```{move}```" for move in MOVES),
        noise=parts.config.warm_start.noise,
    )


@contextlib.contextmanager
def _naming(section: str) -> Iterator[None]:
    """Errors of what is made from a section of the config name it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{section}: {error}") from error


def _choice(key: str, value: Any, allowed) -> None:
    if value not in allowed:
        raise ValueError(f"{key}={value!r}: allowed are {', '.join(map(repr, allowed))}")
