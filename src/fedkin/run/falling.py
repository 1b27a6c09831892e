"""Whether training was over when the rounds were: a note for those who compare methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEAST_ROUNDS = 10
SHARE = 0.1


def still_falling(history: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """A note if a tenth of the fall of the mean training loss, or more, came in the last fifth of the rounds.

    Losses of single rounds are noisy (cohorts, batches), so means over fifths of the rounds are compared: that of the last
    with the one before, as a share of the way from the first fifth to the last. None under ten rounds.
    """
    told = [record["log"].get("train_loss") for record in history]
    losses = [float(loss) for loss in told if loss is not None]
    fifth = len(losses) // 5
    if len(losses) < LEAST_ROUNDS:
        return ()
    first, before, last = (sum(part) / fifth for part in (losses[:fifth], losses[-2 * fifth : -fifth], losses[-fifth:]))
    if not first - last > 0 or before - last < SHARE * (first - last):
        return ()
    return (
        f"the training loss was still falling at the end ({before:.3g} to {last:.3g} over the last {fifth} rounds); more "
        "rounds, epochs or a larger rate may do better (range_test tries rates)",
    )
