"""Maps and task sets are those of the reference, in any thread and process."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patr.envs.frozen_lake_maps import four_by_four_tasks, generate_map, reference_tasks, task_map
from patr.envs.grid_paths import distances_to_goal, find_cell
from patr.types import Task

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "frozenlake_maps.json").read_text())


def shortest_path(rows) -> int | None:
    row, column = find_cell(rows, "S")
    return distances_to_goal(rows)[row][column]


@pytest.mark.parametrize("row", REFERENCE, ids=lambda r: f"{r['split']}-{r['index']}-{r['path_limit']}")
def test_reference_maps_come_out_equal(row):
    task = reference_tasks(row["split"])[row["index"]]
    assert dict(task.data) == {key: row[key] for key in ("seed", "size", "p")}
    rows = generate_map(row["seed"], row["size"], row["p"], row["path_limit"])
    assert rows == row["map"]
    assert shortest_path(rows) == row["shortest_path"]


def test_reference_task_sets():
    train, test = reference_tasks("train"), reference_tasks("test")
    assert (len(train), len(test)) == (10_000, 100)
    assert test[0].id == "frozen_lake/test/0-84433-8"
    assert len({task.id for task in train + test}) == 10_100
    lengths = [shortest_path(task_map(task)) for task in test]
    assert {n: lengths.count(n) for n in set(lengths)} == {1: 25, 2: 15, 3: 22, 4: 22, 5: 6, 6: 10}


def test_unknown_split_names_the_two():
    with pytest.raises(ValueError, match=r"'val'.*'train' and 'test'"):
        reference_tasks("val")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.5, 0.9), st.integers(0, 8))
def test_accepted_maps_keep_the_path_bound(seed, size, p, path_limit):
    assert 1 <= shortest_path(generate_map(seed, size, p, path_limit)) <= path_limit + 1


def test_threads_and_processes_agree():
    rows = [(row["seed"], row["size"], row["p"], limit) for row in REFERENCE[:8] for limit in (5, 8)]
    expected = [generate_map(*row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda row: generate_map(*row), rows * 4)) == expected * 4
    script = (
        "import json, sys\n"
        "from patr.envs.frozen_lake_maps import generate_map\n"
        "print(json.dumps([generate_map(*row) for row in json.loads(sys.argv[1])]))"
    )
    command = [sys.executable, "-c", script, json.dumps(rows)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [json.loads(process.communicate()[0]) for process in running] == [expected] * 2


def test_four_by_four_tasks_are_solvable_and_a_longer_list_only_adds():
    tasks = four_by_four_tasks(7, 30)
    assert tasks[:10] == four_by_four_tasks(7, 10)
    assert all(len(task_map(task)) == 4 and shortest_path(task_map(task)) for task in tasks)
    assert tasks[0].data["seed"] != four_by_four_tasks(8, 1)[0].data["seed"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"seed": 1, "size": 4}, "lacks 'p'"),
        ({}, "'seed', 'size', 'p'"),
        ({"map": ["SF", "F"]}, "equal length"),
        ({"map": ["SF", "xG"]}, "S, F, H and G"),
        ({"map": ["SF", "FF"]}, "one S and one G"),
        ({"map": []}, "equal length"),
        ({"seed": 1, "size": 1, "p": 0.8}, "size >= 2"),
    ],
)
def test_bad_task_data_is_named(data, message):
    with pytest.raises(ValueError, match=message):
        task_map(Task("t", data))
