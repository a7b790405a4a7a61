"""What a rollout needs of a sampler: token ids in, token ids out."""

import dataclasses
from typing import Protocol


class SamplerError(RuntimeError):
    """The sampler could not answer; partial rollouts must not be trained on."""


@dataclasses.dataclass(frozen=True)
class SampleRequest:
    """One turn to sample.

    prompt_ids: the whole trajectory so far. Samplers find by themselves what
    their cache already holds of it.
    """

    prompt_ids: tuple[int, ...]
    seed: int  # decides the tokens, whatever else is in the batch
    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 1.0  # 0 is greedy

    def __post_init__(self):
        if not self.prompt_ids or self.max_tokens < 1:
            raise ValueError("a request needs prompt ids and max_tokens >= 1")
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature}: must be >= 0")


@dataclasses.dataclass(frozen=True)
class Sample:
    """The sampled turn. The stop id, if one was sampled, is the last of `ids`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the distribution sampled from (temperature applied)
    finish_reason: str  # 'stop' | 'length'
    weight_version: int
    prefilled_tokens: int  # prompt tokens computed for this request
    cached_tokens: int  # prompt tokens found in the cache

    def __post_init__(self):
        if len(self.ids) != len(self.logprobs) or not self.ids:
            raise SamplerError(f"sampler returned {len(self.ids)} ids with {len(self.logprobs)} log-probs")


class Sampler(Protocol):
    """Serves many concurrent requests; what each draws depends on its own request only."""

    max_context: int  # prompt and sampled tokens together

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn. Raises SamplerError when it cannot."""
