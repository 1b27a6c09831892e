"""fedkin privacy: what clients have spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkin.commands import flags


def privacy(
    folder: Annotated[
        Path, typer.Argument(help="a run's folder, or a ledger.jsonl", metavar="RUN", show_default=False)
    ],
    delta: Annotated[
        float | None, typer.Option("--delta", help="tell ε at this δ (default: the run's)", show_default=False)
    ] = None,
    json: flags.Json = None,
) -> None:
    """Show the ledger of a run: the ε that every client has spent, and of how much.

    A run that was killed has its ledger too: what is spent is written down before it is used.

    \b
    Examples:
      fedkin privacy runs/school-mrmtl-seed0
      fedkin privacy site/ledger.jsonl --delta 1e-5
    """
    from fedkin.commands import show
    from fedkin.errors import FedkinError
    from fedkin.files import write_json
    from fedkin.privacy.ledger import LEDGER, Ledger
    from fedkin.result.stored import read_config

    asked = {}
    path = folder
    if folder.is_dir():
        asked = dict(read_config(folder)["algorithm"].get("privacy", {}))
        if not asked:
            raise FedkinError(f"{folder} was trained without privacy; there is nothing to count")
        path = Path(asked.get("ledger", folder / LEDGER))
    if not path.exists():
        raise FedkinError(f"{path} is not there; give the folder of a private run, or its ledger.jsonl")
    at = asked.get("delta") if delta is None else delta
    if at is None or not 0 < at < 1:
        raise FedkinError("at which δ? give --delta, a number between 0 and 1, for example --delta 1e-5")
    spent = Ledger(path).spent(at)
    budget = asked.get("epsilon")
    if json is not None:
        write_json(json, {"delta": at, "budget": budget, "spent": spent})
        show.wrote(json)
    for level, clients in spent.items():
        whole = "" if budget is None else f" of {budget:g}"
        show.console().print(f"ε spent{whole} at δ = {at:g}, hiding one {level}", highlight=False)
        listed = show.table("client", "ε")
        told = {name: f"{epsilon:.4g}" for name, epsilon in clients.items()}
        for name in sorted(told, key=lambda name: (-float(told[name]), name)):
            listed.add_row(name, told[name])
        show.console().print(listed)
    if not spent:
        show.say("nothing is spent")
    if asked.get("insecure_noise_seed") is not None:
        show.say("the noise came from --insecure-noise-seed: this run protects nobody")
