"""fedkin runs: what is in a folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands import flags


def runs(
    folder: Annotated[Path, typer.Argument(help="a folder with runs in it", metavar="DIR")] = Path("runs"),
    json: flags.Json = None,
) -> None:
    """List runs: method, data, metric, when, and how to go on with those that are not finished.

    \b
    Examples:
      fedkin runs
      fedkin runs experiments --json runs.json
    """
    from fedkin.commands import show
    from fedkin.errors import FedkinError
    from fedkin.files import write_json

    if not folder.is_dir():
        raise FedkinError(f"{folder} is no folder; name one that holds runs: fedkin runs DIR")
    found = [run_facts(path.parent) for path in sorted(folder.rglob("config.toml"))]
    found.sort(key=lambda entry: str(entry.get("when", "")), reverse=True)
    if json is not None:
        write_json(json, {"runs": found})
        show.wrote(json)
    if not found:
        show.say(f"{folder} holds no runs; start one: fedkin run --data digits --clients 20")
        return
    listed = show.table("run", "method", "data", "metric", "rounds", "when")
    for entry in found:
        listed.add_row(*(str(entry.get(key, "–")) for key in ("run", "method", "data", "metric", "rounds", "when")))
    show.console().print(listed)
    for line in _what_next(found):
        show.say(line)


def run_facts(folder: Path) -> dict[str, Any]:
    """One run in plain words; what cannot be read is said under `problem`."""
    from fedkin.errors import FedkinError
    from fedkin.result import load
    from fedkin.result.stored import read_config

    entry: dict[str, Any] = {"run": str(folder)}
    try:
        config = read_config(folder)
        data = config["data"]
        entry |= {
            "method": config["algorithm"]["name"],
            "data": Path(data["path"]).name if "path" in data else data.get("name", "own"),
            "rounds": f"?/{config['run'].get('rounds', '?')}",
            "when": f"{datetime.fromtimestamp((folder / 'config.toml').stat().st_mtime):%Y-%m-%d %H:%M}",
        }
        if (folder / "result.safetensors").exists():
            result = load(folder)
            entry["metric"] = f"{result.task.metric} {result.summary()['mean']:.4f}"
            entry["rounds"] = f"{result.facts['rounds']}/{config['run']['rounds']}"
            entry["finished"] = bool(result.facts["finished"])
            return entry
    except (FedkinError, OSError, KeyError, TypeError) as problem:
        return entry | {"problem": str(problem)}
    return entry | {"finished": False} | _progress(folder, config)


def _progress(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    from fedkin.run.checkpoint import latest

    last = latest(folder)
    done = "0" if last is None else last.stem.partition("-")[2].lstrip("0") or "0"
    return {"rounds": f"{done}/{config['run'].get('rounds', '?')}", "resumable": last is not None}


def _what_next(found: list[dict[str, Any]]) -> Iterator[str]:
    for entry in found:
        if "problem" in entry:
            yield f"{entry['run']} cannot be read: {entry['problem']}"
        elif not entry["finished"]:
            can = entry.get("resumable", True)
            yield (
                f"go on with: fedkin resume {entry['run']}"
                if can
                else f"{entry['run']} has no checkpoint; start it again"
            )
