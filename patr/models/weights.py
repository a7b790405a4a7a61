"""Hugging Face checkpoint directories of Qwen2, Qwen2.5 and Qwen3: read straight onto their shards, and written.

Reading holds one tensor in host memory at a time, and of it only the parts that this process is to keep. Writing gives
files that transformers and vLLM load.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from patr.models.config import ModelConfig
from patr.models.qwen import Qwen

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_OUTER = {
    ("embedding",): "model.embed_tokens.weight",
    ("norm", "scale"): "model.norm.weight",
    ("head",): "lm_head.weight",
}
_INNER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}

Params = dict[str, Any]


def find_checkpoint(name: str | Path) -> Path:
    """The directory of a checkpoint: itself, or where the Hugging Face hub's files of that name lie once downloaded.

    Raises FileNotFoundError for what is neither a directory with a config.json nor a name the hub can be asked for.
    """
    directory = Path(name)
    if (directory / "config.json").is_file():
        return directory
    if directory.exists() or str(name).count("/") != 1:
        raise FileNotFoundError(f"{name}: expected a directory with a config.json, or a hub name like Qwen/Qwen3-4B")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(str(name), allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except Exception as error:  # the hub's errors have no common base
        raise FileNotFoundError(f"{name} is no directory here, and the hub did not give it: {error}") from error


def read_config(directory: Path, **compute: str) -> ModelConfig:
    """The architecture a directory describes; `compute` is what it does not say: dtype and remat of `ModelConfig`.

    Raises ValueError for anything but a dense Qwen2 or Qwen3 with full attention and plain rotary positions.
    """
    import transformers  # takes seconds, and most runs have no use for it

    try:
        found = transformers.AutoConfig.from_pretrained(directory)
    except Exception as error:  # what transformers raises here has no common base
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
    if found.model_type not in ("qwen2", "qwen3"):
        raise ValueError(f"{directory}: architecture {found.model_type!r}; supported are 'qwen2' and 'qwen3'")
    if "sliding_attention" in found.layer_types:
        raise ValueError(
            f"{directory}: use_sliding_window={found.use_sliding_window} is not supported: set it to false"
        )
    if found.rope_parameters["rope_type"] != "default":
        raise ValueError(
            f"{directory}: rope_parameters={found.rope_parameters}: RoPE scaling is not supported; remove it to use "
            "the context the model was trained with"
        )
    if found.hidden_act != "silu":
        raise ValueError(f"{directory}: hidden_act={found.hidden_act!r}: expected 'silu'")
    qwen3 = found.model_type == "qwen3"
    if qwen3 and found.attention_bias:
        raise ValueError(f"{directory}: attention_bias=true is not supported for qwen3")
    return ModelConfig(
        vocab_size=found.vocab_size,
        embed_dim=found.hidden_size,
        mlp_dim=found.intermediate_size,
        num_layers=found.num_hidden_layers,
        num_heads=found.num_attention_heads,
        num_kv_heads=found.num_key_value_heads,
        head_dim=getattr(found, "head_dim", None) or found.hidden_size // found.num_attention_heads,
        qkv_bias=not qwen3,
        qk_norm=qwen3,
        tie_embeddings=found.tie_word_embeddings,
        rope_theta=float(found.rope_parameters["rope_theta"]),
        norm_eps=found.rms_norm_eps,
        max_context=found.max_position_embeddings,
        **compute,
    )


def load_policy(
    directory: Path, config: ModelConfig, sharding: Callable[[tuple], jax.sharding.Sharding] | None = None
) -> Qwen:
    """The policy of a checkpoint directory, with float32 parameters whatever the files hold.

    config: what `read_config` found there.
    sharding: from a parameter's path, ('blocks', 0, 'attention', 'q', 'kernel') for one, to where it lies; the first
        device if not given.
    Raises ValueError naming a tensor that is missing, surplus or of another shape.
    """
    graph, abstract = nnx.split(nnx.eval_shape(lambda: Qwen(config, rngs=nnx.Rngs(0))))
    shapes = nnx.to_pure_dict(abstract)
    with _tensors(directory) as tensors:
        _check_names(directory, shapes, tensors)
        params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _read(directory, tensors, _keys(path), leaf.shape, sharding), shapes
        )
    return nnx.merge(graph, params)


def tensor_name(path: tuple) -> tuple[str, bool]:
    """The name of a parameter in Hugging Face's files, and whether it is transposed there."""
    if path in _OUTER:
        return _OUTER[path], False
    _, layer, *module, kind = path
    suffix = "bias" if kind == "bias" else "weight"
    return f"model.layers.{layer}.{_INNER['.'.join(module)]}.{suffix}", kind == "kernel"


