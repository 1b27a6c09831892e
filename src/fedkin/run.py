"""Run: the loop. Sample a cohort, do a round, evaluate, save, tell the callbacks. No maths lives here."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from fedkin import algorithms, checkpoint
from fedkin.algorithm import Algorithm, Setting, State
from fedkin.cadence import Saves, rounds_between_tests
from fedkin.callbacks import Callback, Interrupt
from fedkin.engines import connect
from fedkin.engines.clients import Clients, Replies, joined
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import OWN_FUNCTION, plain, versions, write_atomic
from fedkin.graphs import ClientGraph
from fedkin.graphs.build import build as build_graph
from fedkin.history import History, Record
from fedkin.models import ModelLike, rows_of
from fedkin.options import Options, make_options
from fedkin.result import Models, Result
from fedkin.roster import Roster
from fedkin.rows_file import RowMemory, slices
from fedkin.streams import Streams

INFLUENCE_LIMIT = 1500
"""Above this many clients the K×K influence matrix is kept only on request."""

ASK_LIMIT = 2**28
"""Rows of more bytes than this are evaluated some clients at a time, by methods that write over rows in place."""


class Run:
    """One method on one federation. `train` and `resume` are the usual ways to make one."""

    def __init__(
        self,
        federation: Federation | Roster,
        model: ModelLike,
        algorithm: Algorithm,
        options: Options,
        graph: ClientGraph | str | None = None,
        out: Path | None = None,
        callbacks: Sequence[Callback] = (),
        connect: Callable[..., Clients] = connect,
    ) -> None:
        self.federation, self.algorithm, self.options, self.out = federation, algorithm, options, out
        self.callbacks = list(callbacks)
        streams = Streams(options.seed)
        spec = algorithm.model_spec(model, federation.names, federation.task, getattr(torch, options.dtype))
        if options.global_test and not spec.layout.width:
            raise FedkinError("global_test moves models between clients, but these clients bring models of their own")
        self.clients = connect(options.engine, federation, spec, streams, options.workers, options.engine_options)
        if graph is None and algorithm.default_graph() is not None:
            graph = federation.graph or algorithm.default_graph()
        used = self._resolve(graph)
        if used is not None:
            self.clients.link(used)
        self.setting = Setting(
            federation.names, self.clients.sizes, federation.task, spec, streams, used, federation.truth
        )
        algorithm.check(self.setting)
        self.history = History(federation.names)
        self.memory = self._row_memory()
        self.state = self._owning(self._with_influence(algorithm.start(self.setting)))
        self.seconds = self.evaluation_seconds = 0.0
        self.eval_every = options.eval_every or rounds_between_tests(
            options.rounds,
            taking_part=options.cohort_size(len(federation)) / len(federation),
            tested=int(federation.test.sizes.sum() + federation.validation.sizes.sum()),
            trained=int(federation.train.sizes.sum()),
        )
        self.saves = Saves()
        self.finished = False
        self.final: dict[str, Replies] = {}
        """The last evaluation with the clients' whole models, "pre" and "post"."""

    # --- before the first round -----------------------------------------------------------------------------------

    def _resolve(self, graph: ClientGraph | str | None) -> ClientGraph | None:
        if isinstance(graph, str):
            seed = self.options.seed
            return build_graph(graph, self.federation.names, self._disclosed, seed)
        return None if graph is None else graph.align(self.federation.names)

    def _disclosed(self, what: str, **options: float) -> np.ndarray:
        """What clients disclose to build a graph: statistics, label counts, sizes. Never samples."""
        if what in self.federation.truth:
            return self.federation.truth[what]
        replies = self.clients.ask(what, np.arange(len(self.federation)), shared=options)
        if replies.failed:
            name, reason = next(iter(replies.failed.items()))
            raise FedkinError(f"client {name!r} could not disclose its {what}: {reason}")
        return replies[what].numpy()

    def _with_influence(self, state: State) -> State:
        n = len(self.setting)
        track = self.options.influence if self.options.influence is not None else n <= INFLUENCE_LIMIT
        if not track or "rows" not in state.arrays:
            return state
        return state.with_arrays(influence=torch.zeros((n, n), dtype=torch.float64))

    def _row_memory(self) -> RowMemory | None:
        """Where rows are kept that the method writes over; None where it makes new ones."""
        path = self.options.rows_file
        if self.algorithm.in_place:
            shape = len(self.setting), self.setting.spec.layout.width
            return RowMemory(path, shape, self.setting.spec.dtype)
        if path is not None:
            able = ", ".join(name for name in algorithms.names() if algorithms.get(name).in_place)
            raise FedkinError(
                f"rows_file: {self.algorithm.name} makes new rows in every round; drop it, or use a method that writes "
                f"over them: {able}"
            )
        return None

    def _owning(self, state: State) -> State:
        """The state with rows in memory of the run's own, where the method writes over them."""
        if self.memory is None:
            return state
        return replace(state.with_arrays(rows=self.memory.rows(state.rows)), in_place=True)

    def _release(self) -> None:
        if self.memory is not None:
            self.memory.release()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Go on from the present state to the last round."""
        if self.out is not None:
            self._write_config(self.out)
        try:
            with Interrupt() as interrupt:
                for callback in self.callbacks:
                    callback.on_start(self)
                while self.state.round < self.options.rounds and not self.algorithm.finished(self.state):
                    record = self._one_round()
                    stop = [callback.on_round(self, record) for callback in self.callbacks]
                    if interrupt.requested or any(stop):
                        self.save_checkpoint()
                        break
                self.finished = not interrupt.requested
            result = self._result()
        finally:
            for callback in self.callbacks:
                callback.on_end(self)
            self.clients.close()
        if self.out is not None:
            result.save(self.out, after_piece=self._release)
        if not self.finished:
            again = f"resume with: fedkin resume {self.out}" if self.out else "pass out=DIR to be able to resume"
            print(f"stopped after round {self.state.round} of {self.options.rounds}; {again}", file=sys.stderr)
        return result

    def _one_round(self) -> Record:
        started = time.perf_counter()
        number = self.state.round + 1
        cohort = self.algorithm.cohort(number, self.options.cohort_size(len(self.setting)), self.setting)
        evaluates = self._evaluates(number)
        state = replace(self.state, watched=evaluates and self.options.rows_file is None)
        self.state = self.algorithm.round(state, self.clients, cohort, self.setting)
        self._refuse_divergence(number)
        self._release()
        self.seconds += time.perf_counter() - started
        record: Record = {"round": number, "participants": len(cohort), "log": dict(self.state.log)}
        if evaluates:
            record |= self._evaluate(last=number == self.options.rounds)
        record |= {
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "bytes": self.clients.traffic.total(),
            "messages": self.clients.traffic.messages,
        }
        self.history.records.append(record)
        if self._saves(number):
            self.save_checkpoint()
        return record

    def _evaluates(self, number: int) -> bool:
        return number % self.eval_every == 0 or number == self.options.rounds

    def _saves(self, number: int) -> bool:
        every = self.options.checkpoint_every
        return number == self.options.rounds or (self.saves.due() if every is None else number % every == 0)

    def _refuse_divergence(self, number: int) -> None:
        """Stop when every client failed, or rows on the server are no longer finite."""
        failed: Mapping[str, str] = self.state.log.get("failed", {})
        if failed and len(failed) >= self.options.cohort_size(len(self.setting)):
            name, reason = next(iter(failed.items()))
            raise FedkinError(f"round {number}: every client failed, first {name!r}: {reason}{self._kept()}")
        diverged = list(self.state.log.get("diverged", []))
        if "rows" in self.state.arrays:
            ids = self.setting.everyone if self.state.changed is None else self.state.changed
            rows = self.state.rows if self.state.changed is None else self.state.rows[torch.from_numpy(ids)]
            if not bool(torch.isfinite(rows.sum())):
                bad = torch.isfinite(rows).all(dim=1).logical_not().nonzero()
                diverged += [self.setting.names[ids[int(k)]] for k in bad]
        if diverged:
            raise FedkinError(
                f"round {number}: the model of client {diverged[0]!r} diverged when it was mixed with others; "
                f"use a smaller step or learning rate{self._kept()}"
            )

    def _kept(self) -> str:
        last = checkpoint.latest(self.out) if self.out else None
        return f" (the last good checkpoint, {last}, is kept)" if last else ""

    def _parts(self) -> list[str]:
        return ["test", "validation"] if self.federation.validation.sizes.any() else ["test"]

    def _evaluate(self, last: bool) -> Record:
        started = time.perf_counter()
        full = self.options.cohort_size(len(self.setting)) == len(self.setting)
        wants_post = last or self.options.post == "always" or (self.options.post == "auto" and full)
        record: Record = {}
        for when in ("pre", "post") if wants_post else ("pre",):
            replies = self._ask_everyone(when == "post", disclose=last)
            record[when] = per_client_metrics(replies.ids, replies.arrays, len(self.setting), self._parts())
            if last:
                self.final[when] = replies
        self.evaluation_seconds += time.perf_counter() - started
        return record

    def _ask_everyone(self, post: bool, disclose: bool) -> Replies:
        """Evaluate all clients, where their rows take much memory some at a time."""
        question = self.state, self.clients, self.setting, post, self._parts(), disclose
        if self.memory is None or self.memory.size <= ASK_LIMIT:
            return self.algorithm.evaluate(*question)
        models = self.memory.models() if post and disclose else self.state.rows
        parts = []
        for some in slices(self.state.rows):
            replies = self.algorithm.evaluate_some(self.setting.everyone[some], *question)
            if post and disclose:
                models[some] = self.state.rows[some]  # a client that failed keeps what the server has of it
                models[torch.from_numpy(replies.ids)] = replies["model"]
            small = {name: value for name, value in replies.arrays.items() if name not in ("rows", "model")}
            parts.append(replace(replies, arrays=small))
            self.memory.release()
        replies = joined(parts)
        return replace(replies, arrays={**replies.arrays, "model": models}) if disclose else replies

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _result(self) -> Result:
        """Gather what clients would deploy, and everything else worth keeping."""
        if "post" not in self.final:
            self._evaluate(last=True)
        parts, clients = self._parts(), len(self.setting)
        metrics = {w: per_client_metrics(r.ids, r.arrays, clients, parts) for w, r in self.final.items()}
        trained = choose_trained(self.algorithm.deploys, metrics)
        received_model, received_counters = _models(self.final["pre"], self.state, self.setting)
        trained_model, trained_counters = _models(self.final["post"], self.state, self.setting)
        deployed, counters = trained_model, trained_counters
        if not trained.any():
            deployed, counters = received_model, received_counters
        elif not trained.all():
            pick = torch.from_numpy(trained)[:, None]
            deployed = torch.where(pick, trained_model, received_model)
            counters = torch.where(pick, trained_counters, received_counters)
        metrics["deployed"] = {
            key: np.where(trained, metrics["post"][key], metrics["pre"][key]).tolist() for key in metrics["pre"]
        }
        classification = self.federation.task.kind == "classification"
        facts: dict[str, Any] = {
            "title": self.algorithm.title,
            "rounds": self.state.round,
            "finished": self.finished,
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "bytes": self.clients.traffic.total(),
            "messages": self.clients.traffic.messages,
            "test_sizes": self.federation.test.sizes,
            "truth": {k: v for k, v in self.federation.truth.items() if len(v) == clients and v.ndim == 1},
            "inputs": self.federation.inputs,
        }
        if self.options.global_test:
            facts["global"] = {
                when: self._on_global_test(_models(replies, self.state, self.setting)[0])
                for when, replies in self.final.items()
            }
        models: Mapping[str, Any] = Models(self.setting.names, deployed, counters, self.setting.spec)
        if not self.setting.spec.layout.width:
            models = self.clients.estimators()
        result = Result(
            names=self.setting.names,
            task=self.setting.task,
            sizes=self.setting.sizes,
            server_rows=received_model if self.setting.spec.layout.width else rows_of(models, received_model),
            models=models,
            choice=tuple("trained" if t else "received" for t in trained),
            metrics=metrics,
            history=self.history,
            config=self.config(),
            graph=self.setting.graph,
            raw_influence=self.state.arrays.get("influence"),
            extras={name: self.state.arrays[name] for name in self.algorithm.keeps if name in self.state.arrays},
            label_counts=self.federation.label_counts() if classification else None,
            notes=self.federation.notes,
            facts=facts,
        )
        if result.graph is None and result.learned_rounds:
            return replace(result, graph=result.learned_graph())
        return result

    def _on_global_test(self, models: Tensor) -> list[float]:
        """The metric of every client's model on the union of all test sets, one value per client."""
        replies = self.clients.ask("cross_evaluate", self.setting.everyone, shared={"models": models}, bill=False)
        share = replies["count"].double() / replies["count"].sum().clamp(min=1)
        return (share @ replies["metric"]).tolist()

    def config(self) -> dict[str, Any]:
        """Everything needed to repeat the run, as written to config.toml."""
        graph = self.setting.graph
        sections: dict[str, Any] = {
            "data": {**self.federation.source, "fingerprint": self.federation.fingerprint()},
            "model": {"name": self.setting.spec.name or "custom"},
            "algorithm": {"name": self.algorithm.name, **self.algorithm.model_dump()},
            "graph": {} if graph is None else {"file": "graph.npz"},
            "run": self.options.model_dump(),
            "versions": versions(),
        }
        return {key: _without_none(plain(value)) for key, value in sections.items()}

    def _write_config(self, out: Path) -> None:
        write_atomic(out / "config.toml", tomli_w.dumps(self.config()).encode())
        if self.setting.graph is not None:
            self.setting.graph.save(out / "graph.npz")

    def save_checkpoint(self) -> None:
        """Save all state of server and clients, atomically; the two newest checkpoints are kept."""
        if self.out is not None:
            with self.saves.timed():
                self.history.save(self.out / "history.jsonl")
                checkpoint.save(self.out, self.state, self.clients.snapshot(), self._progress(), self._release)

    def _progress(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "traffic": asdict(self.clients.traffic),
        }

    def go_back_to(self, path: Path) -> None:
        """Take up the state of a checkpoint, and the history up to it."""
        state, private, progress = checkpoint.read(path)
        self.state = self._owning(state)
        self.clients.restore(private)
        self.seconds, self.evaluation_seconds = progress["seconds"], progress["evaluation_seconds"]
        for name, value in progress["traffic"].items():
            setattr(self.clients.traffic, name, value)
        assert self.out is not None
        history = History.load(self.out / "history.jsonl", self.setting.names)
        self.history = History(history.names, [r for r in history if r["round"] <= self.state.round])


