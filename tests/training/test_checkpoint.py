"""Checkpoints: damage anywhere is noticed, nothing else is taken for damage, and nothing is thrown away for it."""

import gc
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from patr.training.checkpoint import Checkpoints, DamagedCheckpoint
from patr.training.state import TrainState

TOTALS = {"sampled_tokens": 70, "wall_seconds": 1.5}

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """orbax leaves reads that fail beside the first one to the garbage collector, which has asyncio log them."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    yield
    gc.collect()


def state(step):
    """A small state whose every byte is random: damage shows wherever it is, and nothing can be compressed."""
    rng = np.random.default_rng(step)
    params = {"kernel": jnp.zeros((100, 30)), "norm": jnp.zeros(7, jnp.bfloat16)}

    def filled(x):
        return jnp.asarray(np.frombuffer(rng.bytes(x.nbytes), x.dtype).reshape(x.shape))

    return TrainState(*jax.tree.map(filled, (params, optax.adam(1e-3).init(params))), step)


def saved(directory, rates, keep=9):
    """Checkpoints of steps 0, 1, ... with these success rates, on disk."""
    checkpoints = Checkpoints(directory, keep)
    for step, rate in enumerate(rates):
        checkpoints.save(state(step), TOTALS, rate)
        checkpoints.wait()
    checkpoints.close()


def opened(directory, act, keep=9):
    """What `act` gives for the checkpoints as another process finds them."""
    checkpoints = Checkpoints(directory, keep)
    try:
        return act(checkpoints)
    finally:
        checkpoints.close()


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def flip(file, byte, bit):
    data = bytearray(file.read_bytes())
    data[byte] ^= 1 << bit
    file.write_bytes(bytes(data))


def test_what_was_saved_comes_back(tmp_path):
    saved(tmp_path, [0.5])
    found, totals = opened(tmp_path, lambda c: c.restore(state(0)))
    assert same(found, state(0)) and found.step == 0 and totals == TOTALS


def test_a_flipped_bit_anywhere_changes_nothing_or_is_noticed(tmp_path):
    saved(tmp_path / "whole", [0.5])
    rng, noticed = np.random.default_rng(0), 0
    names = [f.relative_to(tmp_path / "whole") for f in sorted((tmp_path / "whole").rglob("*")) if f.is_file()]
    sizes = [(tmp_path / "whole" / name).stat().st_size for name in names]
    largest = names[int(np.argmax(sizes))]
    for name, size in zip(names, sizes, strict=True):
        for _ in range(8 if name == largest else 2):
            shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
            flip(tmp_path / "flipped" / name, int(rng.integers(size)), int(rng.integers(7)))
            try:
                found, totals = opened(tmp_path / "flipped", lambda c: c.restore(state(0)))
                assert same(found, state(0)) and totals == TOTALS, name
            except DamagedCheckpoint:
                noticed += 1
            shutil.rmtree(tmp_path / "flipped")
    assert noticed >= 8


def test_flipped_bytes_of_the_optimizer_are_noticed(tmp_path):
    saved(tmp_path, [0.5])
    moment = np.asarray(state(0).opt_state[0].nu["kernel"]).tobytes()[:16]
    holding = [f for f in tmp_path.rglob("*") if f.is_file() and moment in f.read_bytes()]
    assert holding
    for file in holding:
        flip(file, file.read_bytes().find(moment) + 400, 0)
    with pytest.raises(DamagedCheckpoint):
        opened(tmp_path, lambda c: c.restore(state(0)))


def test_changed_totals_are_noticed(tmp_path):
    saved(tmp_path, [0.5])
    file = tmp_path / "0" / "meta" / "metadata"
    file.write_text(file.read_text().replace("70", "71"))
    with pytest.raises(DamagedCheckpoint, match="no whole checkpoint"):
        opened(tmp_path, lambda c: c.restore(state(0)))


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
        ValueError('PERMISSION_DENIED: Error reading "params.kernel/0.0"'),  # as tensorstore says it
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_errors_that_may_pass_are_no_damage(error, wrapped, tmp_path, monkeypatch):
    saved(tmp_path, [0.5, 0.5])

    def fails(*_, **__):
        if wrapped:  # as orbax does
            raise Exception("Encountered error while reading array index") from error
        raise error

    def restore(checkpoints):
        monkeypatch.setattr(checkpoints._manager, "restore", fails)
        return checkpoints.restore(state(0))

    with pytest.raises(Exception) as raised:
        opened(tmp_path, restore)
    assert (raised.value.__cause__ if wrapped else raised.value) is error
    assert opened(tmp_path, lambda c: c.steps()) == [0, 1]


def test_damaged_checkpoints_are_set_aside_and_kept(tmp_path, caplog):
    saved(tmp_path, [0.5, 0.5, 0.5])
    for round_ in range(2):
        (tmp_path / "2" / "meta" / "metadata").write_text("{")
        assert opened(tmp_path, lambda c: c.restore(state(0)))[0].step == 1
        assert "/2 is damaged and skipped" in caplog.text

        def again(checkpoints):
            checkpoints.set_aside_after(1)
            assert checkpoints.steps() == [0, 1]
            checkpoints.save(state(2), TOTALS)
            checkpoints.wait()
            return checkpoints.restore(state(0))[0].step

        assert opened(tmp_path, again) == 2
        kept = {path.name for path in tmp_path.glob("*.damaged*")}
        assert kept == {"2.damaged", "2.damaged2"} if round_ else {"2.damaged"}


def test_a_step_without_a_checkpoint_names_those_there_are(tmp_path, caplog):
    saved(tmp_path, [0.5, 0.5])
    with pytest.raises(ValueError, match=r"no checkpoint of step 3 .*; there are 0, 1$"):
        opened(tmp_path, lambda c: c.restore(state(0), 3))
    assert "damaged" not in caplog.text
    with pytest.raises(ValueError, match="there is none yet"):
        opened(tmp_path / "empty", lambda c: c.restore(state(0), 3))


def test_the_best_is_known_and_kept_by_later_processes(tmp_path):
    saved(tmp_path, [0.1, 0.6, 0.4])
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, rate in ((3, None), (4, 0.5)):  # step 3 was not evaluated
        checkpoints.save(state(step), TOTALS, rate)
        checkpoints.wait()
    checkpoints.close()
    assert opened(tmp_path, lambda c: c.steps()) == [0, 1, 3, 4]
    assert opened(tmp_path, lambda c: c.restore(state(0), "best"))[0].step == 1
