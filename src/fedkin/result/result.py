"""Result: personal models, history, graph and influence of a finished run; saved and loaded without pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
import tomli_w
import torch
from torch import Tensor, nn

from fedkin import plugins
from fedkin.errors import FedkinError, unknown
from fedkin.files import FileBatch, Manifest, read_tensors, write_tensors
from fedkin.graphs import ClientGraph
from fedkin.graphs.directed import directed
from fedkin.models import ModelLike, ModelSpec
from fedkin.models.frozen import carrying, freeze
from fedkin.models.memory import with_memory
from fedkin.result.blended import BLENDED_SIZES, BLENDS, Blends
from fedkin.result.combined import CombinedModels, Parts
from fedkin.result.estimators_file import ESTIMATORS_FILE, SavedEstimators, estimators_to_bytes
from fedkin.result.frozen_file import FROZEN_HASH, read_frozen, write_frozen
from fedkin.result.history import History
from fedkin.result.stored import check_facts, check_tensors, read_config
from fedkin.result.summary import summarise, weighted_mean
from fedkin.task import Task

if TYPE_CHECKING:
    import pandas as pd

    from fedkin.federation import Federation

Metrics = dict[str, dict[str, list[float]]]


class Models(Mapping[str, nn.Module]):
    """The clients' models by name, each built when it is asked for: ready nn.Modules in evaluation mode.

    Their frozen tensors are one and the same memory: copy a module (`copy.deepcopy`) before you train these.
    """

    def __init__(self, names: tuple[str, ...], rows: Tensor, counters: Tensor, spec: ModelSpec | None) -> None:
        self.names, self.rows, self.counters, self.spec = names, rows, counters, spec

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> nn.Module:
        if name not in self._positions:
            raise unknown("client", name, self.names)
        if self.spec is None:
            raise FedkinError("the architecture is your own; load the result with fedkin.load(dir, model=…)")
        k = self._positions[name]
        return self.spec.module(self.rows[k], self.counters[k])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Models({len(self)} clients: {', '.join(self.names[:3])}{', …' if len(self) > 3 else ''})"


DENSE = 2000
"""Up to so many clients a (K, K) matrix is an array, beyond that it is sparse."""


@dataclass(frozen=True)
class Result:
    """What a run leaves behind."""

    names: tuple[str, ...]
    task: Task
    sizes: np.ndarray
    """Training samples per client, (K,)."""
    server_rows: Tensor
    """Each client's row as the last round left it on the server side, (K, B)."""
    models: Mapping[str, Any]
    """What each client would deploy, by client name."""
    choice: tuple[str, ...]
    """Which model each client deploys: "received" or "trained"."""
    metrics: Metrics
    """Final metrics: "pre", "post" and "deployed" → metric name (such as "test_accuracy") → one value per client."""
    history: History
    config: Mapping[str, Any]
    graph: ClientGraph | None = None
    """The graph that was given or built; where there was none, the one that was learned."""
    raw_influence: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """What only some methods have to show: the traffic of every edge (`letters`), learned graphs (`learned_graph`)."""
    label_counts: np.ndarray | None = None
    """Training samples per client and class, (K, C), where clients disclosed them."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Timings, traffic and whatever else a program may want."""

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> np.ndarray:
        """Each client's row as the last round left it on the server side, (K, B)."""
        return self.server_rows.numpy()

    @property
    def algorithm(self) -> str:
        """The method's short name, also where the run was started with `package.module:Class`."""
        name = str(self.config["algorithm"]["name"])
        return str(self.facts.get("algorithm", name)) if plugins.is_path(name) else name

    @property
    def title(self) -> str:
        return str(self.facts.get("title", self.algorithm))

    @property
    def metric(self) -> str:
        return f"test_{self.task.metric}"

    @cached_property
    def influence(self) -> np.ndarray | None:
        """Who shaped whom, (K, K): entry (i, j) is the share of client j's updates in client i's model; rows sum to 1.

        None where it was not tracked (more than 1,500 clients, unless asked for).
        """
        if self.raw_influence is None:
            return None
        share = np.abs(self.raw_influence.numpy())
        total = share.sum(axis=1, keepdims=True)
        return np.where(total > 0, share / np.where(total > 0, total, 1), np.eye(len(share)))

    def summary(self, when: str = "deployed") -> dict[str, float]:
        """Mean, std, best and worst 5 % of the headline test metric over clients, and its mean over samples."""
        values = self.metrics[when][self.metric]
        counts = self.facts.get("test_sizes", np.ones(len(self.names)))
        return {**summarise(values, self.task.larger_is_better), "weighted": weighted_mean(values, counts)}

    @property
    def valued(self) -> int:
        """How many clients have a value of the headline metric: a test part of one class has no AUROC."""
        return int(np.isfinite(np.array(self.metrics["deployed"][self.metric], dtype=float)).sum())

    def table(self) -> pd.DataFrame:
        """One line per client: samples, the headline metric *pre*, *post* and as deployed, its own share of influence.

        A client without a value (AUROC where its test samples have one class) has `<NA>`, which means leave out.
        """
        from fedkin.result.tables import client_table

        return client_table(self)

    def letters(self) -> pd.DataFrame:
        """One line per edge and direction: source, target, and the messages and bytes that went along it."""
        from fedkin.result.tables import letter_table

        return letter_table(self)

    @property
    def kin(self) -> np.ndarray | sp.csr_array | None:
        """Who helps whom, (K, K): the directed weights A that kin or auto learned, rows sum to 1, sparse where there are more
        than 2,000 clients; None for other methods."""
        if "kin" in self.extras:
            return self.extras["kin"].numpy()
        if "kin_weights" not in self.extras:
            return None
        found = directed(self.extras["kin_peers"].numpy(), self.extras["kin_weights"].numpy())
        return found.toarray() if len(self.names) <= DENSE else found

    @property
    def auto(self) -> Mapping[str, Mapping[str, Any]]:
        """Per client, after `fedkin.auto`: the `members` of its model and their weights, `kept_alone`, and the `gain` in
        loss to expect (estimate, low, high)."""
        if "auto" not in self.facts:
            raise FedkinError(f"{self.title} combines no members; fedkin.auto does")
        found: Mapping[str, Mapping[str, Any]] = self.facts["auto"]
        return found

    @property
    def privacy(self) -> Mapping[str, float]:
        """The ε that every client has spent, by name; empty where the run was not private."""
        return dict(zip(self.names, self.extras["epsilon"].tolist())) if "epsilon" in self.extras else {}

    @property
    def learned_rounds(self) -> tuple[int, ...]:
        """The rounds whose learned graphs were kept: 1, 2, 4, 8, … and the last; none where the graph was given."""
        return tuple(self.extras["learned_rounds"].tolist()) if "learned_rounds" in self.extras else ()

    def learned_graph(self, round: int | None = None) -> ClientGraph:
        """The client graph that the method learned, after the last round or one of `learned_rounds`."""
        from fedkin.graphs.learned import snapshot

        if not self.learned_rounds:
            raise FedkinError(
                f"{self.title} learned no client graph here; fedska does, and sfl with structure='learned'"
            )
        return snapshot(self.extras["learned_graphs"], self.extras["learned_rounds"], self.names, round)

    def __repr__(self) -> str:
        rounds = self.history[-1]["round"] if len(self.history) else 0
        means = {when: self.summary(when)["mean"] for when in ("pre", "post")}
        numbers = " ".join(f"{when} {mean:.4f}" if np.isfinite(mean) else f"{when} –" for when, mean in means.items())
        return f"Result({self.title}, {len(self.names)} clients, {rounds} rounds, test {self.task.metric} {numbers})"

    def _repr_html_(self) -> str:
        from fedkin.result.tables import shown_in_notebook

        return shown_in_notebook(self)

    @property
    def plot(self) -> Any:
        """Figures as matplotlib axes: `result.plot.curves()`, `.graph()`, `.gains(alone)`, `.influence()`."""
        from fedkin.reports.figures import ResultPlots

        return ResultPlots(self)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page about this run."""
        from fedkin.reports.page import write_report

        return write_report([self], Path(path))

    def in_units(self, name: str) -> nn.Module:
        """A client's network that answers in the target's own units, where `models[name]` speaks of standardised targets.

        For estimators and for whole tables there is `fedkin.predict`.
        """
        from fedkin.result.export import InUnits

        model = self.models[name]
        if not isinstance(model, nn.Module):
            raise FedkinError(
                f"client {name!r} deploys a {type(model).__name__}; fedkin.predict tells its answers in units"
            )
        return model if self.task.scale is None else InUnits(model, self.task.scale)

    def export(self, directory: str | Path, format: Literal["onnx", "torch"] | None = None) -> Path:
        """Write each client's deployed model as safetensors with a JSON card; on request also as ONNX or torch.export."""
        from fedkin.result.export import export

        return export(self, directory, format)

    def join(
        self, federation: Federation, model: ModelLike | None = None, seed: int | None = None, name: str | None = None
    ) -> Result:
        """Models for newcomers of a run of `fedkin.auto`, without a round of the others (see `fedkin.join`)."""
        from fedkin.portfolio.join import join

        return join(self, federation, model, seed, name)

    def grown(self, joined: Result) -> Result:
        """This run with the newcomers that `join` gave models to among its clients, for those that come next."""
        from fedkin.portfolio.grown import grown

        return grown(self, joined)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path, after_piece: Callable[[], None] | None = None) -> Path:
        """Write config.toml, history.jsonl, result.safetensors (+ .json) and graph.npz into a directory.

        Large tensors are written piece by piece; `after_piece` is called after each.
        """
        out = Path(directory)
        out.mkdir(parents=True, exist_ok=True)
        tensors = {"rows": self.server_rows, "sizes": torch.from_numpy(np.asarray(self.sizes))}
        if isinstance(self.models, Models):
            tensors |= {"models": self.models.rows, "counters": self.models.counters}
        if self.raw_influence is not None:
            tensors["influence"] = self.raw_influence
        tensors |= {f"extra/{name}": value for name, value in self.extras.items()}
        if self.label_counts is not None:
            tensors["label_counts"] = torch.from_numpy(self.label_counts)
        facts = {
            "names": self.names,
            "task": self.task.told(),
            "choice": self.choice,
            "metrics": self.metrics,
            "notes": self.notes,
            "facts": self.facts,
        }
        with FileBatch(out) as batch:
            batch.write(out / "config.toml", tomli_w.dumps(dict(self.config)).encode())
            if self.graph is not None:
                batch.write(out / "graph.npz", self.graph.to_bytes())
            self.history.save(out / "history.jsonl", batch)
            networks = isinstance(self.models, Models | CombinedModels)
            estimators = self.models.fitted if isinstance(self.models, Blends) else self.models
            if not networks and (fitted := estimators_to_bytes(estimators)):
                batch.write(out / ESTIMATORS_FILE, fitted)
            write_frozen(out, getattr(self.models, "spec", None), batch)
            write_tensors(out / "result.safetensors", tensors, facts, after_piece, batch.write)
        return out


