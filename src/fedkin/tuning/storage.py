"""Trials on disk: Optuna's own journal, JSON lines without pickle, one line per finished trial."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.errors import FedkinError

if TYPE_CHECKING:
    import optuna

JOURNAL = "trials.journal"
STUDY = "fedkin"


def need_optuna() -> None:
    """Optuna is an extra; it is quiet unless something is wrong."""
    try:
        import optuna
    except ImportError:
        raise FedkinError("tuning needs Optuna; install it: pip install 'fedkin[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


class KeptTrials:
    """The trials of a study: finished ones are kept in a folder, if there is one, and taken up again from there.

    The study that draws new trials lives in memory. A trial that was under way when the process ended has left no trace, and
    is drawn again as it was: its sampler depends on the seed, its number and the finished trials alone.
    """

    def __init__(self, out: Path | None, facts: Mapping[str, str]) -> None:
        self.out = out
        self.journal = None if out is None else self._open(out / JOURNAL, dict(facts))

    def _open(self, path: Path, facts: dict[str, str]) -> optuna.Study:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        with suppress(FileNotFoundError):  # Optuna's lock, left by a process that was killed; ours is held
            os.unlink(f"{path}.lock")
        try:
            storage = JournalStorage(JournalFileBackend(str(path)))
            study = optuna.create_study(storage=storage, study_name=STUDY, load_if_exists=True)
            known = study.user_attrs.get("settings")
            _ = study.trials
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as problem:
            raise FedkinError(f"{path} is damaged: {problem}; choose another folder, or remove it") from problem
        if known is None:
            study.set_user_attr("settings", facts)
        elif other := next((key for key in facts if known.get(key) != facts[key]), None):
            raise FedkinError(
                f"{path.parent} holds another search: its {other} differ ({known.get(other)}, here {facts[other]}); "
                "choose another folder"
            )
        return study

    def study(self, larger_is_better: bool, warm_up: int, first: int) -> optuna.Study:
        """A study in memory with the kept trials, whose pruner leaves the `warm_up` first rounds and `first` trials alone."""
        import optuna

        pruner = optuna.pruners.MedianPruner(first, warm_up)
        study = optuna.create_study(direction="maximize" if larger_is_better else "minimize", pruner=pruner)
        if self.journal is not None:
            study.add_trials(self.journal.trials)
        return study

    def sampler(self, seed: int, first: int) -> optuna.samplers.BaseSampler:
        import optuna

        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=first)

    def add(self, study: optuna.Study, trial: optuna.Trial, told: Mapping[str, Any]) -> None:
        """Finish a trial in the study, and keep it."""
        from optuna.trial import TrialState, create_trial

        states = {"complete": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
        state = states[str(told["state"])]
        for name, value in told.items():
            if name not in ("state", "value"):
                trial.set_user_attr(name, value)
        study.tell(trial, told.get("value"), state=state)
        if self.journal is not None:
            done = study.trials[trial.number]
            self.journal.add_trial(
                create_trial(
                    state=state,
                    value=told.get("value"),
                    params=done.params,
                    distributions=done.distributions,
                    user_attrs=done.user_attrs,
                    intermediate_values=done.intermediate_values,
                )
            )


def _mend(path: Path) -> None:
    """Cut off a last line that was not written to its end."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with open(path, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
