"""The progress of a search on standard error: which trial, how far, the best so far."""

from __future__ import annotations


class TrialBar:
    """A bar over all rounds of all trials; without a terminal it shows nothing."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown

    def __enter__(self) -> TrialBar:
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()
            left = TimeRemainingColumn(), TextColumn("{task.fields[best]}")
            self.progress = Progress(*columns, *left, console=Console(stderr=True))
            self.work = self.progress.add_task("trials", total=None, best="")
            self.progress.start()
        return self

    def __call__(self, number: int, trials: int, round: int, rounds: int, best: str) -> None:
        if self.shown:
            done, told = number * rounds + round, f"trial {number + 1} of {trials}"
            self.progress.update(self.work, description=told, total=trials * rounds, completed=done, best=best)

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.progress.stop()
