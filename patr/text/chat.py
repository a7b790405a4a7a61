"""Chat turns as token ids that are only ever appended (ChatML, as Qwen speaks it)."""

import functools
from collections.abc import Sequence

from patr.envs.base import Message
from patr.text.tokenizer import TURN_END, TURN_START, Tokenizer


class Chat:
    """Renders conversations turn by turn; the ids equal those of the whole conversation rendered at once.

    default_system: the system message a prompt without one gets, as Qwen2.5's template adds it; None adds nothing.
    """

    def __init__(self, tokenizer: Tokenizer, default_system: str | None = None):
        self.tokenizer, self.default_system = tokenizer, default_system
        self._start, self._end = tokenizer.token_id(TURN_START), tokenizer.token_id(TURN_END)
        self.stop_ids = (self._end,)
        self._encode = functools.lru_cache(maxsize=65536)(tokenizer.encode)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids up to where the policy's first turn begins."""
        if self.default_system is not None and messages[0].role != "system":
            messages = (Message("system", self.default_system), *messages)
        return tuple(i for message in messages for i in self._whole(message)) + self._header("assistant")

    def observation(self, text: str, after: str) -> tuple[int, ...]:
        """Ids between a sampled turn and the next.

        after: finish reason of the sampled turn. 'stop': it ends with the end-of-turn the policy sampled.
        'length': it was cut, and the missing end-of-turn is part of what is appended here.
        """
        close = () if after == "stop" else (self._end,)
        return close + self._encode("\n") + self._whole(Message("user", text)) + self._header("assistant")

    def decode_turn(self, ids: Sequence[int]) -> str:
        """The text of a sampled turn, without its end-of-turn."""
        return self.tokenizer.decode(ids[:-1] if ids and ids[-1] == self._end else ids)

    def answer(self, text: str) -> tuple[int, ...]:
        """Ids of a turn the policy might sample, its end-of-turn included."""
        return self._encode(text) + (self._end,)

    def _whole(self, message: Message) -> tuple[int, ...]:
        return self._header(message.role) + self._encode(message.content) + (self._end,) + self._encode("\n")

    def _header(self, role: str) -> tuple[int, ...]:
        return (self._start, *self._encode(f"{role}\n"))
