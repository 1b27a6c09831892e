"""Run: the loop. Sample a cohort, do a round, evaluate, save, tell the callbacks. No maths lives here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin import algorithms
from fedkin.algorithm import Algorithm, Setting, State
from fedkin.clients import Clients, Replies, joined
from fedkin.compute.placement import on_device
from fedkin.compute.threads import one_thread
from fedkin.errors import EveryoneFailed, FedkinError
from fedkin.files import FileBatch
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.result import Result, load
from fedkin.result.history import History, Record
from fedkin.roster import Roster
from fedkin.run import checkpoint
from fedkin.run.cadence import Saves, rounds_between_tests
from fedkin.run.callbacks import Callback, Interrupt, as_callbacks
from fedkin.run.deployed import moved, per_client_metrics
from fedkin.run.directory import RunDirectory, refuse_other_settings
from fedkin.run.divergence import refuse_divergence
from fedkin.run.earlier import Earlier
from fedkin.run.fits import refuse_misfits
from fedkin.run.graph import build_from, wanted, warn_of_lone_clients
from fedkin.run.options import Options
from fedkin.run.outcome import outcome_of
from fedkin.run.private import Allowance, completed, private_notes, refuse_unprotected, spent_out
from fedkin.run.recorded import config_of
from fedkin.run.rows_file import RowMemory, slices
from fedkin.streams import Streams
from fedkin.task.curves import ASK_CURVES, MOST_CLIENTS

INFLUENCE_LIMIT = 1500
"""Above this many clients the K×K influence matrix is kept only on request."""

SKIPS = 3
"""So many rounds in a row in which all of a cohort fail end the run; of all clients, one."""

SMALL_ROUND = 2**20
"""Up to so many numbers in rows, or pairs of clients, the server's part of a round takes longer to wake a second thread for than to do."""

ASK_LIMIT = 2**28
"""Rows of more bytes than this are evaluated some clients at a time, by methods that write over rows in place."""


