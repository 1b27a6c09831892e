"""The `Clients` contract over Ray actors.

Every actor is a host (`fedkin.engines.host`) with stacked training on one core. Rows go to actors and back in chunks of
bounded size through Ray's object store. In an exchange letters go from actor to actor by reference; the driver knows who
writes to whom, and sees none of the rows.

An actor that dies or does not answer in time is started again. Its clients are among the failed of the present round and
rejoin in the next with the server's rows; their private state is that of the last checkpoint, or that of the start
where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.host import Answer
from fedkin.engines.ray.actor import HostActor, arrays, tensors
from fedkin.engines.ray.cluster import first_line, gpus_each, join_or_start, ray_options
from fedkin.engines.sharding import HostAnswers, Post, Question, Sharded, contiguous, no_letter
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.streams import Streams

CHUNK_BYTES = 64 * 2**20
"""A question to one actor carries at most this many bytes of rows (or one client's)."""
IN_FLIGHT = 2
"""Chunks on their way to one actor: one being worked on, one waiting."""

Got = TypeVar("Got")


class RayClients(Sharded):
    """The `Clients` contract over Ray actors."""

    def __init__(
        self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None, **options: Any
    ) -> None:
        self.options = ray_options(options)
        self.started = join_or_start(self.options.address)
        cores = int(ray.cluster_resources().get("CPU", 1))
        parts = contiguous(federation.train.sizes, min(workers or max(1, cores), len(federation)))
        super().__init__(federation.names, federation.train.sizes, parts)
        try:
            self.gpus = gpus_each(spec.placement.device, len(self.members), ray.cluster_resources().get("GPU", 0))
        except FedkinError:
            self.actors = []
            self.close()
            raise
        self.common = ray.put((spec, streams))
        self.data = [ray.put(federation.take(own)) for own in self.members]
        self.kept: list[Any] = [None] * len(self.members)
        """References to every host's private state at the last checkpoint."""
        self.actors = [self._start(host) for host in range(len(self.members))]
        self._wait_until_ready()

    # --- actors -------------------------------------------------------------------------------------------------------

    def _start(self, host: int) -> Any:
        actor: Any = ray.remote(num_cpus=1, num_gpus=self.gpus, max_restarts=0)(HostActor).remote(
            self.data[host], self.common
        )
        if self.kept[host] is not None:
            actor.restore.remote(self.kept[host])
        return actor

    def _wait_until_ready(self) -> None:
        try:
            ray.get([actor.ready.remote() for actor in self.actors], timeout=self.options.start_timeout)
        except GetTimeoutError:
            count = len(self.actors)
            self.close()
            raise FedkinError(
                f"Ray did not start {count} actors within {self.options.start_timeout:g} s; "
                "free some CPUs of the cluster or ask for fewer workers"
            ) from None
        except RayError as problem:
            self.close()
            raise FedkinError(f"Ray could not start the clients: {first_line(problem)}") from problem

    def _lost(self, host: int, problem: Exception | None) -> str:
        """Why there is no answer; where the actor is gone or stuck, another takes its place."""
        if isinstance(problem, RayTaskError) and not isinstance(problem, RayActorError):
            return f"failed in its Ray actor: {first_line(problem.cause or problem)}"
        ray.kill(self.actors[host])
        self.actors[host], self.restarted = self._start(host), True
        if problem is None:
            return f"did not answer within {self.options.timeout:g} s; its Ray actor was started again"
        return f"its Ray actor died ({type(problem).__name__}) and was started again"

    def _collect(self, pending: Mapping[int, Any]) -> dict[int, Any]:
        """Host → what its reference holds, or the reason why there is nothing."""
        found: dict[int, Any] = {}
        ray.wait(list(pending.values()), num_returns=len(pending), timeout=self.options.timeout, fetch_local=False)
        for host, reference in pending.items():
            found[host] = self._get(host, reference, lambda value: value)
        return found

    def _get(self, host: int, reference: Any, use: Callable[[Any], Got]) -> Got | str:
        try:
            ready, _ = ray.wait([reference], timeout=0)
            return use(ray.get(reference, timeout=self.options.timeout)) if ready else self._lost(host, None)
        except RayError as problem:
            return self._lost(host, problem)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _send(self, questions: Mapping[int, Question]) -> HostAnswers:
        shared = _put_shared(questions)
        waiting = {host: _chunks(question) for host, question in questions.items()}
        parts: dict[int, list[Answer]] = {host: [] for host in questions}
        silent: dict[int, str] = {}
        pending: dict[Any, int] = {}

        def feed(host: int) -> None:
            chunk = next(waiting[host], None)
            if chunk is not None:
                reference = self.actors[host].answer.remote(chunk.task, chunk.ids, arrays(chunk.per_client), shared)
                pending[reference] = host

        for host in questions:
            for _ in range(IN_FLIGHT):
                feed(host)
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=self.options.timeout)
            for reference in ready or list(pending):
                host = pending.pop(reference)
                if host in silent:
                    continue
                got = self._get(host, reference, _received)
                if isinstance(got, str):
                    silent[host] = got
                else:
                    parts[host].append(got)
                    feed(host)
        return {host: silent[host] if host in silent else _joined(parts[host]) for host in questions}

    def _deliver(
        self, letter: str, posts: Mapping[int, Post], questions: Mapping[int, Question]
    ) -> tuple[HostAnswers, int]:
        writing = {parcel.sender for post in posts.values() for parcel in post.parcels}
        receipts, letters = self._written(letter, posts, sorted(writing | set(questions)))
        told = self._collect(receipts)
        silent = {host: reason for host, reason in told.items() if isinstance(reason, str)}
        lacking = {host: known for host, known in told.items() if isinstance(known, list)}
        if lacking and len(silent) + len(lacking) == len(told):
            raise no_letter(letter, next(iter(lacking.values())))
        shared = _put_shared(questions)
        pending = {}
        for host, question in questions.items():
            if host not in silent:
                post = posts[host].without({*silent, *lacking})
                mine = [letters[parcel.sender, host] for parcel in post.parcels]
                pending[host] = self.actors[host].deliver.remote(question.task, question.ids, shared, post, *mine)
        answers = {h: got if isinstance(got, str) else _received(got) for h, got in self._collect(pending).items()}
        return {**silent, **answers}, max((size for size in told.values() if isinstance(size, int)), default=0)

    def _written(
        self, letter: str, posts: Mapping[int, Post], hosts: Sequence[int]
    ) -> tuple[dict[int, Any], dict[tuple[int, int], Any]]:
        """References: by sender to what it says of its letters, by sender and receiver to the letters themselves."""
        receipts: dict[int, Any] = {}
        letters: dict[tuple[int, int], Any] = {}
        for host in hosts:
            parcels = {r: parcel.ids for r, post in posts.items() for parcel in post.parcels if parcel.sender == host}
            post_all = self.actors[host].post.options(num_returns=1 + len(parcels))
            receipts[host], *rest = _each(post_all.remote(letter, list(parcels.values())))
            letters |= {(host, receiver): reference for receiver, reference in zip(parcels, rest)}
        return receipts, letters

    # --- private state ------------------------------------------------------------------------------------------------

    def _snapshots(self) -> list[dict[str, Tensor]]:
        taken = {host: actor.snapshot.remote() for host, actor in enumerate(self.actors)}
        states: list[dict[str, Tensor]] = []
        for host, got in self._collect(taken).items():
            if not isinstance(got, str):
                self.kept[host] = taken[host]
            elif self.kept[host] is not None:  # the actor died just now: its successor has the state before
                got = ray.get(self.kept[host], timeout=self.options.timeout)
            states.append({} if isinstance(got, str) else tensors(got))
        return states

    def _restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        self.kept = [ray.put(arrays(state)) for state in states]
        done = {host: actor.restore.remote(self.kept[host]) for host, actor in enumerate(self.actors)}
        for host, got in self._collect(done).items():
            if isinstance(got, str):
                raise FedkinError(f"client {self.names[self.members[host][0]]!r} could not be restored: {got}")

    def estimators(self) -> dict[str, Any]:
        found = self._collect({host: actor.estimators.remote() for host, actor in enumerate(self.actors)})
        held = {name: model for part in found.values() if not isinstance(part, str) for name, model in part.items()}
        return {name: held[name] for name in self.names if name in held}

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors, self.data, self.kept = [], [], []
        if self.started and ray.is_initialized():
            ray.shutdown()
            self.started = False


