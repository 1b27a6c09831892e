"""Callbacks: what else happens while a run goes on. Give them to `train(callbacks=[…])`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedkin.errors import FedkinError
from fedkin.files import append, write_atomic
from fedkin.result.history import Record

if TYPE_CHECKING:
    from fedkin.run import Run


class Callback:
    """Override what you need. `on_round` may return True to stop the run after this round."""

    def on_start(self, run: Run) -> None:
        """Before the first round (or the first after a resume)."""

    def on_round(self, run: Run, record: Record) -> bool | None:
        """After every round, with the round's record (see `History`)."""

    def on_end(self, run: Run) -> None:
        """After the last round, also when the run stops early or fails."""


class Call(Callback):
    """A plain function (run, record) → whether to stop, as a callback."""

    def __init__(self, function: Callable[[Run, Record], bool | None]) -> None:
        self.function = function

    def on_round(self, run: Run, record: Record) -> bool | None:
        return self.function(run, record) is True


def as_callbacks(given: Any) -> list[Callback]:
    """Callbacks as a user gives them: one or several, objects with on_start, on_round and on_end, or plain functions."""
    alone = isinstance(given, Callback) or callable(given)
    return [_as_callback(entry) for entry in ([given] if alone else list(given))]


def _as_callback(entry: Any) -> Callback:
    if isinstance(entry, Callback) or all(hasattr(entry, name) for name in ("on_start", "on_round", "on_end")):
        if not isinstance(entry, type):
            return cast(Callback, entry)
        raise FedkinError(f"callback {entry.__name__} is a class; make one: {entry.__name__}()")
    if not callable(entry) or isinstance(entry, type):
        raise FedkinError(f"callback {entry!r} is neither a fedkin.Callback nor a function (run, record)")
    try:
        signature(entry).bind(None, None)
    except TypeError:
        raise FedkinError(
            f"callback {getattr(entry, '__name__', entry)!r} must take two arguments: (run, record)"
        ) from None
    except ValueError:  # built-in functions tell nothing of their arguments
        pass
    return Call(entry)


def round_mean(record: Record, when: str, metric: str) -> float | None:
    """The mean over clients that have a value; None where nobody has."""
    values = np.array(record.get(when, {}).get(metric, ()), dtype=float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


class Progress(Callback):
    """A progress bar on the terminal (standard error), with the newest metrics."""

    def __init__(self, label: str = "") -> None:
        self.label = label

    def on_start(self, run: Run) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}"),
            console=Console(stderr=True),
        )
        label = self.label or run.algorithm.title
        self.bar.start()
        self.work = self.bar.add_task(label, total=run.options.rounds, completed=run.state.round, news="")

    def on_round(self, run: Run, record: Record) -> None:
        metric = run.setting.task.headline_metric
        means = {when: round_mean(record, when, f"test_{metric.key}") for when in ("pre", "post") if when in record}
        parts = [f"{when} {metric.amount(mean)}" for when, mean in means.items()]
        if run.setting.privacy is not None and "epsilon" in record["log"]:
            parts.append(f"ε {record['log']['epsilon']:.3g} of {run.setting.privacy.epsilon:g}")
        self.bar.update(self.work, completed=record["round"])
        if parts:
            self.bar.update(self.work, news=f"{metric.label} {' '.join(parts)}" if means else " ".join(parts))

    def on_end(self, run: Run) -> None:
        self.bar.stop()


def shows_progress(asked: bool | None = None) -> bool:
    """Whether to show a bar: as asked, and by default where somebody looks, at a terminal or in a notebook (that can show one)."""
    if asked is not None:
        return asked
    from importlib.util import find_spec

    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class CsvHistory(Callback):
    """Means of every evaluated round as a CSV file, one line each, written as the run goes on."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_start(self, run: Run) -> None:
        head = ["round", "seconds", "bytes", "train_loss", "when", "metric", "mean"]
        write_atomic(self.path, _lines([head, *(line for record in run.history for line in self._told(record))]))

    def on_round(self, run: Run, record: Record) -> None:
        append(self.path, [_lines(self._told(record))])

    def _told(self, record: Record) -> list[list[Any]]:
        head = [record["round"], record["seconds"], record["bytes"], record["log"].get("train_loss")]
        return [
            [*head, when, metric, round_mean(record, when, metric)]
            for when in ("pre", "post")
            for metric in record.get(when, {})
        ]


def _lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


class EarlyStop(Callback):
    """Stop when the mean validation loss has not improved for `patience` evaluated rounds.

    Without validation samples the mean training loss of the round is watched. Test samples are never used.
    """

    def __init__(self, patience: int = 5, min_delta: float = 0.0) -> None:
        if patience < 1:
            raise FedkinError(f"patience is {patience}; it must be at least 1")
        self.patience, self.min_delta = patience, min_delta

    def on_start(self, run: Run) -> None:
        self.best, self.waited = np.inf, 0

    def on_round(self, run: Run, record: Record) -> bool | None:
        if "pre" not in record:
            return None
        loss = round_mean(record, "post" if "post" in record else "pre", "validation_loss")
        if loss is None:
            loss = record["log"].get("train_loss")
        if loss is None:
            return None
        if loss < self.best - self.min_delta:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class Interrupt:
    """Ctrl-C once: `requested` turns true, and the round is finished and saved. Twice: stop at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        import signal
        import threading

        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        import signal

        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
