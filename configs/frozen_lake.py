"""FrozenLake. `--config=configs/frozen_lake.py:tiny`, or `:smoke`.

smoke         seconds: shows that everything runs, learns nothing
tiny          minutes on two cores: a Qwen of 0.4M parameters learns the reference tasks from nothing
qwen2.5-0.5b  the paper's smaller run, from Qwen2.5-0.5B-Instruct
qwen2.5-3b    the paper's larger run, from Qwen2.5-3B-Instruct

A pretrained policy is read from --config.model.path: a Hugging Face directory, or a name of its hub.

Numbers from the paper (PaTR) carry its section; the others say how they were chosen. A placeholder is None until it
is set, and what is of type object can be set to None.
"""

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder


def get_config(variant: str = "tiny") -> ConfigDict:
    if variant not in VARIANTS:
        raise ValueError(f"configs/frozen_lake.py:{variant} does not exist; there are {', '.join(VARIANTS)}")
    config = _base()
    VARIANTS[variant](config)
    config.lock()
    return config


def _base() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    # 'patr' | 'flat' (GRPO) | 'tree_random'; the knobs of each follow.
    config.rollout = "patr"

    config.patr = ConfigDict()
    config.patr.initial_branches = 4  # B0, section 5.1
    config.patr.score_every = 5  # K, section 5.1
    config.patr.children = 2  # M, section 5.1
    config.patr.top_k = 2  # Table 3, default row
    config.patr.prune_margin = 0.5  # alpha, section 5.1
    config.patr.repeat_limit = FieldReference(6, field_type=object)  # Theta, section 5.1; None turns the rule off
    config.patr.repeat_check = "turn"  # at a checkpoint of turn 5 six repeats cannot be seen
    config.patr.pruned_reward = "outcome"  # or 'zero'; the paper is silent
    config.patr.group = "keep_all"  # or 'best_n', section 6.2
    config.patr.max_leaves = placeholder(int)  # the paper sets no bound

    config.flat = ConfigDict()
    config.flat.group_size = 8  # section 5.1

    config.tree_random = ConfigDict()
    config.tree_random.initial_branches = 4  # these and the rest as in PaTR
    config.tree_random.score_every = 5
    config.tree_random.children = 2
    config.tree_random.top_k = 2
    config.tree_random.repeat_limit = FieldReference(6, field_type=object)
    config.tree_random.repeat_check = "turn"
    config.tree_random.pruned_reward = "outcome"
    config.tree_random.group = "keep_all"
    config.tree_random.max_leaves = placeholder(int)

    config.env = ConfigDict()
    config.env.tasks = "reference"  # 10,000 training and 100 test tasks; or 'four_by_four'
    config.env.is_slippery = False  # as the reference runs it
    config.env.max_actions_per_turn = 1
    config.env.hints = ()  # 'position', 'surroundings': not the benchmark any more

    config.scorer = ConfigDict()
    config.scorer.name = "grid"  # appendix A, which gives no weights
    # Reward comes with the goal alone, so no active branch has any: weight on it would only shrink all scores
    # against prune_margin, until nothing is ever pruned by it.
    config.scorer.reward_weight = 0.0
    config.scorer.distance_weight = 1.0

    config.limits = ConfigDict()
    config.limits.max_turns = 10  # section 5.1
    config.limits.max_turn_tokens = 8  # a fenced move is four tokens
    config.limits.max_response_tokens = 1280  # ten turns on the largest map
    config.limits.max_context = 1408
    config.limits.temperature = 1.0  # appendix A

    config.overlong = "error"  # or 'skip': tasks whose prompt leaves no room for a turn

    config.engine = ConfigDict()
    config.engine.env_retries = 2
    config.engine.scorer_retries = 2
    config.engine.env_threads = 0  # FrozenLake only computes; environments that block need threads
    config.engine.env_timeout = placeholder(float)  # seconds a call may take, in a thread

    config.model = ConfigDict()
    config.model.path = ""  # a Hugging Face directory or hub name; empty: random weights of the preset's size
    config.model.preset = "tiny"
    config.model.dtype = "float32"
    config.model.remat = "none"  # 'products' | 'block': what training computes again instead of keeping it

    config.tokenizer = ConfigDict()
    config.tokenizer.path = ""  # empty: the checkpoint's; without a checkpoint, trained on the environment's own text
    config.tokenizer.vocab_size = 448  # merging stops near 420, where every word of the environment is one token

    config.sampler = "jax"
    config.jax_sampler = ConfigDict()
    config.jax_sampler.blocks = 4096
    config.jax_sampler.block_size = 32
    config.jax_sampler.prefills = ((16, 48), (64, 256), (128, 640))  # blocks, attention tiles
    config.jax_sampler.batches = (16, 64)
    config.jax_sampler.contexts = (384, 768, 1408)
    config.jax_sampler.max_new_tokens = 8

    config.packing = ConfigDict()
    config.packing.row_length = 32
    # (rows, attention tiles, trained tokens) of the packs, cheapest first. Small ones stay in a core's cache.
    config.packing.sizes = ((48, 96, 256), (48, 200, 256), (128, 512, 768), (352, 2560, 1024))

    config.objective = ConfigDict()
    config.objective.clip_low = 0.28  # appendix A
    config.objective.clip_high = 0.28
    config.objective.dual_clip = placeholder(float)  # the paper has none
    config.objective.kl_coef = 0.001  # appendix A
    config.objective.entropy_coef = 0.0
    config.objective.reduction = "seq_mean_token_mean"  # eq. 2

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 6e-4  # a policy this small takes large steps; the paper's 1e-6 is for 0.5B
    config.optimizer.warmup_steps = 5
    config.optimizer.schedule = "linear"
    config.optimizer.b1 = 0.9  # these three are Adam's own
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.max_grad_norm = 1.0

    config.training = ConfigDict()
    config.training.steps = 70
    config.training.tasks_per_step = 24
    config.training.minibatches = 1  # updates a step
    config.training.evaluate_every = 14
    config.training.checkpoint_every = 14
    config.training.keep_checkpoints = 2

    # The tiny policy starts from nothing; it first imitates noisy shortest paths.
    config.warm_start = ConfigDict()
    config.warm_start.steps = 700
    config.warm_start.episodes_per_step = 16
    config.warm_start.noise = 0.5  # of the moves are random: a hesitant imitator, for RL to make decided
    config.warm_start.ramp = 0.7  # small maps first, all of them after this share of the steps
    config.warm_start.optimizer = ConfigDict()
    config.warm_start.optimizer.learning_rate = 2e-3
    config.warm_start.optimizer.warmup_steps = 20
    config.warm_start.optimizer.schedule = "linear"

    config.logging = ConfigDict()
    config.logging.tensorboard = True
    config.logging.wandb_project = ""  # empty: no Weights & Biases

    config.evaluation = ConfigDict()
    config.evaluation.tasks = 100
    config.evaluation.samples = 4  # section 5.1
    config.evaluation.temperature = 1.0
    return config


