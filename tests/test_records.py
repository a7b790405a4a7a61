"""Records: what is written is what is read, and a killed run can be cut back to its checkpoint."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patr import records
from patr.types import Branch, Decision, Ledger, Status, Task, Tree, Turn

numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
info = st.dictionaries(st.text(max_size=5), json_values, max_size=2)


@st.composite
def turns(draw):
    ids = draw(st.lists(counts, min_size=1, max_size=4))
    return Turn(
        action_ids=tuple(ids),
        logprobs=tuple(draw(numbers) for _ in ids),
        observation_ids=tuple(draw(st.lists(counts, max_size=3))),
        action=draw(st.text()),
        reward=draw(numbers),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        observation=draw(st.text()),
        info=draw(info),
        weight_version=draw(counts),
    )


@st.composite
def branches(draw, path, status):
    own = tuple(draw(st.lists(turns(), max_size=2)))
    return Branch(path, own, status, draw(st.none() | numbers), draw(st.text(max_size=5)))


@st.composite
def trees(draw):
    path = st.tuples(st.integers(0, 9), st.integers(0, 9))
    decision = st.builds(
        Decision, counts, path, st.text(), st.text(), st.none() | numbers, st.none() | numbers, st.none() | counts
    )
    leaf = st.sampled_from([status for status in Status if status is not Status.EXPANDED])
    return Tree(
        task=Task(draw(st.text(min_size=1)), draw(info)),
        prompt_ids=tuple(draw(st.lists(counts, min_size=1, max_size=4))),
        branches=(
            draw(branches((0,), Status.EXPANDED)),
            draw(branches((0, 0), draw(leaf))),
            draw(branches((1,), draw(leaf))),
        ),
        decisions=tuple(draw(st.lists(decision, max_size=2))),
        ledger=draw(st.builds(Ledger, counts, counts, counts, counts, counts, counts, counts, numbers)),
        step=draw(counts),
        method=draw(st.text()),
        group=draw(st.sampled_from(["keep_all", "best_n"])),
    )


def small_tree(step, logprob=-0.5, data=None):
    turn = Turn((5, 0), (logprob, 0.0), (), "right", 1.0, "stop")
    return Tree(Task("t", data or {}), (1, 2), (Branch((0,), (turn,), Status.DONE, 1.0),), step=step)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])  # trees are slow to draw
@given(trees())
def test_tree_survives_json(tree):
    assert records.tree_from_json(json.loads(json.dumps(records.tree_to_json(tree)))) == tree


def test_files_keep_order_and_step(tmp_path):
    path = tmp_path / "trees.jsonl"
    written = [small_tree(step) for step in (0, 0, 1)]
    records.append_trees(path, written[:2])
    records.append_trees(path, written[2:])
    assert list(records.read_trees(path)) == written
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 0, 1]


def test_metrics_become_plain_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records.append_metrics(path, 4, {"loss": np.float32(0.5), "leaves": 6, "method": "patr", "success": None})
    assert records.read_metrics(path) == [{"step": 4, "loss": 0.5, "leaves": 6, "method": "patr", "success": None}]


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("-inf")])
def test_metric_that_is_not_finite_is_null_and_told(tmp_path, caplog, value):
    path = tmp_path / "metrics.jsonl"
    records.append_metrics(path, 7, {"loss": value, "reward": 1.0})
    assert records.read_metrics(path) == [{"step": 7, "loss": None, "reward": 1.0}]
    assert "metric 'loss' of step 7 is" in caplog.text


def test_metric_may_not_take_the_name_of_a_tag(tmp_path):
    with pytest.raises(ValueError, match=r"\['step'\].*choose others"):
        records.append_metrics(tmp_path / "metrics.jsonl", 1, {"step": 2})


@pytest.mark.parametrize("tree", [small_tree(0, logprob=-math.inf), small_tree(0, data={"grid": {1, 2}})])
def test_tree_that_is_not_json_is_refused_and_nothing_written(tmp_path, tree):
    path = tmp_path / "trees.jsonl"
    with pytest.raises(ValueError, match="the tree of task t is not JSON"):
        records.append_trees(path, [small_tree(0), tree])
    assert not path.exists()


def test_truncate_drops_later_steps_and_a_cut_line(tmp_path):
    path = tmp_path / "trees.jsonl"
    records.append_trees(path, [small_tree(step) for step in range(5)])
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:4]) + whole[4][:30])
    records.truncate_after(path, 2)
    assert path.read_text() == "".join(whole[:3])
    assert [file.name for file in tmp_path.iterdir()] == ["trees.jsonl"]


@settings(deadline=None)
@given(cut=st.integers(1, 10_000), step=st.integers(-1, 3))
def test_resume_writes_what_an_uninterrupted_run_writes(tmp_path_factory, cut, step):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    for i in range(4):
        records.append_metrics(path, i, {"loss": 1 / (i + 1)})
    whole = path.read_bytes()
    lines_up_to_step = sum(len(line) for line in whole.splitlines(keepends=True)[: step + 1])
    path.write_bytes(whole[: max(lines_up_to_step, cut % len(whole))])  # killed at any byte after the checkpoint
    records.truncate_after(path, step)
    for i in range(step + 1, 4):
        records.append_metrics(path, i, {"loss": 1 / (i + 1)})
    assert path.read_bytes() == whole


def test_truncating_a_file_that_is_not_there_is_fine(tmp_path):
    records.truncate_after(tmp_path / "metrics.jsonl", 3)
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_out_a_line_that_is_being_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records.append_metrics(path, 0, {"loss": 1.0})
    path.write_text(path.read_text() + '{"schema":1,"st')
    assert records.read_metrics(path) == [{"step": 0, "loss": 1.0}]


def test_damage_in_the_middle_names_the_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"schema":1,"step":0}\n{"schema":1,"st\n{"schema":1,"step":2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2 is damaged"):
        records.read_metrics(path)


@pytest.mark.parametrize("read", [lambda path: list(records.read_trees(path)), records.read_metrics])
def test_newer_schema_is_refused(tmp_path, read):
    path = tmp_path / "records.jsonl"
    path.write_text('{"schema":99,"step":0}\n')
    with pytest.raises(ValueError, match="line 1 has schema 99, this patr reads up to 1: upgrade patr"):
        read(path)
