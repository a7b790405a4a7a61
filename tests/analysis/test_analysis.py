"""Pictures and tables hold the numbers of the records."""

import json
from collections import Counter
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest

from patr.analysis.curves import plot_curves, read_run, smooth
from patr.analysis.tables import evaluation_rows, evaluation_table, to_markdown
from patr.analysis.trees import COLORS, draw_tree, layout, pick_trees
from patr.records import append_metrics, read_trees, tree_from_json

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
LAKES = TESTS.parent / "notebooks" / "data" / "frozen_lake_trees.jsonl"
REPORT = {
    "step": 70, "tasks": 100, "samples": 4, "errors": 1, "temperature": 1.0, "success_rate": 0.8125,
    "success_interval": (0.75, 0.875), "pass_at_4": 0.9, "response_length": 412.34, "turns": 4.567,
    "by_size": {"10": {"tasks": 87, "success_rate": 0.8}, "2": {"tasks": 13, "success_rate": 1.0}},
}  # fmt: skip


def golden(name):
    return tree_from_json(json.loads((GOLDEN / f"{name}.json").read_text()))


def lakes():
    return list(read_trees(LAKES))


def drawn(figure):
    """Nodes a colour, as the artists hold them."""
    kinds = {matplotlib.colors.to_hex(color): kind for kind, color in COLORS.items()}
    counts = Counter()
    for artist in figure.axes[0].collections:
        counts[kinds[matplotlib.colors.to_hex(artist.get_facecolor()[0])]] += len(artist.get_offsets())
    return counts


@pytest.mark.parametrize(
    "name, kinds",
    [
        ("expand_twice", {"start": 1, "turn": 15, "expanded": 4, "survived": 4, "success": 1, "failure": 6}),
        ("scorer_failure", {"start": 1, "turn": 7, "expanded": 1, "survived": 3, "failure": 3}),
        (
            "environment_error",
            {"start": 1, "turn": 5, "expanded": 1, "survived": 1, "success": 1, "failure": 2, "error": 1},
        ),
    ],
)
def test_nodes_of_every_colour(name, kinds):
    assert drawn(draw_tree(golden(name))) == kinds


@pytest.mark.parametrize("name", sorted(file.stem for file in GOLDEN.glob("*.json")))
def test_tree_is_drawn_whole(name):
    tree = golden(name)
    nodes = layout(tree)
    own_turns = sum(max(1, len(branch.turns)) for branch in tree.branches)
    assert len(nodes) == 1 + own_turns == drawn(draw_tree(tree)).total()
    places = {(node.x, node.y) for node in nodes}
    assert len(places) == len(nodes)
    assert all(node.parent in places for node in nodes[1:])
    scored = Counter(f"{d.score:.2f}" for d in tree.decisions if d.score is not None)
    assert Counter(node.text.removesuffix(" repeat") for node in nodes if node.text[:1].isdigit()) == scored


def test_fork_stands_in_the_middle_of_its_children():
    ends = {node.path: node.y for node in layout(golden("expand_twice"))}
    rows = [y for path, y in sorted(ends.items()) if not any(other[:-1] == path for other in ends)]
    assert rows == list(range(7))
    assert ends[0, 0] == 0.5
    assert ends[(0,)] == (0.5 + 2) / 2
    assert ends[()] == (1.25 + 3.5 + 5.5) / 3


def test_grids_stand_at_the_start_at_forks_and_at_ends():
    tree = lakes()[1]
    axes = draw_tree(tree).axes[0]
    assert len(axes.images) == 1 + len(tree.branches)
    ends = {node.path: node.way for node in layout(tree) if node.way}
    start, leaf = ends[()], tree.branches[0]
    assert tree.branches[0].turns[0].info["map"][start[0][0]][start[0][1]] == "S"
    assert ends[leaf.path] == start + tuple((turn.info["row"], turn.info["column"]) for turn in leaf.turns)


def test_no_grid_without_a_map():
    assert not draw_tree(golden("flat")).axes[0].images


