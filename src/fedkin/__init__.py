"""fedkin: graph-structured personalised federated learning.

One model per client; clients that are alike help each other through a graph. Public names are imported on first use, so
that `import fedkin` costs nothing until training starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Federation": "fedkin.federation",
    "ClientGraph": "fedkin.graphs",
    "FedkinError": "fedkin.errors",
    "Result": "fedkin.result",
    "train": "fedkin.run",
    "resume": "fedkin.run",
    "load": "fedkin.result",
    "algorithms": "fedkin.algorithms",
    "couplings": "fedkin.couplings",
    "data": "fedkin.data",
    "graphs": "fedkin.graphs",
    "models": "fedkin.models",
    "theory": "fedkin.diagnostics.theory",
    "loss": "fedkin.task.losses",
    "metric": "fedkin.task.metrics",
}
__all__ = [
    "ClientGraph",
    "Federation",
    "FedkinError",
    "Result",
    "__version__",
    "algorithms",
    "couplings",
    "data",
    "graphs",
    "load",
    "loss",
    "metric",
    "models",
    "resume",
    "theory",
    "train",
]

if TYPE_CHECKING:
    from fedkin import algorithms, couplings, data, graphs, models
    from fedkin.diagnostics import theory
    from fedkin.errors import FedkinError
    from fedkin.federation import Federation
    from fedkin.graphs import ClientGraph
    from fedkin.result import Result, load
    from fedkin.run import resume, train
    from fedkin.task.losses import loss
    from fedkin.task.metrics import metric


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    return module if module.__name__.rpartition(".")[2] == name else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
