"""fedkin predict: what clients' models say about new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkin.commands import flags


def predict(
    run: Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN", show_default=False)],
    table: Annotated[
        Path, typer.Argument(help="rows to predict (CSV, Excel or Parquet)", metavar="DATA.csv", show_default=False)
    ],
    client: Annotated[
        str | None, typer.Option("--client", help="whose model", metavar="NAME", show_default=False)
    ] = None,
    client_column: Annotated[
        str | None,
        typer.Option("--client-column", help="score each row by the model of the client named here", metavar="COLUMN"),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="keep this column in front (default: the run's)", metavar="COLUMN")
    ] = None,
    sep: Annotated[str | None, typer.Option("--sep", help="the separator of a CSV file (default: the run's)")] = None,
    encoding: Annotated[str | None, typer.Option("--encoding", help="of a CSV file (default: the run's)")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="write here instead of standard output", metavar="FILE.csv")
    ] = None,
    json: flags.Json = None,
) -> None:
    """Predict with the models that clients deploy; a CSV with one line per row and the probability of every class.

    \b
    Examples:
      fedkin predict runs/visits-fedpnp-seed0 --client site-3 new.csv
      fedkin predict runs/visits-fedpnp-seed0 --client-column site new.csv
    """
    import sys

    from fedkin.files import write_atomic, write_json
    from fedkin.result.predict import predict_file

    found = predict_file(run, client, table, client_column, id, sep, encoding)
    if out is not None:
        write_atomic(out, found.to_csv(index=False).encode())
    elif json is None:
        sys.stdout.write(found.to_csv(index=False))
    if json is not None:
        rows = found.astype(object).where(found.notna(), None).to_dict(orient="records")
        write_json(json, {"run": str(run), "columns": list(found.columns), "rows": rows})