def test_tree_is_saved(tmp_path):
    draw_tree(golden("flat"), tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_mixed_trees_come_first_and_then_those_with_most_decisions():
    trees = lakes()
    best, *rest = pick_trees(trees, count=len(trees))
    assert len({leaf.reward for leaf in best.leaves()}) == 2
    assert len(best.decisions) == max(len(tree.decisions) for tree in trees)
    assert len(rest) == len(trees) - 1
    assert pick_trees([golden("scorer_failure"), golden("expand_twice")]) == [golden("expand_twice")]


def test_smoothing_is_the_mean_of_a_window_cut_at_the_ends():
    np.testing.assert_array_equal(smooth([0, 3, 6, 9], 3), [1.5, 3, 6, 7.5])
    np.testing.assert_array_equal(smooth([2, 4], 1), [2, 4])
    np.testing.assert_array_equal(smooth([1, 3], 9), [2, 2])
    assert smooth([], 3).shape == (0,)
    with pytest.raises(ValueError, match="width=2"):
        smooth([1.0], 2)


def write_run(workdir):
    workdir.mkdir()
    for step, success in ((1, 0.0), (2, 0.5), (3, 1.0)):
        append_metrics(workdir / "metrics.jsonl", step, {"success": success, "entropy": None if step == 2 else 1.0})
    evaluation = {"eval/success_rate": 0.5, "eval/success_low": 0.4, "eval/success_high": 0.7}
    append_metrics(workdir / "metrics.jsonl", 3, {**evaluation, "total_sampled_tokens": 900})
    return workdir


def test_curves_hold_the_recorded_numbers(tmp_path):
    workdir = write_run(tmp_path / "one")
    figure = plot_curves(workdir, tmp_path / "curves.png", smoothing=1)
    success, tokens, _, entropy = figure.axes[:4]
    training, test = success.lines
    np.testing.assert_array_equal(training.get_xydata(), [[1, 0], [2, 0.5], [3, 1]])
    np.testing.assert_array_equal(test.get_xydata(), [[3, 0.5]])
    np.testing.assert_array_equal(tokens.lines[0].get_xydata(), [[900, 0.5]])
    band = tokens.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.4, 0.7)
    np.testing.assert_array_equal(entropy.lines[0].get_xydata(), [[1, 1], [3, 1]])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_several_runs_are_labelled_by_workdir(tmp_path):
    figure = plot_curves([write_run(tmp_path / "patr"), write_run(tmp_path / "grpo")])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["patr", "grpo"]


def test_what_no_run_recorded_is_said_to_be_missing(tmp_path):
    workdir = write_run(tmp_path / "one")
    said = [[text.get_text() for text in axes.texts] for axes in plot_curves(workdir).axes[:4]]
    assert said == [[], [], ["not recorded"], []]


def test_workdir_without_metrics_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl does not exist"):
        read_run(tmp_path)


def test_rows_of_a_report():
    assert evaluation_rows(REPORT) == [
        ("step", "70"),
        ("success rate", "81.2%"),
        ("95% interval over tasks", "75.0% to 87.5%"),
        ("pass@4", "90.0%"),
        ("response tokens", "412.3"),
        ("turns", "4.57"),
        ("tasks x samples", "100 x 4"),
        ("errors left out", "1"),
        ("temperature", "1"),
        ("2x2 (13 tasks)", "100.0%"),
        ("10x10 (87 tasks)", "80.0%"),
    ]


def test_pass_at_fewer_samples_is_named_so():
    assert ("pass@2", "90.0%") in evaluation_rows({**REPORT, "samples": 2})


def test_terminal_and_markdown_tables_hold_the_rows():
    table = evaluation_table(REPORT)
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == evaluation_rows(REPORT)
    lines = to_markdown(REPORT).splitlines()
    assert lines[:3] == ["| evaluation | value |", "|:--|--:|", "| step | 70 |"]
    assert len(lines) == 2 + len(evaluation_rows(REPORT))
