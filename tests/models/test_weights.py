"""Hugging Face checkpoints: read, written, equal to transformers, and named where they do not fit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from patr.models.attention import NOWHERE, CausalRows, TreeRows
from patr.models.cache import CachedRows, KVCache
from patr.models.qwen import split
from patr.models.weights import find_checkpoint, load_policy, read_config, save_checkpoint

SIZES = dict(
    vocab_size=67,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.3,  # the usual 0.02 would make all logits nearly equal
)
CASES = {
    "qwen2-tied": (transformers.Qwen2Config, dict(tie_word_embeddings=True)),
    "qwen2-untied-one-key-head": (transformers.Qwen2Config, dict(tie_word_embeddings=False, num_key_value_heads=1)),
    "qwen2-rope-theta": (transformers.Qwen2Config, dict(rope_parameters={"rope_type": "default", "rope_theta": 500.0})),
    "qwen3-tied-wide-heads": (transformers.Qwen3Config, dict(tie_word_embeddings=True, head_dim=16)),
    "qwen3-untied": (transformers.Qwen3Config, dict(tie_word_embeddings=False, head_dim=8, num_key_value_heads=4)),
}


def loaded(directory, dtype, sharding=None):
    return load_policy(directory, read_config(directory, dtype=dtype), sharding)


@pytest.fixture(scope="module", params=CASES)
def reference(request, tmp_path_factory):
    """A random model of transformers and the directory it was saved to."""
    directory = tmp_path_factory.mktemp(request.param)
    return make(request.param, directory), directory


def make(case, directory, **save):
    family, changes = CASES[case]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(family(**SIZES | changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # set to 0 and 1, which would hide an error
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory, **save)
    return model


def expected(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def ids_of(seed, length):
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], length).tolist()


def whole(policy, ids):
    positions = jnp.arange(len(ids))[None]
    return policy.logits(policy(jnp.asarray([ids]), positions, CausalRows(positions)))[0]


def test_logits_equal_those_of_transformers(reference):
    model, directory = reference
    ids = ids_of(1, 40)
    np.testing.assert_allclose(whole(loaded(directory, "float32"), ids), expected(model, ids), rtol=0, atol=1e-4)


def test_logits_with_a_cache_that_is_forked(reference):
    model, directory = reference
    policy = loaded(directory, "float32")
    start, left, right = ids_of(2, 17), ids_of(3, 6), ids_of(4, 9)

    def go_on(cache, at, ids):
        positions = jnp.arange(at, at + len(ids))[None]
        attend = CachedRows(cache, positions)
        return policy.logits(policy(jnp.asarray([ids]), positions, attend))[0], attend.cache

    _, shared = go_on(KVCache.empty(policy.config, 1, 32), 0, start)
    _, used = go_on(shared, 17, right)
    for cache in (shared, used):  # the second holds what the other branch left behind
        logits, _ = go_on(cache, 17, left)
        np.testing.assert_allclose(logits, expected(model, start + left)[17:], rtol=0, atol=1e-4)


def test_logits_of_a_tree(reference):
    model, directory = reference
    policy = loaded(directory, "float32")
    start, left, right = ids_of(5, 8), ids_of(6, 5), ids_of(7, 8)
    tokens = np.zeros((3, 8), np.int32)
    positions = np.full((3, 8), NOWHERE, np.int32)
    for row, (first, ids) in enumerate(((0, start), (8, left), (8, right))):
        tokens[row, : len(ids)] = ids
        positions[row, : len(ids)] = np.arange(first, first + len(ids))
    keys = jnp.asarray([[0, 3], [0, 1], [0, 2]])  # row 3 is none
    attend = TreeRows(jnp.asarray(positions), jnp.arange(3), keys)
    logits = policy.logits(policy(jnp.asarray(tokens), jnp.asarray(positions), attend))
    np.testing.assert_allclose(logits[1, :5], expected(model, start + left)[8:], rtol=0, atol=1e-4)
    np.testing.assert_allclose(logits[2], expected(model, start + right)[8:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shard_bytes", [4 << 30, 8192], ids=["one file", "many files"])
def test_what_is_written_is_loaded_by_transformers(reference, tmp_path, shard_bytes):
    model, directory = reference
    policy = loaded(directory, "float32")
    save_checkpoint(split(policy)[1], policy.config, tmp_path, "float32", shard_bytes)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_bytes == 8192)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert read_config(tmp_path, dtype="float32") == policy.config
    jax.tree.map(np.testing.assert_array_equal, split(loaded(tmp_path, "float32"))[1], split(policy)[1])


def test_sharded_files_and_bfloat16_are_read(tmp_path):
    plain = make("qwen3-untied", tmp_path / "plain").to(torch.bfloat16)
    plain.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    policy = loaded(tmp_path / "parts", "bfloat16")
    assert policy.config.dtype == "bfloat16"
    kernel = policy.blocks[1].mlp.gate.kernel[...]
    assert kernel.dtype == jnp.float32
    np.testing.assert_array_equal(kernel.T, plain.model.layers[1].mlp.gate_proj.weight.detach().float().numpy())


def test_parameters_are_put_where_they_are_told(tmp_path):
    make("qwen2-tied", tmp_path)
    asked = []

    def sharding(path):
        asked.append(path)
        return jax.sharding.SingleDeviceSharding(jax.devices()[-1])

    loaded(tmp_path, "float32", sharding)
    assert ("blocks", 1, "attention", "q", "kernel") in asked and ("embedding",) in asked


def change(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def tensors(directory, edit):
    held = load_file(directory / "model.safetensors")
    edit(held)
    save_file(held, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda d: change(d, model_type="llama"), "architecture 'llama'; supported are 'qwen2' and 'qwen3'"),
        (
            lambda d: change(d, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}),
            "RoPE scaling is not supported",
        ),
        (
            lambda d: change(d, use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=None),
            "use_sliding_window=True is not supported",
        ),
        (lambda d: change(d, num_hidden_layers=9), r"(?s)config\.json: .*must be equal to the number of `layer_types`"),
        (lambda d: change(d, hidden_act="gelu"), "hidden_act='gelu'"),
        (
            lambda d: change(d, num_hidden_layers=3, layer_types=None),
            r"missing tensors: model\.layers\.2\.\S+, .* and 7 more",
        ),
        (
            lambda d: change(d, num_hidden_layers=1, layer_types=None),
            r"tensors that this architecture does not have: model\.layers\.1",
        ),
        (lambda d: change(d, intermediate_size=40), r"mlp\.down_proj\.weight is \[32, 48\], and .* \[32, 40\]"),
        (lambda d: tensors(d, lambda t: t.pop("model.norm.weight")), r"missing tensors: model\.norm\.weight"),
        (
            lambda d: tensors(d, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1})),
            "does not have: lm_head.weight",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, edit, message):
    make("qwen2-tied", tmp_path)
    edit(tmp_path)
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path, "float32")


def test_a_tied_head_may_be_written_out(tmp_path):
    model = make("qwen2-tied", tmp_path)
    tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    ids = ids_of(8, 5)
    np.testing.assert_allclose(whole(loaded(tmp_path, "float32"), ids), expected(model, ids), rtol=0, atol=1e-4)


def test_a_directory_without_a_checkpoint(tmp_path):
    for name in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match=r"expected a directory with a config\.json"):
            find_checkpoint(name)
    make("qwen2-tied", tmp_path)
    assert find_checkpoint(tmp_path) == tmp_path
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="weights are read from safetensors files"):
        loaded(tmp_path, "float32")
