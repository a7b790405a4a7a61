"""Chat turns as token ids, append-only (ChatML, as Qwen2.5 speaks it).

The prompt and every observation are rendered once, as ids, and appended; what the
policy sampled stays as it was sampled. Where a template would rewrite earlier
turns, as Qwen3's drops earlier thoughts, history is kept whole here.
"""

import dataclasses
import functools
from collections.abc import Sequence

from patr.envs.base import Message
from patr.text.tokenizer import TURN_END, TURN_START, Tokenizer


@dataclasses.dataclass(frozen=True)
class Chat:
    """ChatML over a tokenizer.

    default_system: system message of a conversation that brings none. Qwen2.5's own
        template fills in a sentence of its own there; give that sentence to match it.
    Raises ValueError if the tokenizer lacks <|im_start|> or <|im_end|>.
    """

    tokenizer: Tokenizer
    default_system: str | None = None

    def __post_init__(self):
        self.tokenizer.token_id(TURN_START)
        self.tokenizer.token_id(TURN_END)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a sampled turn; only with <|im_end|> does the next header follow the template."""
        return (self.tokenizer.token_id(TURN_END),)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the messages and of the header of the assistant turn to sample.

        Raises ValueError if there are no messages.
        """
        if not messages:
            raise ValueError("a prompt needs at least one message")
        if self.default_system is not None and messages[0].role != "system":
            messages = (Message("system", self.default_system), *messages)
        turns = tuple((message.role, message.content) for message in messages)
        return _render(self.tokenizer, turns) + _assistant_header(self.tokenizer)

    def observation(self, text: str, after: str) -> tuple[int, ...]:
        """Ids appended after a sampled turn (mask 0), up to the header of the next one.

        after: the turn's finish reason. 'stop': the policy sampled <|im_end|> itself;
        'length': it was cut, and the appended ids first close the turn for it.
        Raises ValueError for another reason.
        """
        if after not in ("stop", "length"):
            raise ValueError(f"after {after!r}: expected 'stop' or 'length'")
        appended = _after_turn(self.tokenizer, text)
        return appended if after == "stop" else self.stop_ids + appended

    def decode_turn(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without the stop token that may end them."""
        ids = tuple(ids)
        return self.tokenizer.decode(ids[:-1] if ids[-1:] == self.stop_ids else ids)


def _render(tokenizer: Tokenizer, turns: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    # Special tokens part the text, so pieces encoded one by one equal the whole encoded at once.
    start, end = tokenizer.token_id(TURN_START), tokenizer.token_id(TURN_END)
    ids: tuple[int, ...] = ()
    for role, content in turns:
        ids += (start, *tokenizer.encode(f"{role}\n{content}"), end, *_fixed(tokenizer, "\n"))
    return ids


def _assistant_header(tokenizer: Tokenizer) -> tuple[int, ...]:
    return (tokenizer.token_id(TURN_START), *_fixed(tokenizer, "assistant\n"))


@functools.lru_cache(maxsize=64)
def _fixed(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode(text)


# Branches of one task meet the same observations again and again.
@functools.lru_cache(maxsize=8192)
def _after_turn(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return _fixed(tokenizer, "\n") + _render(tokenizer, (("user", text),)) + _assistant_header(tokenizer)
