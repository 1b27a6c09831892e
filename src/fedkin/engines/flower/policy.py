"""What may leave a site, in its own words: [policy] in site.toml. The server's wishes do not change it.

[policy]
shared = true               # trained tensors that a method shares (rows, control variates, …)
metrics = true              # numbers about a client: losses, accuracies, norms, choices
curves = false              # points of each client's ROC and calibration curves on its test samples, for the report
statistics = "none"         # "noisy": with noise, as long as the budget lasts; "exact": as they are
epsilon = 1.0               # the budget of each client for noisy statistics, over all runs (sum of ε, sum of δ)
delta = 1e-5
training_epsilon = 6.0      # train only with privacy of level "sample", and within this ε in all runs together (default: the
                            # server's word); what clients spent is in ledger.jsonl, which the server cannot reset
columns = "none"            # ranges and texts of a raw table's columns, for `prepare`: "ranges", or "noisy" (half of the budget)
label_counts = false        # training samples per class (for some graphs, and class_weight = "balanced")
letters = ["predictions"]   # what clients may send to neighbours at other sites, through the server: "public" points, too, or
                            # "private", all that a method keeps private (whole models, where models travel along edges)
arrays = []                 # other arrays of a method, by name: "features", "gradient", …
disclose = false            # whole models, private tensors included, for the server to save
private = []                # tensors that leave in no case, by pattern: "classifier.*"

Every array that leaves is a line of audit.jsonl: time, kind, name, shape, dtype, bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.files import Lock, append, owner_only, write_json
from fedkin.models import Layout

SHARED = ("rows", "model", "counters", "control_change", "rho")
"""Arrays of trained tensors. (`model` has been rid of what is private, unless it may be disclosed.)"""
PER_MODEL = ("transfer", "metric", "metric_count")
"""One number per model tried, rather than one per client."""
SUMS = ("tempered", "sound", "held_out", "value", "slopes", "curvature", "gram")
"""Sums over a client's held-out samples, a few hundred numbers: what `fedkin.auto` weighs models by."""
CURVES_TOLD = ("roc", "calibration")
"""Points of curves; where `curves` does not allow them they say nothing (`no_curves`)."""
SPENT = "spent.json"
"""What every client has spent of its budget, beside site.toml."""