class Run:
    """One method on one federation, seen from the server: a roster and the clients behind it, never data.

    `make_run`, `train` and `resume` are the usual ways to make one.
    """

    def __init__(
        self,
        roster: Roster,
        clients: Clients,
        spec: ModelSpec,
        algorithm: Algorithm,
        options: Options,
        graph: ClientGraph | str | None = None,
        out: Path | None = None,
        callbacks: Sequence[Callback] = (),
        earlier: Earlier | None = None,
    ) -> None:
        self.roster, self.clients, self.algorithm, self.options, self.out = roster, clients, algorithm, options, out
        self.directory = None if out is None else RunDirectory(out)
        self.callbacks = as_callbacks(callbacks)
        streams = Streams(options.seed)
        refuse_misfits(roster.task, spec, algorithm, options)
        used = wanted(graph, algorithm, roster)
        if isinstance(used, str):
            used = build_from(used, roster, clients, options.seed, private=algorithm.privacy is not None)
        if used is not None:
            clients.link(used)
            warn_of_lone_clients(used, algorithm)
        self.placement = spec.placement
        privacy = completed(algorithm, options, len(roster), out)
        known = roster.names, clients.sizes, roster.task, spec, streams, used, roster.truth, options.rounds, privacy
        self.setting = Setting(*known).keeping(options.private)
        refuse_unprotected(algorithm, self.setting)
        algorithm.check(self.setting)
        self.allowance, self.notes = Allowance.of(algorithm, self.setting), private_notes(privacy, graph)
        self.history = History(roster.names)
        self.memory = self._row_memory()
        self.after_piece = None if self.memory is None else self.memory.release
        """What lets go of pages of rows that were read, where they lie in a file."""
        self.begun: tuple[str, ...] = ()
        """What was taken over from an earlier run, if there is one."""
        self.state = self._owning(self._with_influence(self._begin_from(earlier, algorithm.start(self.setting))))
        self.seconds = self.evaluation_seconds = 0.0
        self.eval_every = options.eval_every or rounds_between_tests(
            options.rounds,
            taking_part=options.cohort_size(len(roster)) / len(roster),
            tested=int(roster.test.sum() + roster.validation.sum()),
            trained=int(roster.train.sum()),
        )
        self.parts = ["test", "validation"] if roster.validation.any() else ["test"]
        """Which samples an evaluation asks for."""
        self.saves = Saves()
        self.skipped = 0
        """Rounds in a row in which nobody of the cohort answered well."""
        self.finished = False
        self._config: dict[str, Any] | None = None
        self.judging: Callable[[], Run] | None = None
        """Makes the further run that decides what clients deploy, where no validation samples do."""
        self.final: dict[str, Replies] = {}
        """The last evaluation with the clients' whole models, "pre" and "post"."""
        self.told: dict[str, dict[str, list[float]]] = {}
        """What it found of each client, by the same names: the lists that are in the history, not copies."""

    # --- before the first round -----------------------------------------------------------------------------------

    def _begin_from(self, earlier: Earlier | None, state: State) -> State:
        """The first state, with rows and private state of the earlier run that this one begins from."""
        if earlier is None:
            return state
        state, told = earlier.carried(state, self.setting)
        self.begun = (told,)
        if private := earlier.private_of(self.setting, self.algorithm.name):
            self.clients.restore(private)
        return state

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

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Go on from the present state to the last round."""
        with self.placement.here(), self._ended() as begun:
            if self.directory is not None:
                self.directory.own()
                self.directory.write_config(self.config(), self.setting.graph, self.setting.model)
            if self.allowance is not None:
                self.state = self.allowance.asked(self.algorithm, self.clients, self.state)
                self.allowance.refuse_spent(self.state)
            with Interrupt() as interrupt:
                for callback in self.callbacks:
                    callback.on_start(self)
                    begun.append(callback)
                while self.state.round < self.options.rounds and not self.algorithm.finished(self.state):
                    cohort = self._cohort(self.state.round + 1)
                    if not len(cohort):
                        self.notes.append(spent_out(self.state.round, self.options.rounds))
                        self.save_checkpoint()
                        break
                    record = self._one_round(cohort)
                    stop = [callback.on_round(self, record) for callback in self.callbacks]
                    if interrupt.requested or any(stop):
                        self.save_checkpoint()
                        break
                self.finished = not interrupt.requested
            result = self._result()
            if self.out is not None:
                result.save(self.out, after_piece=self.after_piece)
        if not self.finished:
            again = f"resume with: fedkin resume {self.out}" if self.out else "pass out=DIR to be able to resume"
            print(f"stopped after round {self.state.round} of {self.options.rounds}; {again}", file=sys.stderr)
        return result

    @contextmanager
    def _ended(self) -> Iterator[list[Callback]]:
        """However it ends, callbacks that have begun (a list to fill) are told, and clients let go."""
        begun: list[Callback] = []
        try:
            yield begun
        finally:
            for callback in begun:
                callback.on_end(self)
            self.close()

    def _cohort(self, number: int) -> np.ndarray:
        cohort = self.algorithm.cohort(number, self.options.cohort_size(len(self.setting)), self.setting)
        return cohort if self.allowance is None else self.allowance.among(cohort, self.state)

    def _one_round(self, cohort: np.ndarray) -> Record:
        started = time.perf_counter()
        number = self.state.round + 1
        evaluates = self._evaluates(number)
        state = replace(self.state, watched=evaluates and self.options.rows_file is None)
        if self.allowance is not None:
            state = self.allowance.pay(cohort, state)
        try:
            with one_thread(len(self.setting) * max(len(self.setting), self.setting.spec.layout.width) <= SMALL_ROUND):
                self.state = self.algorithm.round(state, self.clients, cohort, self.setting)
                if self.allowance is not None:
                    self.state = self.allowance.noted(self.state)
                refuse_divergence(number, self.state, self.setting, len(cohort), self.out)
            self.skipped = 0
        except EveryoneFailed as problem:  # of some clients alone, and perhaps all at one site: others may do better
            self.skipped += 1
            if len(cohort) == len(self.setting) or self.skipped == SKIPS:
                raise
            self.state = replace(self.state, round=number, log={"failed": problem.failed})
        if self.after_piece is not None:
            self.after_piece()
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

    def _evaluate(self, last: bool) -> Record:
        started = time.perf_counter()
        clients = len(self.setting)
        full = self.options.cohort_size(clients) == clients
        wants_post = last or self.options.post == "always" or (self.options.post == "auto" and full)
        if self.allowance is not None:  # every local training is paid for
            wants_post = last
        record: Record = {}
        for when in ("pre", "post") if wants_post else ("pre",):
            paid = when == "pre" or self.allowance is None or self.allowance.covers_test(self.state, self.finished)
            replies = self._ask_everyone(when == "post", last) if paid else self.final["pre"]
            if "epsilon" in replies.arrays:
                self.state = self.state.with_account(replies)
            record[when] = per_client_metrics(replies.ids, replies.arrays, clients, self.parts)
            if last:
                self.final[when], self.told[when] = replies, record[when]
        self.evaluation_seconds += time.perf_counter() - started
        return record

    def _ask_everyone(self, post: bool, disclose: bool) -> Replies:
        """Evaluate all clients, where their rows take much memory some at a time; at last with models, and with the curves of
        those that may be deployed."""
        used = self.algorithm.deploys in ("validated", "trained" if post else "received")
        draws = disclose and used and self.allowance is None and len(self.setting) <= MOST_CLIENTS
        asked = [*self.parts, *([ASK_CURVES] if draws else [])]
        question = self.state, self.clients, self.setting, post, asked, disclose
        if self.memory is None or self.memory.size <= ASK_LIMIT or self.setting.home:
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
        if self.allowance is not None:
            self.state = self.allowance.with_exposure(self.state)
        if not self.placement.on_host:
            self.state = moved(self.state, "cpu")
            self.final = {when: replace(r, arrays=on_device(r.arrays, "cpu")) for when, r in self.final.items()}
        with torch.device("cpu"):
            return outcome_of(self)

    def config(self) -> dict[str, Any]:
        """Everything needed to repeat the run, as written to config.toml."""
        if self._config is None:
            known = self.setting.model, self.algorithm, self.options, self.setting.graph, self.out
            self._config = config_of(self.roster, *known)
        return self._config

    def save_checkpoint(self) -> None:
        """Save all state of server and clients, atomically; the two newest checkpoints are kept."""
        if self.out is not None:
            with self.saves.timed():
                private, spent = self.clients.snapshot(), {"traffic": asdict(self.clients.traffic)}
                progress = {"seconds": self.seconds, "evaluation_seconds": self.evaluation_seconds, **spent}
                with FileBatch(self.out) as batch:
                    self.history.save(self.out / "history.jsonl", batch)
                    checkpoint.save(self.out, moved(self.state, "cpu"), private, progress, self.after_piece, batch)

    def close(self) -> None:
        """Let go of clients, files and the directory."""
        self.clients.close()
        if self.memory is not None:
            self.memory.close()
        if self.directory is not None:
            self.directory.release()

    def kept(self) -> Result | None:
        """The result of this run, if its directory holds it finished."""
        refuse_other_settings(self.out, self.config(), self.setting.graph)
        if self.out is None or not (self.out / "result.safetensors").exists():
            return None
        result = load(self.out, self.setting.model.name or self.setting.model.factory)
        return result if result.facts["finished"] else None

    def take_up(self, accept_changes: bool = False) -> None:
        """Go on from the last good checkpoint in the run's directory, if there is one. Other data are refused."""
        if self.directory is None:
            return
        try:
            self.directory.own()
            path = checkpoint.latest(self.directory.path, accept_changes)
            if path is not None:
                self.directory.refuse_changes(accept_changes)
                self.directory.refuse_other_data(self.roster.fingerprint)
                self._go_back_to(path, self.directory.history_size())
        except BaseException:
            self.close()
            raise

    def _go_back_to(self, path: Path, first: int | None) -> None:
        """Take up the state of a checkpoint, and the history up to it."""
        state, private, progress = checkpoint.read_checkpoint(path)
        checkpoint.refuse_other_shapes(path, state, self.state)
        self.state = self._owning(moved(state, self.placement.device))
        try:
            self.clients.restore(private)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as problem:
            raise FedkinError(f"{path} does not fit this run: {problem}; start the run again") from problem
        self.seconds, self.evaluation_seconds = progress["seconds"], progress["evaluation_seconds"]
        for name, value in progress["traffic"].items():
            setattr(self.clients.traffic, name, value)
        history = History.load(path.parents[1] / "history.jsonl", self.setting.names, first)
        self.history = History(history.names, [r for r in history if r["round"] <= self.state.round])
