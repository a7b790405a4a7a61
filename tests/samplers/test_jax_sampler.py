"""The in-process sampler: what comes back depends on the request and on nothing else."""

import asyncio
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

from patr.models.attention import CausalRows
from patr.models.qwen import split
from patr.samplers.base import SampleRequest, SamplerError
from patr.samplers.jax_sampler import JaxSampler, SamplerShapes

SHAPES = SamplerShapes(
    blocks=160, block_size=4, prefills=((8, 16), (24, 64)), batches=(2, 8), contexts=(32, 64), max_new_tokens=5
)
STOP = (3,)


def request(prompt, seed=0, max_tokens=5, temperature=1.0):
    return SampleRequest(tuple(map(int, prompt)), seed, max_tokens, STOP, temperature)


def prompts(count, length, seed=0):
    return np.random.default_rng(seed).integers(4, 61, (count, length))


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def sampler(model, compiled=JaxSampler):
    return compiled(model, SHAPES)


def full_logprobs(model, ids, temperature=1.0):
    positions = jnp.arange(len(ids))[None]
    logits = model.logits(model(jnp.asarray([ids]), positions, CausalRows(positions)))[0]
    return np.asarray(jax.nn.log_softmax(logits / temperature))


def test_logprobs_are_those_of_the_distribution_sampled_from(model, sampler):
    for temperature in (0.5, 1.0, 1.5):
        asked = [request(p, seed=i, temperature=temperature) for i, p in enumerate(prompts(6, 10))]
        for r, sample in zip(asked, sampler.serve(asked), strict=True):
            ids = r.prompt_ids + sample.ids
            expected = full_logprobs(model, ids, temperature)[len(r.prompt_ids) - 1 : -1]
            # Cached and uncached sums differ in order only.
            np.testing.assert_allclose(
                sample.logprobs, expected[np.arange(len(sample.ids)), sample.ids], rtol=0, atol=1e-4
            )


def test_samples_follow_the_policy(model, sampler):
    prompt = prompts(1, 6)[0]
    drawn = [s.ids[0] for b in range(50) for s in sampler.serve([request(prompt, b * 8 + i, 1) for i in range(8)])]
    expected = np.exp(full_logprobs(model, list(prompt))[-1])
    observed = np.bincount(drawn, minlength=61) / len(drawn)
    # Total variation of 400 draws from this distribution stays below 0.15 in all but one of 10^4 runs.
    assert 0.5 * np.abs(observed - expected).sum() < 0.15


def test_tokens_do_not_depend_on_the_batch(model):
    asked = [request(p, seed=100 + i) for i, p in enumerate(prompts(8, 12))]
    together = JaxSampler(model, SHAPES).serve(asked)
    backwards = JaxSampler(model, SHAPES).serve(asked[::-1])[::-1]
    alone = [JaxSampler(model, SHAPES).serve([r])[0] for r in asked[:2]]
    assert [s.ids for s in together] == [s.ids for s in backwards]
    assert [s.ids for s in together[:2]] == [s.ids for s in alone]


def test_seed_decides_and_greedy_does_not_need_it(sampler):
    prompt = prompts(1, 9)[0]
    samples = sampler.serve([request(prompt, seed) for seed in (1, 1, 2, 3, 2**62 + 1)])
    assert samples[0].ids == samples[1].ids
    assert len({s.ids for s in samples}) > 2
    greedy = sampler.serve([request(prompt, seed, temperature=0.0) for seed in (1, 2)])
    assert greedy[0].ids == greedy[1].ids


def test_each_shared_token_is_prefilled_once(sampler):
    root = prompts(1, 20)[0]
    first = sampler.serve([request(root, seed) for seed in range(4)])
    assert sum(s.prefilled_tokens for s in first) == 20
    assert sorted(s.cached_tokens for s in first) == [0, 20, 20, 20]
    # Each branch goes on; the first one is forked into two children with the same observation.
    grown = [tuple(root) + s.ids + (7, 8, 9) for s in first]
    second = sampler.serve([request(grown[0], 50), request(grown[0], 51), *(request(g, 52) for g in grown[1:])])
    # New per branch: the last sampled token and three of observation; the second child shares the first's.
    assert [s.prefilled_tokens for s in second] == [4, 0, 4, 4, 4]


