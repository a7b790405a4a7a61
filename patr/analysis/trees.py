"""A rollout tree as a picture: what was tried, scored, expanded and pruned."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path as FilePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from patr.envs.grid_paths import find_cell
from patr.types import Branch, Decision, Path, Status, Tree, Turn

COLORS = {
    "start": "#4d4d4d",
    "turn": "#b5b5b5",
    "expanded": "#0072b2",
    "survived": "#e69f00",
    "pruned": "#7b3294",
    "success": "#1a9850",
    "failure": "#d73027",
    "error": "#000000",
}
_CELLS = {"S": "#f4f8fb", "F": "#dfeaf3", "H": "#44546a", "G": "#8fd19e"}
_WALKER = "#c05a00"
_SIDE = 0.68  # of a grid, in turns
_FRAME = 0.1


@dataclasses.dataclass(frozen=True)
class Node:
    """A turn, or the start, as it is placed. Children of a fork are linked to the fork's node."""

    path: Path
    x: float  # turns from the root; half a turn on for a branch that took none
    y: float  # rows from the top
    kind: str  # a key of COLORS
    text: str = ""  # what the checkpoint saw
    parent: tuple[float, float] | None = None
    way: tuple[tuple[int, int], ...] = ()  # row and column from the start on, where a grid is drawn


def pick_trees(trees: Iterable[Tree], count: int = 1) -> list[Tree]:
    """The trees most worth a look: mixed rewards before equal ones, then most decisions, then the order given."""
    return sorted(trees, key=lambda tree: (not _mixed(tree), -len(tree.decisions)))[:count]


def draw_tree(tree: Tree, path: str | FilePath | None = None) -> Figure:
    """The tree from left to right, one node a turn; saved as an image if a path is given.

    Numbers are process scores at checkpoints. Where turns carry a grid in `info` (map, row, column) it is drawn at
    the start, at forks and at the ends of branches, with the way walked so far.
    """
    nodes = layout(tree)
    grid = _grid(tree)
    inches = 0.85 if grid else 0.5
    columns, rows = max(node.x for node in nodes) + 1.2, max(node.y for node in nodes) + 1.3
    figure = Figure(figsize=(max(6.0, columns * inches), rows * inches + 0.95))
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0.4 / height, columns * inches / width, rows * inches / height))
    axes.set_xlim(-0.6, columns - 0.6)
    axes.set_ylim(rows - 0.65, -0.65)
    for node in nodes:
        if node.parent:
            _draw_edge(axes, node)
    for kind in COLORS:
        _draw_nodes(axes, [node for node in nodes if node.kind == kind], inches)
    for node in nodes:
        if node.way:
            _draw_grid(axes, node, grid)
        radius = (_SIDE + _FRAME) / 2 if node.way else 0.12
        axes.annotate(
            node.text, (node.x, node.y - radius), xytext=(0, 1.5), textcoords="offset points",
            ha="center", va="bottom", fontsize=7, color=COLORS[node.kind], zorder=5,
        )  # fmt: skip
    _draw_surroundings(figure, axes, tree, nodes)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def layout(tree: Tree) -> list[Node]:
    """Every node, the start first, parents before children. Leaves fill the rows in path order."""
    rows = _rows(tree)
    decisions = {(decision.path, decision.turn): decision for decision in tree.decisions}
    ends = {(): (0.0, _middle(rows, (), tree))}
    grid = _grid(tree)
    nodes = [Node((), *ends[()], kind="start", way=_way(grid, ()))]
    for branch in tree.branches:
        y, parent = rows[branch.path], ends[branch.path[:-1]]
        walk = tree.lineage_turns(branch.path)
        inherited = len(walk) - len(branch.turns)
        for turn in range(inherited + 1, len(walk)):
            decision = decisions.get((branch.path, turn))
            kind = "survived" if decision else "turn"
            nodes.append(Node(branch.path, turn, y, kind, _text(decision), parent))
            parent = (turn, y)
        x = len(walk) if branch.turns else inherited + 0.5
        decision = decisions.get((branch.path, len(walk))) if branch.turns else None
        nodes.append(Node(branch.path, x, y, _end_kind(branch), _text(decision), parent, _way(grid, walk)))
        ends[branch.path] = (x, y)
    return nodes


def _mixed(tree: Tree) -> bool:
    return len({leaf.reward for leaf in tree.leaves()}) > 1


