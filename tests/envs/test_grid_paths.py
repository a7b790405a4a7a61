"""Distances by hand, and the expert against them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patr.envs.frozen_lake_maps import generate_map
from patr.envs.grid_paths import MOVES, distances_to_goal, expert_action, find_cell

ROWS = ["SFHF", "FHFH", "FFGF"]


def test_distances_go_around_holes():
    assert distances_to_goal(ROWS) == ((4, 5, None, None), (3, None, 1, None), (2, 1, 0, 1))


def test_ties_go_to_the_first_of_left_down_right_up():
    assert expert_action(["SF", "FG"], 0, 0) == "down"
    assert expert_action(["GF", "FS"], 1, 1) == "left"
    assert expert_action(["FG", "SF"], 1, 0) == "right"


@pytest.mark.parametrize("cell", [(2, 2), (0, 2), (0, 3)])
def test_goal_holes_and_cut_off_cells_have_no_next_move(cell):
    with pytest.raises(ValueError, match="no next move"):
        expert_action(ROWS, *cell)


def test_a_map_without_goal_is_refused():
    with pytest.raises(ValueError, match="no 'G' cell"):
        distances_to_goal(["SF"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_the_expert_reaches_the_goal_in_as_many_moves_as_its_distance(seed, size):
    rows = generate_map(seed, size, 0.7)
    row, column = find_cell(rows, "S")
    for left in range(distances_to_goal(rows)[row][column], 0, -1):
        assert distances_to_goal(rows)[row][column] == left
        down, right = MOVES[expert_action(rows, row, column)]
        row, column = row + down, column + right
    assert rows[row][column] == "G"
