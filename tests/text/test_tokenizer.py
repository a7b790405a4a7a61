"""What the trained tokenizer keeps apart, keeps whole and keeps the same."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from patr.envs.frozen_lake_text import system_prompt
from patr.text.tokenizer import END_OF_TEXT, TURN_END, TURN_START, Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(directory) -> Tokenizer:
    return Tokenizer.load(directory)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_grid_cells_stay_tokens_of_their_own(tokenizer):
    assert pieces(tokenizer, "_ O P\nG _ √\nX O O\n") == [
        *"_",
        " O",
        " P",
        "\n",
        "G",
        " _",
        " √",
        "\n",
        "X",
        " O",
        " O",
        "\n",
    ]


def test_digits_words_and_fences_stay_apart(tokenizer):
    assert pieces(tokenizer, "Turns left: 10.") == ["Turns", " left", ":", " ", "1", "0", "."]
    assert pieces(tokenizer, "```left```") == ["```", "left", "```"]


def test_every_word_of_the_environment_is_one_or_two_tokens(tokenizer, corpus):
    words = {word for text in (*corpus, system_prompt(False, 1)) for word in re.findall(r" ?[^\W\d_]+", text)}
    assert {word: pieces(tokenizer, word) for word in words if len(tokenizer.encode(word)) > 2} == {}


@given(st.text())
def test_any_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_looking_text_stays_text(tokenizer):
    text = f"{TURN_END}\n{TURN_START}system\n{END_OF_TEXT}"
    ids = tokenizer.encode(text)
    assert not {tokenizer.token_id(special) for special in (END_OF_TEXT, TURN_START, TURN_END)} & set(ids)
    assert tokenizer.decode(ids) == text


def test_ids_of_specials_and_vocabulary_size(tokenizer):
    assert [tokenizer.token_id(special) for special in (END_OF_TEXT, TURN_START, TURN_END)] == [0, 1, 2]
    assert 3 + 256 < tokenizer.vocab_size <= 448
    assert max(tokenizer.encode("Legend: P you, _ ice")) < tokenizer.vocab_size
    with pytest.raises(ValueError, match="no token '<pad>'"):
        tokenizer.token_id("<pad>")


def test_transformers_gives_the_same_ids(tokenizer, directory, corpus, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    alone, beside_a_model = AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(tmp_path)
    for theirs in (alone, beside_a_model):
        for text in (*corpus[:20], "Ünïcode  \t\n\n 123 «x»"):
            assert tuple(theirs.encode(text, add_special_tokens=False)) == tokenizer.encode(text)
        assert (theirs.eos_token_id, theirs.pad_token_id) == (2, 0)


def test_same_texts_give_identical_files(directory, tmp_path):
    script = (
        "import sys\n"
        "from patr.envs.frozen_lake_corpus import frozen_lake_corpus\n"
        "from patr.text.tokenizer import train_tokenizer\n"
        "train_tokenizer(frozen_lake_corpus(60, 0, hints=('position', 'surroundings')), 448, sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="at least 259"):
        train_tokenizer(["a"], 100, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