FILES = ("config.toml", ESTIMATORS_FILE, "frozen.json", "graph.npz", "history.jsonl", "result.json")


def load(directory: str | Path, model: ModelLike | None = None, accept_changes: bool = False) -> Result:
    """A saved result. `model` is needed to build nn.Modules when the architecture was the user's own.

    Reading a result imports no code that its files name: a model `package.module:function` must be given again.
    A directory whose files were changed since fedkin wrote them is refused, unless you say that you did it.
    """
    out = Path(directory)
    path = out / "result.safetensors"
    if not path.exists():
        begun = any((out / folder).exists() for folder in ("checkpoints", "members"))
        hint = f"; go on with: fedkin resume {out}" if begun else ""
        raise FedkinError(f"{out} holds no finished result (result.safetensors is missing){hint}")
    Manifest(out, accept_changes).refuse_changes(FILES, accept_changes)
    tensors, facts = read_tensors(path)
    try:
        check_facts(path.with_suffix(".json"), facts)
        names = tuple(facts["names"])
        graph = ClientGraph.load(out / "graph.npz").align(names) if (out / "graph.npz").exists() else None
        check_tensors(path, tensors, _axes(facts, graph))
        config, history = read_config(out), History.load(out / "history.jsonl", names)
        return _assembled(out, names, tensors, facts, config, history, model, graph)
    except FedkinError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, MemoryError) as problem:
        first = f"{type(problem).__name__}: {problem}".split("\n")[0]
        raise FedkinError(f"{out} does not hold what a run leaves behind ({first})") from problem


