"""Evaluation reports as tables for the terminal and for documents."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

Rows = list[tuple[str, str]]


def evaluation_table(report: Mapping[str, Any]) -> Table:
    """A report (`patr.evaluation.evaluate.Report.to_json()`, or a run's summary.json) for the terminal."""
    table = Table("", "value", title="Evaluation")
    table.columns[1].justify = "right"
    for name, value in evaluation_rows(report):
        table.add_row(name, value)
    return table


def to_markdown(report: Mapping[str, Any]) -> str:
    """The same table in Markdown."""
    rows = [("evaluation", "value"), *evaluation_rows(report)]
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join([lines[0], "|:--|--:|", *lines[1:]]) + "\n"


def evaluation_rows(report: Mapping[str, Any]) -> Rows:
    """Name and value of every row. Raises KeyError for a report that lacks a number."""
    low, high = report["success_interval"]
    rows = [
        ("step", str(report["step"])),
        ("success rate", _percent(report["success_rate"])),
        ("95% interval over tasks", f"{_percent(low)} to {_percent(high)}"),
        (f"pass@{min(4, report['samples'])}", _percent(report["pass_at_4"])),
        ("response tokens", f"{report['response_length']:.1f}"),
        ("turns", f"{report['turns']:.2f}"),
        ("tasks x samples", f"{report['tasks']} x {report['samples']}"),
        ("errors left out", str(report["errors"])),
        ("temperature", f"{report['temperature']:g}"),
    ]
    sizes = report["by_size"]
    for size in sorted(sizes, key=lambda size: (not size.isdecimal(), int(size) if size.isdecimal() else size)):
        tasks = sizes[size]["tasks"]
        rows.append((f"{_size_name(size)} ({tasks} tasks)", _percent(sizes[size]["success_rate"])))
    return rows


def _size_name(size: str) -> str:
    return f"{size}x{size}" if size.isdecimal() else size


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}%"