def per_client_metrics(
    ids: np.ndarray, arrays: Mapping[str, Tensor], clients: int, parts: Sequence[str]
) -> dict[str, list[float]]:
    """Replies of an evaluation as one value per client; NaN for clients that failed or have no samples."""
    table: dict[str, list[float]] = {}
    for part in parts:
        for key, values in arrays.items():
            if key.startswith(f"{part}_") and not key.endswith("_count"):
                count = arrays.get(f"{key}_count", arrays[f"{part}_count"]).numpy()
                column = np.full(clients, np.nan)
                column[ids] = np.where(count > 0, values.double().numpy(), np.nan)
                table[key] = column.tolist()
    return table


def choose_trained(deploys: str, metrics: Mapping[str, Mapping[str, list[float]]]) -> np.ndarray:
    """Which clients deploy the model after local training, (K,) bool. Validation loss may decide, test data never."""
    clients = len(next(iter(metrics["pre"].values())))
    if deploys != "validated":
        return np.full(clients, deploys == "trained")
    if "validation_loss" not in metrics["pre"]:
        return np.full(clients, True)
    before, after = (np.array(metrics[when]["validation_loss"]) for when in ("pre", "post"))
    return ~(before < after)


def _models(replies: Replies, state: State, setting: Setting) -> tuple[Tensor, Tensor]:
    """The clients' whole models (K, B) and counters (K, C); a client that failed keeps what the server has of it."""
    counters = setting.spec.initial_counters().expand(len(setting), -1).clone()
    counters[replies.ids] = replies["counters"]
    models = replies["model"].to(setting.spec.dtype)
    if len(models) < len(setting):
        answered = models
        models = torch.zeros((len(setting), setting.spec.layout.width), dtype=setting.spec.dtype)
        if "rows" in state.arrays:
            models.copy_(state.rows)
        models[replies.ids] = answered
    return models, counters


