"""Text to token ids and back, from a Hugging Face tokenizer directory."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Words, digits, symbols and runs of backticks stand alone, each with at most one blank before it, and so do
# newlines: a cell of a text grid is never merged with its neighbour.
_PIECES = r"`+| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\n|\s"

_CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """A byte-level BPE tokenizer.

    Raises FileNotFoundError for a directory without tokenizer.json.
    """

    def __init__(self, directory: str | Path):
        file = Path(directory) / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"{file}: a Hugging Face tokenizer directory holds a tokenizer.json")
        self.directory = Path(directory)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        # What looks like a special token inside a text is text.
        self._tokenizer.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        """Rows an embedding needs for every id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, nothing added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens spelled out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token_id(self, token: str) -> int:
        """The id of a whole token. Raises ValueError if the vocabulary lacks it."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer of {self.directory} has no token {token!r}")
        return found


def train_tokenizer(texts: Iterable[str], vocab_size: int, directory: str | Path) -> Tokenizer:
    """Train byte-level BPE with ChatML on texts and save it where transformers' AutoTokenizer loads it.

    The same texts give the same files, byte for byte.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": TURN_END,
                "pad_token": END_OF_TEXT,
                "clean_up_tokenization_spaces": False,
                "chat_template": _CHATML,
            },
            indent=2,
        )
        + "\n"
    )
    return Tokenizer(directory)