def _rows(tree: Tree) -> dict[Path, float]:
    leaves = sorted(branch.path for branch in tree.branches if branch.is_leaf)
    rows = {path: float(row) for row, path in enumerate(leaves)}
    for branch in reversed(tree.branches):
        if not branch.is_leaf:
            rows[branch.path] = _middle(rows, branch.path, tree)
    return rows


def _middle(rows: dict[Path, float], parent: Path, tree: Tree) -> float:
    return float(np.mean([rows[branch.path] for branch in tree.branches if branch.path[:-1] == parent]))


def _end_kind(branch: Branch) -> str:
    if branch.status in (Status.EXPANDED, Status.PRUNED, Status.ERROR):
        return branch.status.value
    return "success" if branch.reward >= 1 else "failure"


def _text(decision: Decision | None) -> str:
    if decision is None:
        return ""
    if decision.score is None:
        return decision.rule
    return f"{decision.score:.2f} repeat" if decision.rule == "repeat" else f"{decision.score:.2f}"


def _grid(tree: Tree) -> tuple[str, ...]:
    """The rows of the map the turns carry; none if they carry no map."""
    info = next((branch.turns[0].info for branch in tree.branches if branch.turns), {})
    return tuple(info["map"]) if {"map", "row", "column"} <= set(info) else ()


def _way(grid: tuple[str, ...], walk: Sequence[Turn]) -> tuple[tuple[int, int], ...]:
    return (find_cell(grid, "S"), *((turn.info["row"], turn.info["column"]) for turn in walk)) if grid else ()


def _draw_edge(axes: Axes, node: Node) -> None:
    (x, y), bend = node.parent, (node.parent[0] + node.x) / 2
    curve = Curve([(x, y), (bend, y), (bend, node.y), (node.x, node.y)], [Curve.MOVETO] + [Curve.CURVE4] * 3)
    axes.add_patch(PathPatch(curve, facecolor="none", edgecolor="#999999", linewidth=1.1, zorder=1))


def _draw_nodes(axes: Axes, nodes: list[Node], inches: float) -> None:
    """One artist a kind. Under a grid the node is a square that shows as its frame."""
    if not nodes:
        return
    kind = nodes[0].kind
    points = 72 * inches * (_SIDE + _FRAME)
    for marker, size, group in (
        ("s", points**2, [node for node in nodes if node.way]),
        ("o", 28 if kind == "turn" else 60, [node for node in nodes if not node.way]),
    ):
        if group:
            axes.scatter(
                [n.x for n in group], [n.y for n in group], s=size, marker=marker, color=COLORS[kind],
                linewidths=0, zorder=2, label=kind,
            )  # fmt: skip


def _draw_grid(axes: Axes, node: Node, grid: tuple[str, ...]) -> None:
    cell = _SIDE / max(len(grid), len(grid[0]))
    left, top = node.x - cell * len(grid[0]) / 2, node.y - cell * len(grid) / 2
    pixels = np.array([[to_rgb(_CELLS[letter]) for letter in letters] for letters in grid])
    extent = (left, left + cell * len(grid[0]), top + cell * len(grid), top)
    axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto", zorder=3)
    x, y = zip(*((left + cell * (column + 0.5), top + cell * (row + 0.5)) for row, column in node.way), strict=True)
    axes.plot(x, y, color=_WALKER, linewidth=1, zorder=4)
    axes.plot(x[-1], y[-1], color=_WALKER, marker="o", markersize=min(4.5, 30 * cell), zorder=4)


def _draw_surroundings(figure: Figure, axes: Axes, tree: Tree, nodes: list[Node]) -> None:
    axes.set_yticks([])
    axes.set_xticks(range(int(max(node.x for node in nodes)) + 1))
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlabel("turn", fontsize=8, labelpad=1)
    axes.spines[:].set_visible(False)
    figure.text(0.015, 1 - 0.1 / figure.get_figheight(), f"{tree.task.id}   {tree.method}", va="top", fontsize=9)
    kinds = [kind for kind in COLORS if any(node.kind == kind for node in nodes)]
    handles = [Line2D([], [], marker="o", linestyle="", color=COLORS[kind], label=kind) for kind in kinds]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, 1 - 0.25 / figure.get_figheight()), ncols=len(handles),
        frameon=False, fontsize=8, handletextpad=0.1, columnspacing=1.0,
    )  # fmt: skip
