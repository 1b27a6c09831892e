"""A run as tables: one line per client, or per edge; as data frames, and as a notebook shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.notebook import html_table
from fedkin.result.summary import coverage

if TYPE_CHECKING:
    import pandas as pd

    from fedkin.result.result import Result

TIMES = ("pre", "post", "deployed")


def client_table(result: Result) -> pd.DataFrame:
    """See `Result.table`."""
    import pandas as pd

    columns: dict[str, Any] = {"samples": result.sizes}
    for when in TIMES:
        values = np.array(result.metrics[when][result.metric], dtype=float)
        columns[when] = pd.array(values, dtype="Float64") if np.isnan(values).any() else values
    columns["deploys"] = result.choice
    if result.influence is not None:
        columns["own share"] = np.diag(result.influence)
    return pd.DataFrame(columns, index=pd.Index(result.names, name="client"))


def letter_table(result: Result) -> pd.DataFrame:
    """See `Result.letters`."""
    import pandas as pd

    if result.graph is None or "edge_traffic" not in result.extras:
        raise FedkinError(f"{result.title}: no client wrote to another; traffic per edge is kept for dfedu")
    entries = result.graph.adjacency.tocoo()
    names = np.array(result.names, dtype=object)
    columns = {"source": names[entries.col], "target": names[entries.row]}
    messages, size = result.extras["edge_traffic"].numpy().T
    return pd.DataFrame({**columns, "messages": messages, "bytes": size})


def shown_in_notebook(result: Result) -> str:
    """The clients' table as HTML: the headline metric in its unit, a dash where a client has no value."""
    metric, share = result.task.headline_metric, result.influence
    head = ["client", "samples", *(f"{when}, {metric.heading}" for when in TIMES), "deploys"]
    rows = (
        [
            name,
            int(result.sizes[k]),
            *(metric.number(result.metrics[when][result.metric][k]) for when in TIMES),
            result.choice[k],
            *([] if share is None else [f"{100 * share[k, k]:.0f} %"]),
        ]
        for k, name in enumerate(result.names)
    )
    missing = coverage(metric.label, result.valued, len(result.names))
    notes = [metric.better, *([missing] if missing else []), *result.notes]
    return html_table(repr(result), [*head, *([] if share is None else ["own share"])], rows, notes)