def test_a_fork_shares_content_and_then_goes_its_own_way(model, sampler):
    root = prompts(1, 20)[0]
    parent = sampler.serve([request(root, 5)])[0]
    prefix = tuple(root) + parent.ids + (9,)
    children = sampler.serve([request(prefix, 1), request(prefix, 2)])
    grown = [request(prefix + child.ids + (11,), 7) for child in children]
    for r, sample in zip(grown, sampler.serve(grown), strict=True):
        assert sample.ids == JaxSampler(model, SHAPES).serve([r])[0].ids
        assert sample.cached_tokens >= len(prefix)


def test_stop_and_length(model, sampler):
    asked = [request(p, seed=i) for i, p in enumerate(prompts(8, 7))]
    long = [JaxSampler(model, SHAPES).serve([request(p, i, 1)])[0] for i, p in enumerate(prompts(1, 7))]
    assert long[0].finish_reason in ("stop", "length") and len(long[0].ids) == 1
    for sample in sampler.serve(asked):
        stopped = sample.ids[-1] == STOP[0]
        assert sample.finish_reason == ("stop" if stopped else "length")
        assert STOP[0] not in sample.ids[:-1]
        assert stopped or len(sample.ids) == 5


def test_more_requests_than_blocks_and_prompts_longer_than_a_prefill(model):
    few = SamplerShapes(blocks=17, block_size=4, prefills=((3, 5),), batches=(2,), contexts=(64,), max_new_tokens=5)
    asked = [request(p, seed=i) for i, p in enumerate(prompts(7, 30))]
    assert [s.ids for s in JaxSampler(model, few).serve(asked)] == [
        s.ids for s in JaxSampler(model, SHAPES).serve(asked)
    ]


def test_new_weights_leave_nothing_of_the_old_ones(model, sampler):
    asked = [request(prompts(1, 15)[0], seed) for seed in range(3)]
    sampler.serve(asked)
    other = small_model(seed=1)
    sampler.update_weights(split(other)[1], version=9)
    after, fresh = sampler.serve(asked), JaxSampler(other, SHAPES).serve(asked)
    assert [(s.ids, s.logprobs) for s in after] == [(s.ids, s.logprobs) for s in fresh]
    assert {s.weight_version for s in after} == {9} and {s.weight_version for s in fresh} == {0}


def test_nothing_compiles_after_warm_up(sampler):
    sampler.warm_up()
    before = sampler.compilations
    assert before == 2 + 2 * 2  # prefills, batches x contexts
    for length in (3, 9, 17, 40):
        sampler.serve([request(p, i) for i, p in enumerate(prompts(5, length))])
    assert (sampler.compilations, sampler.late_compilations) == (before, 0)


def test_awaited_requests_are_served_together(sampler):
    served = []
    serve = sampler.serve
    sampler._queue._serve = lambda requests: served.append(len(requests)) or serve(requests)

    async def rollout(i):
        await asyncio.gather(*(sampler.sample(request(p, i)) for p in prompts(2, 6, seed=i)))
        await sampler.sample(request(prompts(1, 8, seed=i)[0], i))

    async def main():
        await asyncio.gather(*(rollout(i) for i in range(3)))

    asyncio.run(main())
    assert served == [6, 3]


def test_what_does_not_fit_is_an_error(sampler):
    with pytest.raises(SamplerError, match="62 prompt tokens and max_tokens=5 exceed the sampler's context of 64"):
        sampler.serve([request(prompts(1, 62)[0])])
    with pytest.raises(SamplerError, match="at most 5"):
        sampler.serve([request(prompts(1, 6)[0], max_tokens=6)])


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(batches=(4, 2)), "batches"),
        (dict(prefills=((0, 8),)), "prefills"),
        (dict(contexts=(30, 64)), "multiples of block_size=4"),
        (dict(blocks=16), "one path alone may take 17"),
        (dict(prefills=((8, 3),)), "at least 4 tiles"),
    ],
)
def test_shapes_that_do_not_fit_each_other_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SHAPES, **change)


def test_damaged_parameters_are_noticed(model, sampler):
    params = jax.tree.map(lambda x: x * jnp.nan, split(model)[1])
    sampler.update_weights(params, version=1)
    with pytest.raises(SamplerError, match="non-finite"):
        sampler.serve([request(prompts(1, 6)[0])])
