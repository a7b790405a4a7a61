"""Lower layers never import higher ones, and rollouts never import jax."""

import ast
from pathlib import Path

import patr

PACKAGE = Path(patr.__file__).parent
LAYERS = [
    {"types"},
    {"seeds", "records"},
    {"text", "envs", "models", "objectives"},
    {"batching", "samplers", "scorers"},
    {"rollouts"},
    {"testing"},
    {"evaluation"},
    {"training"},
    {"analysis", "benchmarks"},
]
# Text renders the environment's messages.
NEIGHBOURS = {("text", "envs")}
WITHOUT_JAX = {"types", "seeds", "records", "text", "envs", "scorers", "rollouts", "testing"}


def imports():
    """(package, imported module) of every import in patr."""
    for file in sorted(PACKAGE.rglob("*.py")):
        package = file.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module == "patr":
                names = [f"patr.{alias.name}" for alias in node.names]
            yield from ((package, name) for name in names)


def level(package):
    return next(i for i, layer in enumerate(LAYERS) if package in layer)


def test_imports_point_downwards():
    seen = 0
    for package, name in imports():
        if name.startswith("patr.") and package != "__init__":
            imported = name.split(".")[1]
            seen += 1
            if imported != package and (package, imported) not in NEIGHBOURS:
                assert level(imported) < level(package), f"patr.{package} imports {name}"
    assert seen > 100


def test_rollouts_know_nothing_of_jax():
    for package, name in imports():
        if package in WITHOUT_JAX:
            assert name.split(".")[0] not in ("jax", "flax", "optax"), f"patr.{package} imports {name}"
