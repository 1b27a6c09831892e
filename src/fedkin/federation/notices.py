"""What a reader should know of a table before trusting what was learned from it, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.columns import has_leading_zeros, is_number
from fedkin.federation.faults import has_decimal_commas, quoted
from fedkin.federation.federation import Federation
from fedkin.task.task import RARE

if TYPE_CHECKING:
    import pandas as pd

FEW_NUMBERS = 5
"""A column with more different numbers than texts, and with more than so many, was meant to hold numbers."""
FEW_VALUES = 20
"""So many different whole numbers may be classes."""
FAR_TARGET, FAR_INPUT = 30, 1000
"""Beyond these numbers of a user's own arrays are remarked on."""
SENTINELS = (-99999, -9999, -999, -99, -9, 99, 999, 9999, 99999)


def target_kind(values: pd.Series, target: str, asked: Any) -> tuple[Any, np.ndarray, tuple[str, ...]]:
    """What kind of task a target column defines, its values, and what was guessed in doing so."""
    targets, notes = values.to_numpy(), []
    if targets.dtype.kind == "O" and not is_number(values):
        targets = np.array([str(v) for v in targets]) if set(map(type, targets)) == {str} else targets
    if values.dtype.kind == "M":
        raise FedkinError(f"target column {target!r} holds dates; make them numbers (days until …) or classes first")
    numbers = is_number(values) and values.dtype.kind != "b"
    if numbers and targets.dtype.kind == "O":  # pandas' own nullable numbers
        targets = values.to_numpy(dtype=float)
    distinct = np.unique(targets) if numbers else np.zeros(0)
    whole = numbers and bool((np.mod(distinct, 1) == 0).all())
    if asked in (None, "classification") and whole and targets.dtype.kind == "f" and (asked or len(distinct) == 2):
        targets = targets.astype(np.int64)
        if asked is None:
            a, b = distinct.astype(int)
            notes.append(
                f"target {target!r} holds only {a} and {b}: treated as classes (--task regression: as a number)"
            )
    elif asked is None and targets.dtype.kind in "iu" and len(distinct) > 2:
        how = "classes" if len(distinct) <= FEW_VALUES else "classes, which is rarely meant"
        notes.append(
            f"target {target!r} holds {len(distinct)} different whole numbers: treated as {how} (--task regression: as a number)"
        )
    return asked or ("regression" if targets.dtype.kind == "f" else "classification"), targets, tuple(notes)


def of_inputs(inputs: Mapping[str, pd.Series], dates: Sequence[str]) -> list[str]:
    """Constants, identifiers and sentinels among the training cells of the inputs."""
    return [note for name, values in inputs.items() if name not in dates for note in _of_input(name, values.dropna())]


def _of_input(name: str, known: pd.Series) -> Iterator[str]:
    distinct = known.nunique()
    if len(known) and distinct == 1:
        yield f"column {name!r} is constant in all training rows and says nothing; --drop it"
    elif distinct == len(known) > FEW_VALUES and known.dtype.kind != "f":
        yield f"column {name!r} differs in every training row: an identifier? --id or --drop it"
    number = is_number(known)
    if known.dtype.kind not in "mMb" and not number:
        yield from _of_texts(name, known.astype(str))
    if number:
        numbers = known.to_numpy(dtype=float)
        for value in map(int, np.intersect1d(numbers, SENTINELS)):
            if _inflates(numbers, value):
                rest = known[known != value].std(ddof=0)
                yield (
                    f"column {name!r}: {value} occurs {int((known == value).sum())} times and makes its deviation "
                    f"{known.std(ddof=0):.3g} instead of {rest:.3g}; if it means missing: --missing {value}"
                )


def _of_texts(name: str, known: pd.Series) -> Iterator[str]:
    """Numbers that were taken for texts, and texts that differ in case alone."""
    import pandas as pd

    texts = sorted(known.unique())
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").notna()
    wrong = [text for text, number in zip(texts, numbers) if not number]
    if wrong and has_decimal_commas(known):
        yield f"column {name!r}: its numbers have a decimal comma and are taken for {len(texts)} categories; --decimal ,"
    elif len(wrong) and numbers.sum() > max(FEW_NUMBERS, len(wrong)) and not has_leading_zeros(known):
        yield (
            f"column {name!r} holds numbers but for {quoted(wrong)}, and is taken for {len(texts)} categories; if that "
            f"means missing: --missing {quoted(wrong[:1])}"
        )
    yield from _alike(f"column {name!r}", texts)


def _alike(where: str, texts: Sequence[str]) -> Iterator[str]:
    for folded in dict.fromkeys(map(str.casefold, texts)):
        same = [text for text in texts if text.casefold() == folded]
        if len(same) > 1:
            yield f"{where}: {quoted(same)} differ in case only, and each counts for itself; write them alike"


def _inflates(numbers: np.ndarray, value: float) -> bool:
    """Whether a value that occurs more than once is farther from all others than these are from each other."""
    rest = numbers[numbers != value]
    if len(numbers) - len(rest) < 2 or len(rest) < 2:
        return False
    spread = float(rest.max() - rest.min())
    return spread > 0 and float(np.abs(rest - value).min()) > spread


def of_clients(federation: Federation, target: str) -> list[str]:
    """A rare class, and clients that hold one class only."""
    if not federation.task.classes:
        return []
    counts, classes = federation.label_counts(), federation.task.classes
    share, notes = counts.sum(axis=0) / counts.sum(), []
    if len(classes) == 2 and share.min() < RARE:
        rare = classes[int(share.argmin())]
        notes.append(
            f"target {target!r}: {100 * share.min():.1f} % of training rows are {rare!r}; always saying "
            f"{classes[int(share.argmax())]!r} is right in {100 * share.max():.1f} %, so judge by AUROC, not by accuracy"
        )
    notes += _alike(f"target {target!r}", sorted(label for label in classes if isinstance(label, str)))
    single = [name for name, held in zip(federation.names, (counts > 0).sum(axis=1)) if held == 1]
    if single:
        some = f"{len(single)} of {len(federation)} clients have" if len(single) > 1 else "one client has"
        notes.append(f"target {target!r}: {some} training rows of one class only: {quoted(single)}")
    return notes


def of_numbers(federation: Federation) -> list[str]:
    """Arrays taken as they are, whose numbers are so far from 0 and 1 that usual learning rates do not fit them."""
    said, stored, y = [], federation.train.stored, federation.train.y
    numbers = federation.task.estimator == "regressor" and federation.task.link == "identity"  # not counts
    if numbers and federation.task.scale is None and y.dtype.kind == "f" and len(y):
        centre, spread = float(y.mean()), float(y.std())
        if max(abs(centre), spread) > FAR_TARGET:
            said.append(
                f"targets have mean {centre:.4g} and standard deviation {spread:.4g}, which networks hardly reach: standardise them "
                "(Federation.from_frame does, and answers in their own units)"
            )
    if isinstance(stored, np.ndarray) and stored.dtype.kind == "f" and stored.ndim == 2 and stored.size:
        largest = max(float(stored.max()), -float(stored.min()))
        if largest > FAR_INPUT:
            said.append(
                f"inputs reach {largest:.4g}, where training may diverge: standardise them (Federation.from_frame does)"
            )
    return said