class Policy(BaseModel):
    """What may leave."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shared: bool = True
    metrics: bool = True
    curves: bool = False
    statistics: Literal["none", "noisy", "exact"] = "none"
    epsilon: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    training_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    columns: Literal["none", "noisy", "ranges"] = "none"
    label_counts: bool = False
    letters: list[str] = ["predictions"]
    arrays: list[str] = []
    disclose: bool = False
    private: list[str] = []

    # --- before a task is done ----------------------------------------------------------------------------------------

    def check_question(self, head: Mapping[str, Any], folder: Path) -> None:
        """Refuse what may not be answered; noisy statistics are paid for before they are drawn."""
        self._check_training(head.get("shared", {}))
        if head["task"] == "label_counts" and not self.label_counts:
            raise _refusal("label counts", "label_counts = true")
        if head["task"] != "statistics" or self.statistics == "exact":
            return
        shared = head.get("shared", {})
        if self.statistics == "none":
            raise _refusal("statistics of the inputs", 'statistics = "noisy" (or "exact")')
        if not shared:
            raise _refusal("statistics without noise", 'statistics = "exact"')
        with Lock(
            folder / f".{SPENT}.lock", f"{folder / SPENT}"
        ):  # two questions at once must not spend the same budget
            self._spend(list(head["clients"]), float(shared["epsilon"]), float(shared["delta"]), folder / SPENT)

    def _check_training(self, shared: Mapping[str, Any]) -> None:
        """Training as private as this site wants it, with noise that the server cannot draw again."""
        privacy = shared["sgd"].get("privacy") if isinstance(shared.get("sgd"), Mapping) else None
        if privacy is not None and privacy.get("insecure_noise_seed") is not None:
            raise FedkinError("this site draws its own noise; the server may not name a seed for it")
        limit = self.training_epsilon
        if limit is None or "sgd" not in shared:
            return
        if privacy is None or privacy.get("level") != "sample":
            raise _refusal("what was trained without privacy of samples", "nothing of training_epsilon")
        if not float(privacy["epsilon"]) <= limit or not float(privacy["delta"]) <= self.delta:
            raise FedkinError(
                f"the server asks for training with ε = {float(privacy['epsilon']):g}, δ = {float(privacy['delta']):g}; this site "
                f"allows {limit:g} and {self.delta:g} (training_epsilon, delta in [policy])"
            )

    def _spend(self, clients: list[str], epsilon: float, delta: float, path: Path) -> None:
        """Take (ε, δ) from every client's budget. Answers add up (basic composition): Σ ε ≤ epsilon, Σ δ ≤ delta."""
        if not (epsilon > 0 and delta > 0):
            raise FedkinError("the server asks for noise of no ε or no δ above 0")
        spent = json.loads(path.read_text()) if path.exists() else {}
        for name in clients:
            before = spent.get(name, [0.0, 0.0])
            after = [before[0] + epsilon, before[1] + delta]
            if after[0] > self.epsilon * (1 + 1e-9) or after[1] > self.delta * (1 + 1e-9):
                raise FedkinError(
                    f"client {name!r} has spent ε = {before[0]:g}, δ = {before[1]:g} of its budget ({self.epsilon:g}, "
                    f"{self.delta:g}); another ε = {epsilon:g}, δ = {delta:g} is too much (epsilon, delta in [policy])"
                )
            spent[name] = after
        write_json(path, spent)

    def check_columns(self) -> None:
        """Whether anything of a raw table's columns may be told."""
        if self.columns == "none":
            raise _refusal("ranges and texts of columns", 'columns = "ranges" (or "noisy")')

    def spend_on_columns(self, client: str, folder: Path) -> tuple[float, float]:
        """Half of the budget, (ε, δ), for ranges and texts with noise."""
        with Lock(folder / f".{SPENT}.lock", f"{folder / SPENT}"):
            self._spend([client], self.epsilon / 2, self.delta / 2, folder / SPENT)
        return self.epsilon / 2, self.delta / 2

    def check_letter(self, letter: str) -> None:
        """Whether clients may send this private state to neighbours at other sites."""
        if letter not in self.letters:
            raise _refusal(f"letters {letter!r}", f"letters = [{letter!r}]")

    # --- before an array leaves ---------------------------------------------------------------------------------------

    def check_arrays(self, arrays: Mapping[str, Tensor], head: Mapping[str, Any], layout: Layout) -> None:
        """Refuse an answer that holds an array which may not leave."""
        for name, value in arrays.items():
            if name in self.arrays or (name in ("statistics", "label_counts") and head["task"] == name):
                continue
            if name in SHARED:
                if not self.shared:
                    raise _refusal(f"the trained tensors {name!r}", "shared = true")
                self._check_columns(name, value, head, layout)
            elif value.ndim == 1 or name in (*PER_MODEL, *SUMS, *CURVES_TOLD):
                if not self.metrics:
                    raise _refusal(f"the numbers {name!r}", "metrics = true")
            else:
                raise _refusal(f"the array {name!r}", f"arrays = [{name!r}]")

    def _check_columns(self, name: str, value: Tensor, head: Mapping[str, Any], layout: Layout) -> None:
        """Rows have the columns that the question leaves shared, and none of a tensor that this site keeps private."""
        kept = {*head.get("shared", {}).get("private", ()), *head.get("shared", {}).get("home", ())}
        if name == "rows" and value.shape[1:] != (layout.width - int(layout.mask(tuple(kept)).sum()),):
            raise FedkinError(
                f"the task gives rows of shape {tuple(value.shape[1:])}, which are not the shared tensors"
            )
        named = {slot.name for slot in layout.slots if any(fnmatchcase(slot.name, one) for one in self.private)}
        if named - kept or (named and name not in ("rows", "model", "counters")):
            told = min(named - kept or named)
            raise FedkinError(
                f"tensor {told!r} is private at this site (private in [policy]), but {name!r} would hold it"
            )


def _refusal(what: str, fix: str) -> FedkinError:
    return FedkinError(f"this site's policy does not let {what} leave; its site.toml may say {fix} under [policy]")


# --- the site's own disk ----------------------------------------------------------------------------------------------


def write_down(path: Path, question: Message, answer: Message) -> None:
    """A line for every array of an answer, before it leaves, and one for a head that tells of the data."""
    head, text = question.head, json.dumps(answer.head, default=str)
    what = head.get("task") or head.get("letter")
    kind = f"{head['kind']} {what}" if what else str(head["kind"])
    common = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "run": head.get("run"), "kind": kind}
    lines: list[dict[str, Any]] = [
        {**common, "name": "head", "shape": [], "dtype": "json", "bytes": len(text.encode())}
    ]
    for name, value in answer.tensors.items():
        size = value.numel() * value.element_size()
        told = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), "bytes": size}
        lines.append({**common, "name": name.removeprefix("array/"), **told})
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with owner_only():
        append(path, [content])
