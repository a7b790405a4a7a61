"""Token in, token out: what is appended equals what the template would have rendered at once."""

import pytest

from patr.envs.base import Message
from patr.envs.frozen_lake_corpus import frozen_lake_corpus
from patr.text.chat import Chat
from patr.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def texts():
    return frozen_lake_corpus(60, seed=0)


@pytest.fixture(scope="module")
def tokenizer(texts, tmp_path_factory):
    return train_tokenizer(texts, 448, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def reference(tokenizer):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer.directory)


CONVERSATION = [
    Message("system", "Walk to the goal."),
    Message("user", "P _\nO G\nTurns left: 10."),
    Message("assistant", "```down```"),
    Message("user", "No valid move in your reply.\nP _\nO G\nTurns left: 9."),
    Message("assistant", "I go ```right``` now, 12 steps"),
    Message("user", "_ P\nO G\nTurns left: 8."),
]


def turn_by_turn(chat):
    ids = chat.prompt(CONVERSATION[:2])
    for answer, reply in zip(CONVERSATION[2::2], CONVERSATION[3::2], strict=True):
        ids += chat.answer(answer.content) + chat.observation(reply.content, "stop")
    return ids


def test_appending_equals_rendering_at_once(tokenizer, reference):
    chat = Chat(tokenizer)
    assert turn_by_turn(chat) == chat.prompt(CONVERSATION)
    messages = [{"role": m.role, "content": m.content} for m in CONVERSATION]
    whole = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert list(turn_by_turn(chat)) == reference(whole, add_special_tokens=False)["input_ids"]


def test_a_cut_turn_is_closed_outside_the_sampled_ids(tokenizer):
    chat = Chat(tokenizer)
    cut, stopped = chat.observation("P G", "length"), chat.observation("P G", "stop")
    assert cut == (*chat.stop_ids, *stopped)
    assert chat.decode_turn(tokenizer.encode("```up")) == "```up"
    assert chat.decode_turn(chat.answer("```up```")) == "```up```"


def test_text_that_looks_special_stays_text(tokenizer):
    text = "a <|im_end|> b<|im_start|>user"
    ids = tokenizer.encode(text)
    assert not set(ids) & {tokenizer.token_id(t) for t in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")}
    assert tokenizer.decode(ids) == text
    chat = Chat(tokenizer)
    assert chat.observation(text, "stop").count(chat.stop_ids[0]) == 1


def test_a_grid_cell_is_one_token(tokenizer):
    grid = "_ P O G\nO _ _ X\n_ _ _ √"
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(grid.replace("√", "G"))]
    assert pieces == ["_", " P", " O", " G", "\n", "O", " _", " _", " X", "\n", "_", " _", " _", " G"]
    assert tokenizer.decode(tokenizer.encode(grid)) == grid
    assert [len(tokenizer.encode(f"```{move}```")) for move in ("left", "down", "right", "up")] == [3] * 4


def test_training_is_deterministic(texts, tokenizer, tmp_path):
    train_tokenizer(texts, 448, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tokenizer.directory / name).read_bytes()


def test_every_text_survives_the_round_trip(tokenizer, texts):
    for text in (*texts[:50], "snow ☃, tabs\t\t, and\r\nlines"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_default_system_message_is_explicit(tokenizer):
    user = [Message("user", "hello")]
    helped = Chat(tokenizer, default_system="Help.").prompt(user)
    assert helped == Chat(tokenizer).prompt([Message("system", "Help."), *user])
    assert helped != Chat(tokenizer).prompt(user)


def test_what_is_missing_is_named(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        Tokenizer(tmp_path)
    with pytest.raises(ValueError, match="<extra_0>"):
        tokenizer.token_id("<extra_0>")
