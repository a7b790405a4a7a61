"""A small tokenizer, trained once."""

import pytest

from patr.envs.frozen_lake_corpus import frozen_lake_corpus
from patr.text.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    return frozen_lake_corpus(60, 0, hints=("position", "surroundings"))


@pytest.fixture(scope="session")
def directory(tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(corpus, 448, path)
    return path
