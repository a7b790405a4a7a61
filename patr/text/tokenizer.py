"""Text to token ids and back, and small tokenizers trained from nothing."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

# A word or a run of other signs, each with at most one space before it, or one digit. Newlines stand alone.
# Grid cells, parted by spaces and newlines, can therefore never merge with one another. Wherever Qwen2's tokenizer
# parts a text, so does this one: its splitting, which transformers puts in place of ours, gives the same ids.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A Hugging Face fast tokenizer, used for plain text only; special tokens are placed by id."""

    backend: tokenizers.Tokenizer

    def __post_init__(self):
        self.backend.encode_special_tokens = True
        self.backend.no_padding()
        self.backend.no_truncation()

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer directory. Raises FileNotFoundError if it holds no tokenizer.json."""
        file = Path(path) / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} does not exist: give a directory with a fast tokenizer, as save_pretrained writes it"
            )
        return cls(tokenizers.Tokenizer.from_file(str(file)))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a plain text. What looks like a special token is text like any other."""
        # The batch call is the one that skips character offsets, which take half the time.
        return tuple(self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens written out."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def token_id(self, special: str) -> int:
        """Raises ValueError if the vocabulary lacks this token."""
        token_id = self.backend.token_to_id(special)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {special!r}")
        return token_id

    @property
    def vocab_size(self) -> int:
        """Embedding rows needed: the highest id plus 1. A model may have more rows, for padding."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1


def train_tokenizer(texts: Iterable[str], vocab_size: int, directory: str | Path) -> Tokenizer:
    """Train a byte-level BPE with ChatML's special tokens and save it as a Hugging Face tokenizer directory.

    vocab_size: at most this many ids; fewer if the texts hold no more pairs to merge.
    The same texts give byte-identical files. AutoTokenizer reads them to the same ids.
    Raises ValueError if vocab_size cannot hold 256 bytes and 3 special tokens.
    """
    specials = [END_OF_TEXT, TURN_START, TURN_END]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(specials)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size {vocab_size}: need at least {smallest}, for every byte and the special tokens")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    _save(backend, Path(directory))
    return Tokenizer.load(directory)


def _save(backend: tokenizers.Tokenizer, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": _CHATML,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**9,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
