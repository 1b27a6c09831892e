"""Does a part of your own keep fedkin's promises? The contract suite, as scikit-learn's `check_estimator`.

>>> from fedkin.algorithms import FedAvg
>>> check_algorithm(FedAvg, only=["the parameters validate and round-trip"])

A check that fails raises an AssertionError which names the part and the promise it broke.
"""

from fedkin.testing.algorithms import (
    ALGORITHM_PROMISES,
    Expected,
    Trial,
    check_algorithm,
    parameter_changes_the_result,
)
from fedkin.testing.denoisers import check_denoiser
from fedkin.testing.federations import uneven_federation
from fedkin.testing.graphs import check_graph_builder

__all__ = [
    "ALGORITHM_PROMISES",
    "Expected",
    "Trial",
    "check_algorithm",
    "check_denoiser",
    "check_graph_builder",
    "parameter_changes_the_result",
    "uneven_federation",
]
