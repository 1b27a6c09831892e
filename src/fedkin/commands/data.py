"""fedkin data list, info, prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.commands import flags

app = typer.Typer(help="Data sets: what there is, what is at hand, how to have it.")
DataSetName = Annotated[str, typer.Argument(help="the data set", show_default=False)]


@app.command("list")
def list_sets(json: flags.Json = None) -> None:
    """List the data sets.

    \b
    Examples:
      fedkin data list
      fedkin data list --json sets.json
    """
    from fedkin.commands import show
    from fedkin.data import catalogue
    from fedkin.files import write_json

    with show.warnings():
        entries = catalogue()
    found = show.table("name", "what", "size", "clients", "at hand")
    for column in found.columns[1:]:
        column.justify, column.no_wrap = "left", False
    for entry in entries:
        found.add_row(*(str(entry[key]) for key in ("name", "description", "size", "clients", "at_hand")))
    show.console().print(found)
    if json is not None:
        write_json(json, {"data": entries})
    show.wrote(json)


@app.command()
def info(
    name: DataSetName,
    clients: flags.NumClients = None,
    partition: flags.Partition = None,
    seed: flags.Seed = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="draw who holds what, and the map (.png, .svg, .pdf)", metavar="FILE.png", show_default=False
        ),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Say everything about a data set; with --clients, --partition or --plot, also who would hold what.

    \b
    Examples:
      fedkin data info digits
      fedkin data info digits --clients 20 --partition dirichlet:0.3 --seed 1
      fedkin data info fmi --plot stations.png
    """
    from fedkin import data
    from fedkin.commands import show
    from fedkin.files import write_json

    entry: dict[str, Any] = data.info(name)
    shown = {key: value for key, value in entry.items() if key not in ("sources", "notes", "options")}
    shown["options"] = ", ".join(f"{key}={value!r}" for key, value in entry["options"].items()) or "none of its own"
    screen = show.console()
    screen.print(show.facts(shown))
    for note in entry["notes"]:
        show.say(f"note: {note}")
    for source in entry["sources"]:
        for file in source["files"]:
            show.say(f"source {source['kind']}: {file['name']} {file['url'] or '(offline only)'} ({file['hash']})")
    if clients is not None or partition is not None or plot is not None:
        with show.working(f"loading {name} …"):
            federation = data.load(name, clients=clients, partition=partition, seed=seed or 0)
        show.say("", repr(federation))
        sizes = dict(zip(federation.names, federation.train.sizes.tolist()))
        entry["federation"] = {"clients": sizes, "notes": list(federation.notes)}
        classes = bool(federation.task.classes)
        counts = federation.label_counts() if classes else None
        if counts is not None:
            entry["federation"]["label_counts"] = dict(zip(federation.names, counts.tolist()))
        held = show.table("client", "training samples", *(["classes held"] if classes else []))
        for k, (client, size) in enumerate(list(sizes.items())[:40]):
            held.add_row(client, str(size), *([str(int((counts[k] > 0).sum()))] if counts is not None else []))
        screen.print(held)
        if plot is not None:
            from fedkin.reports.figures import write_pictures

            write_pictures(federation, plot)
    if json is not None:
        write_json(json, entry)
    show.wrote(json)
    show.wrote(plot)


@app.command()
def prepare(
    name: DataSetName,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--from", "--directory", help="a folder with the files (default: $FEDKIN_DATA)", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="read the files again")] = False,
    json: flags.Json = None,
) -> None:
    """Have a data set ready: read from a folder, or download, once.

    \b
    Examples:
      fedkin data prepare mnist
      fedkin data prepare har --from ~/downloads
    """
    from fedkin import data
    from fedkin.commands import show
    from fedkin.files import write_json

    with show.working(f"preparing {name} …"):
        folder = data.prepare(name, directory, force)
    show.say(f"{name} is embedded; nothing to prepare" if folder is None else f"{name} is ready in {folder}")
    if json is not None:
        write_json(json, {"name": name, "folder": None if folder is None else str(folder)})
    show.wrote(json)