def save_checkpoint(
    params: Params,
    config: ModelConfig,
    directory: Path,
    dtype: str = "bfloat16",
    shard_bytes: int = 4 << 30,
    special_ids: Mapping[str, int] | None = None,
) -> None:
    """Write parameters as a Hugging Face directory: config.json and safetensors files of at most `shard_bytes`.

    dtype: 'bfloat16' or 'float32', of the tensors. A tensor larger than `shard_bytes` gets a file of its own.
    special_ids: for config.json, such as eos_token_id.
    """
    directory.mkdir(parents=True, exist_ok=True)
    leaves = [(*tensor_name(_keys(path)), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    itemsize = jnp.dtype(dtype).itemsize
    shards: list[list] = [[]]
    filled = 0
    for leaf in leaves:
        size = leaf[2].size * itemsize
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(leaf)
        filled += size
    many = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    names = [SINGLE] if len(shards) == 1 else many
    for file, shard in zip(names, shards, strict=True):
        tensors = {}
        for name, transposed, leaf in shard:
            array = np.asarray(leaf).astype(jnp.dtype(dtype))
            tensors[name] = np.ascontiguousarray(array.T if transposed else array)
        save_file(tensors, directory / file, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(leaf.size for _, _, leaf in leaves) * itemsize},
            "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name, _, _ in shard},
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    _to_transformers(config, dtype=dtype, **(special_ids or {})).save_pretrained(directory)


def _to_transformers(config: ModelConfig, **fields) -> Any:
    import transformers

    family = transformers.Qwen3Config if config.qk_norm else transformers.Qwen2Config
    return family(
        vocab_size=config.vocab_size,
        hidden_size=config.embed_dim,
        intermediate_size=config.mlp_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        tie_word_embeddings=config.tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_context,
        architectures=["Qwen3ForCausalLM" if config.qk_norm else "Qwen2ForCausalLM"],
        **fields,
    )


@contextlib.contextmanager
def _tensors(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Every tensor's name in the directory's safetensors files, with the open file that holds it."""
    if (directory / INDEX).is_file():
        files = sorted(set(json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = [SINGLE]
    with contextlib.ExitStack() as stack:
        tensors = {}
        for file in files:
            if not (directory / file).is_file():
                raise FileNotFoundError(f"{directory / file} does not exist: weights are read from safetensors files")
            opened = stack.enter_context(safe_open(directory / file, framework="numpy"))
            tensors |= dict.fromkeys(opened.keys(), opened)
        yield tensors


def _check_names(directory: Path, shapes: Params, tensors: Mapping[str, Any]) -> None:
    wanted = {tensor_name(_keys(path))[0] for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
    if missing := sorted(wanted - set(tensors)):
        raise ValueError(f"{directory}: missing tensors: {_some(missing)}")
    surplus = set(tensors) - wanted
    head, embedding = _OUTER["head",], _OUTER["embedding",]
    if head in surplus:  # a tied head may be written out, if it is the embedding
        same = np.array_equal(tensors[head].get_tensor(head), tensors[embedding].get_tensor(embedding))
        surplus -= {head} if same else set()
    if surplus:
        raise ValueError(f"{directory}: tensors that this architecture does not have: {_some(sorted(surplus))}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _read(directory, tensors, path, shape, sharding) -> jax.Array:
    name, transposed = tensor_name(path)
    stored = tensors[name].get_slice(name)
    expected = shape[::-1] if transposed else shape
    if tuple(stored.get_shape()) != expected:
        raise ValueError(f"{directory}: {name} is {stored.get_shape()}, and config.json makes it {list(expected)}")

    def part(index: tuple[slice, ...]) -> np.ndarray:
        array = np.asarray(stored[index[::-1] if transposed else index]).astype(np.float32)
        return array.T if transposed else array

    where = sharding(path) if sharding else jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.make_array_from_callback(shape, where, part)


def _keys(path: tuple) -> tuple:
    return tuple(entry.key for entry in path)