def _without_none(value: Any) -> Any:
    """TOML has no null: leave such entries out."""
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return value


def train(
    federation: Federation,
    model: ModelLike = "mlp",
    algorithm: Algorithm | str = "fedavg",
    graph: ClientGraph | str | None = None,
    rounds: int = 50,
    seed: int = 0,
    engine: str = "in_process",
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Result:
    """Train one model per client.

    `model` is a callable that returns an nn.Module, or the name of a built-in network ("mlp"); `algorithm` an object from
    `fedkin.algorithms` or a name; `graph` a ClientGraph, a builder ("knn:5") or a file; `out` a directory for
    checkpoints and the result. `options` are the fields of `Options`: fraction, eval_every, dtype, …

    >>> from fedkin import data, train
    >>> federation = data.load("digits", clients=5, partition="dirichlet:0.3", seed=0)
    >>> train(federation, "mlr", "fedavg", rounds=2)  # doctest: +ELLIPSIS
    Result(FedAvg, 5 clients, 2 rounds, test accuracy pre ... post ...)
    """
    method = algorithms.make(algorithm) if isinstance(algorithm, str) else algorithm
    chosen = make_options(rounds=rounds, seed=seed, engine=engine, **options)
    target = None if out is None else Path(out)
    if target is not None and checkpoint.latest(target) is not None:
        raise FedkinError(f"{target} already holds a run; resume it, or choose another directory")
    return Run(federation, model, method, chosen, graph, target, callbacks).run()


def resume(
    directory: str | Path,
    federation: Federation | None = None,
    model: ModelLike | None = None,
    algorithm: Algorithm | None = None,
    callbacks: Sequence[Callback] = (),
    rounds: int | None = None,
) -> Result:
    """Go on with an interrupted run from its last good checkpoint; the numbers are those of an uninterrupted run.

    A federation, model or algorithm of the user's own must be given again; named ones are built from config.toml.
    `rounds` extends the run.
    """
    out = Path(directory)
    try:
        config = tomllib.loads((out / "config.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise FedkinError(f"{out} is not a run directory: {problem}") from problem
    path = checkpoint.latest(out)
    if path is None:
        raise FedkinError(f"{out} holds no intact checkpoint; start the run again")
    source = dict(config["data"])
    fingerprint = source.pop("fingerprint")
    if federation is None:
        if not source:
            raise FedkinError(f"{out} was trained on a federation of your own; pass it: resume(dir, federation=…)")
        federation = rebuild(source)
    if federation.fingerprint() != fingerprint:
        raise FedkinError(f"{out} was trained on other data (the fingerprint differs); give the same federation")
    if model is None:
        if config["model"]["name"] == "custom":
            raise FedkinError(f"{out} was trained with a model of your own; pass it: resume(dir, model=…)")
        model = config["model"]["name"]
    if algorithm is None:
        parameters = dict(config["algorithm"])
        for name, value in parameters.items():
            if str(value).startswith(OWN_FUNCTION):
                raise FedkinError(
                    f"{out} was trained with a function of your own ({name} = {value.removeprefix(OWN_FUNCTION)}); "
                    "pass the algorithm again: resume(dir, algorithm=…)"
                )
        algorithm = algorithms.make(parameters.pop("name"), parameters)
    graph = ClientGraph.load(out / "graph.npz") if "file" in config["graph"] else None
    settings = {**config["run"], **({} if rounds is None else {"rounds": rounds})}
    run = Run(federation, model, algorithm, make_options(**settings), graph, out, callbacks)
    run.go_back_to(path)
    return run.run()


def rebuild(source: Mapping[str, Any]) -> Federation:
    """A federation from its recorded source: a named data set, or a table."""
    from fedkin import data

    if "csv" in source:
        return data.from_csv(**source)
    return data.load(**source)
