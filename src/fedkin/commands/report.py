"""fedkin report: one self-contained HTML page about runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedkin.commands import flags


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="folders of runs or comparisons", metavar="RUN...", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="the page to write", metavar="FILE.html")] = Path("report.html"),
    json: flags.Json = None,
) -> None:
    """Write an HTML page about one or more runs.

    \b
    Examples:
      fedkin report runs/digits-fedavg-seed0
      fedkin report fedkin-demo --out page.html
    """
    from fedkin.commands import show
    from fedkin.files import write_json
    from fedkin.reports.page import write_report
    from fedkin.result import load
    from fedkin.result.records import run_record

    results = [load(folder) for folder in find_runs(runs)]
    with show.working("drawing …"):
        page = write_report(results, out)
    if json is not None:
        write_json(json, {"report": str(page), "runs": [run_record(result) for result in results]})
    show.wrote(json)
    show.wrote(page)


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among these, or inside them."""
    from fedkin.errors import FedkinError

    found: list[Path] = []
    for folder in folders:
        inside = [path.parent for path in sorted(folder.glob("*/result.safetensors"))]
        if not folder.is_dir():
            raise FedkinError(f"{folder} is not a folder; give the folder of a run (it holds result.safetensors)")
        if (folder / "config.toml").exists() or not inside:
            inside = [folder]
        found += inside
    return found
