"""What a reader should know of a run before trusting its numbers, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.clients import Replies
from fedkin.result.history import History
from fedkin.roster import Roster
from fedkin.run.callbacks import Callback, EarlyStop

ROUNDS = 5
"""So many rounds must have been trained before a loss that did not fall is told."""
TESTED_SAMPLES = 10
"""On fewer test samples than this, one class may be predicted by chance."""


def notices(roster: Roster, history: History, callbacks: Sequence[Callback], single: Sequence[str]) -> tuple[str, ...]:
    """Early stopping without validation samples, a loss that did not fall, models that predict one class only (`single`)."""
    notes = []
    if any(isinstance(callback, EarlyStop) for callback in callbacks) and not roster.validation.any():
        notes.append(
            "early stopping watched the training loss: there are no validation samples (validation_fraction=0.2)"
        )
    losses = [float(record["log"]["train_loss"]) for record in history if record["log"].get("train_loss") is not None]
    if len(losses) >= ROUNDS and not min(losses[1:]) < losses[0]:
        notes.append(
            f"the training loss did not fall: {losses[0]:.4g} in the first round, {losses[-1]:.4g} in the last; "
            "try another learning rate"
        )
    if single:
        who = "all models predict" if len(single) == len(roster) else f"{len(single)} of {len(roster)} models predict"
        notes.append(
            f"{who} one class only on the test samples, first that of {single[0]!r}; accuracy says little here"
        )
    return tuple(notes)


def at_lower_rates(final: Mapping[str, Replies], names: Sequence[str]) -> tuple[str, ...]:
    """A line if clients trained at a lower rate than asked for (see `fedkin.local.steady`)."""
    replies = final["post"]
    if "halvings" not in replies.arrays:
        return ()
    times, since = (replies[name].cpu().numpy() for name in ("halvings", "halved_in"))
    some = np.flatnonzero(times)
    if not len(some):
        return ()
    first = some[np.argmin(since[some])]
    told = f"first {names[replies.ids[first]]!r} in round {since[first]}" if since[first] else "since an earlier run"
    return (
        f"{len(some)} of {len(names)} clients trained at a lower rate, down to 1/{2 ** int(times.max())} of the one given, at "
        f"which their training grew without bound ({told}); a lower lr would suit all",
    )


def single_class(roster: Roster, final: Mapping[str, Replies], trained: np.ndarray) -> list[str]:
    """The clients whose deployed model predicts a single class, although they have training samples of several.

    Clients with very few test samples are not counted.
    """
    said = np.full(len(roster), 2)
    for when, chosen in (("pre", ~trained), ("post", trained)):
        replies = final[when]
        if "test_distinct_count" in replies.arrays:
            mine = chosen[replies.ids]
            said[replies.ids[mine]] = np.where(
                replies["test_count"].cpu().numpy()[mine] >= TESTED_SAMPLES,
                replies["test_distinct_count"].cpu().numpy()[mine],
                2,
            )
    several = np.ones(len(roster), dtype=bool)
    if roster.label_counts is not None:
        several = (roster.label_counts > 0).sum(axis=1) > 1
    return [name for name, one in zip(roster.names, (said == 1) & several) if one]