def _axes(facts: Mapping[str, Any], graph: ClientGraph | None) -> dict[str, int]:
    """How long the axes of a result's arrays are, as far as its other files tell (see `ARRAY_AXES`)."""
    peers = len(facts["facts"].get("peers", ()))
    axes = {"K": len(facts["names"]), "C": len(facts["task"]["classes"]), "P": peers, "J": peers + len(facts["names"])}
    return axes if graph is None else {**axes, "E": graph.adjacency.nnz}


def _assembled(
    out: Path,
    names: tuple[str, ...],
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    history: History,
    model: ModelLike | None,
    graph: ClientGraph | None,
) -> Result:
    task = Task.read(facts["task"])
    named = config["model"]["name"]
    chosen = model if model is not None else (None if named == "custom" or plugins.is_path(named) else named)
    with_rows = "models" in tensors or "extra/parts_rows" in tensors
    spec = None if chosen is None or not with_rows else ModelSpec.of(chosen, task, tensors["rows"].dtype)
    if spec is not None and "memory" in facts["facts"]:  # the method gave the network one (`Algorithm.remembers`)
        spec = with_memory(spec, task, *facts["facts"]["memory"])
    if spec is not None:
        spec = freeze(spec, config["run"].get("frozen", ()))
        if spec.layout.frozen:  # runs of earlier versions have it in their rows
            spec = read_frozen(out, spec) if FROZEN_HASH in config["model"] else carrying(spec)
    if spec is not None and "models" in tensors and tensors["models"].shape != (len(names), spec.layout.width):
        raise FedkinError(f"{out}: models of shape {tuple(tensors['models'].shape)} do not fit {named}")
    if spec is not None and "models" in tensors and tensors["counters"].shape[1] != len(spec.layout.counters):
        raise FedkinError(f"{out}: counters of shape {tuple(tensors['counters'].shape)} do not fit {named}")
    counts = tensors.get("label_counts")
    extras = {name.removeprefix("extra/"): value for name, value in tensors.items() if name.startswith("extra/")}
    parts = Parts.read(extras, len(names))
    models: Mapping[str, Any] = SavedEstimators(out, names)
    if BLENDS in extras:
        whose = (*facts["facts"].get("peers", ()), *names)
        sizes = extras.get(BLENDED_SIZES, tensors["sizes"]).numpy()  # runs of earlier versions have no newcomers
        models = Blends(names, whose, SavedEstimators(out, whose), extras[BLENDS], sizes, len(task.classes))
    elif parts is not None:
        models = CombinedModels(names, parts, spec, task.mixes_chances)
    elif "models" in tensors:
        models = Models(names, tensors["models"], tensors["counters"], spec)
    return Result(
        names=names,
        task=task,
        sizes=tensors["sizes"].numpy(),
        server_rows=tensors["rows"],
        models=models,
        choice=tuple(facts["choice"]),
        metrics=facts["metrics"],
        history=history,
        config=config,
        graph=graph,
        raw_influence=tensors.get("influence"),
        extras=extras,
        label_counts=None if counts is None else counts.numpy(),
        notes=tuple(facts["notes"]),
        facts=facts["facts"],
    )
