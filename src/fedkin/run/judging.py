"""What clients deploy where nobody set samples aside to decide it: a further run says, from which a fold was held out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedkin.algorithm import Algorithm
from fedkin.clients import Clients
from fedkin.graphs import ClientGraph
from fedkin.roster import Roster
from fedkin.run.earlier import Earlier
from fedkin.run.options import Options

if TYPE_CHECKING:
    from fedkin.run.loop import Run

JUDGING_FOLDS = 5
"""One of so many parts of the training samples decides."""
MOST_JUDGED = 1500
"""With more clients than this it is done on request."""
BESIDE = ".fold"
"""Where rows are kept in a file, those of the further run are in a file of this ending, which goes with it."""

Held = Callable[[], tuple[Roster, Clients]]
"""The same clients, each on what it has outside of a fold, with that fold to validate on, named as in `federation.folds`."""


def is_wanted(roster: Roster, algorithm: Algorithm, options: Options, earlier: Earlier | None = None) -> bool:
    """Whether a further run decides: where the user asks for it, or by default where it can be and is no burden.

    It is the same on every engine, and so are the numbers.
    """
    if algorithm.deploys != "validated" or roster.validation.any():
        return False
    if options.validation != "auto":
        return options.validation == "fold"
    return len(roster) <= MOST_JUDGED and algorithm.privacy is None and earlier is None


def judge_of(run: Run, held: Held) -> Run:
    """The run again, as many rounds as it had, over the same graph, of clients that hold out a fold."""
    roster, clients = held()
    rounds, graph, path = run.state.round, run.setting.graph, run.options.rows_file
    quiet: dict[str, Any] = {
        "rounds": rounds,
        "validation": "given",
        "eval_every": max(1, rounds),
        "global_test": False,
        "rows_file": None if path is None else f"{path}{BESIDE}",
    }
    over = None if graph is None else ClientGraph(graph.adjacency, roster.names)
    options = run.options.model_copy(update=quiet)
    with warnings.catch_warnings(action="ignore"):  # what there is to say of the clients was said of the run
        return type(run)(roster, clients, run.setting.model, run.algorithm, options, over)


def judged(run: Run) -> Run:
    """The further run, over; its files are gone."""
    assert run.judging is not None
    run.close()  # an engine's processes may be all there are
    judge = run.judging()
    try:
        judge.run()
    finally:
        if judge.memory is not None:
            judge.memory.discard()
    return judge
