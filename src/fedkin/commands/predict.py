"""fedkin predict: what one client's model says about new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN", show_default=False)],
    table: Annotated[
        Path, typer.Argument(help="rows to predict (CSV or Parquet)", metavar="DATA.csv", show_default=False)
    ],
    client: Annotated[str, typer.Option("--client", help="whose model", metavar="NAME", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="write here instead of standard output", metavar="FILE.csv")
    ] = None,
) -> None:
    """Predict with the model a client deploys; a CSV with one line per row.

    \b
    Example:
      fedkin predict runs/visits-fedpnp-seed0 --client site-3 new.csv
    """
    import sys

    from fedkin.files import write_atomic
    from fedkin.result.predict import predict_file

    text = predict_file(run, client, table).to_csv(index=False)
    if out is None:
        sys.stdout.write(text)
    else:
        write_atomic(out, text.encode())