def _put_shared(questions: Mapping[int, Question]) -> Any:
    """What all get alike goes to the object store once."""
    return ray.put(arrays(next(iter(questions.values())).shared))


def _chunks(question: Question) -> Iterator[Question]:
    """The same question to a few clients at a time, so that the object store never holds all rows at once."""
    each = n_bytes(question.per_client) // max(1, len(question.ids))
    step = max(1, CHUNK_BYTES // max(1, each))
    for start in range(0, len(question.ids), step):
        rows = slice(start, start + step)
        mine = {key: value[rows] for key, value in question.per_client.items()}
        yield Question(question.task, question.ids[rows], mine)


def _received(got: Answer | FedkinError) -> Answer:
    """An answer as tensors; what a task refused is refused here."""
    if isinstance(got, FedkinError):
        raise got
    return replace(got, arrays=tensors(got.arrays))


def _joined(parts: Sequence[Answer]) -> Answer:
    """The answers to the chunks of one question as one."""
    if len(parts) == 1:
        return parts[0]
    full = [part for part in parts if len(part.ids)]
    stacked = {key: torch.cat([part.arrays[key] for part in full]) for key in (full[0].arrays if full else {})}
    failed = {name: reason for part in parts for name, reason in part.failed.items()}
    forgot = tuple(name for part in parts for name in part.forgot)
    return Answer(np.concatenate([part.ids for part in parts]), stacked, failed, forgot)


def _each(references: Any) -> list[Any]:
    return references if isinstance(references, list) else [references]