def _tiny(config: ConfigDict) -> None:
    # The imitator is no reference worth staying close to, and without a KL term groups of equal rewards need no update.
    config.objective.kl_coef = 0.0


def _smoke(config: ConfigDict) -> None:
    _tiny(config)
    config.objective.entropy_coef = 0.01  # something to update on: no episode succeeds yet
    config.limits.max_turns = 4
    config.limits.max_response_tokens = 512
    config.limits.max_context = 704
    config.patr.score_every = 2
    config.tree_random.score_every = 2
    config.training.steps = 4
    config.training.tasks_per_step = 4
    config.training.evaluate_every = 2
    config.training.checkpoint_every = 2
    config.warm_start.steps = 4
    config.warm_start.episodes_per_step = 4
    config.evaluation.tasks = 6
    config.evaluation.samples = 2
    config.jax_sampler.blocks = 1024
    config.jax_sampler.prefills = ((64, 256),)
    config.jax_sampler.batches = (24,)
    config.jax_sampler.contexts = (704,)
    config.packing.sizes = ((64, 160, 256), (192, 640, 512))


def _qwen(config: ConfigDict, hub_name: str) -> None:
    config.model.path = hub_name  # section 5.1
    config.model.preset = ""
    config.model.dtype = "bfloat16"  # of compute; parameters stay float32
    config.model.remat = "block"
    config.warm_start.steps = 0  # pretrained policies need none
    config.optimizer.learning_rate = 1e-6  # appendix A
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 0
    config.training.steps = 400  # appendix A
    config.training.tasks_per_step = 64  # appendix A
    config.training.evaluate_every = 20
    config.training.checkpoint_every = 20
    config.limits.max_response_tokens = 10240  # section 5.1
    config.limits.max_turn_tokens = 1024  # a tenth of it: ten turns never run out
    config.limits.max_context = 11264  # and the prompt
    config.jax_sampler.max_new_tokens = 1024
    config.jax_sampler.blocks = 24576
    config.jax_sampler.prefills = ((256, 512), (1024, 4096))
    config.jax_sampler.batches = (64, 256)
    config.jax_sampler.contexts = (1024, 4096, 11264)
    config.packing.row_length = 128
    config.packing.sizes = ((64, 256, 4096), (128, 1024, 8192), (640, 12800, 65536))


def _qwen_half(config: ConfigDict) -> None:
    _qwen(config, "Qwen/Qwen2.5-0.5B-Instruct")


def _qwen_three(config: ConfigDict) -> None:
    _qwen(config, "Qwen/Qwen2.5-3B-Instruct")


VARIANTS = {"smoke": _smoke, "tiny": _tiny, "qwen2.5-0.5b": _qwen_half, "qwen2.5-3b": _qwen_three}
