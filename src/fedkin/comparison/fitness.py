"""Which algorithms fit a setting, asked before any training and without building a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedkin.algorithm import Algorithm, Setting
from fedkin.clients import Traffic
from fedkin.engines import connect
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.models import ModelLike, ModelSpec
from fedkin.run import Options
from fedkin.run.directory import refuse_other_settings
from fedkin.run.graph import build_from, wanted
from fedkin.run.model import model_of_run
from fedkin.run.recorded import config_of
from fedkin.streams import Streams


class Fitness:
    """One setting of a comparison (data, model, seed). Every graph is built once, for all algorithms that use it."""

    def __init__(
        self, federation: Federation, model: ModelLike, options: Options, graph: ClientGraph | str | None
    ) -> None:
        self.federation, self.model, self.options, self.graph = federation, model, options, graph
        self.roster = federation.roster()
        self._built: dict[str, tuple[ClientGraph, Traffic]] = {}

    def unfit(self, algorithms: Sequence[Algorithm], folders: Mapping[str, Path | None]) -> dict[str, str]:
        """The algorithms that refuse this setting: name → reason. If Local does, the setting itself is wrong.

        Folders that belong to other settings are refused, too.
        """
        reasons = {}
        for algorithm in algorithms:
            try:
                spec, graph = self._checked(algorithm)
            except FedkinError as problem:
                if algorithm.name == "local":
                    raise
                reasons[algorithm.name] = str(problem).removeprefix(f"{algorithm.name}: ")
                continue
            config = config_of(self.roster, spec, algorithm, self.options, graph, folders[algorithm.name])
            refuse_other_settings(folders[algorithm.name], config, graph)
        return reasons

    def _checked(self, algorithm: Algorithm) -> tuple[ModelSpec, ClientGraph | None]:
        roster, streams = self.roster, Streams(self.options.seed)
        spec = self._spec(algorithm)
        graph, _ = self.graph_for(algorithm)
        known = roster.names, roster.train, roster.task, spec, streams, graph, roster.truth
        algorithm.check(Setting(*known).keeping(self.options.private))
        return spec, graph

    def graph_for(self, algorithm: Algorithm) -> tuple[ClientGraph | None, Traffic]:
        """The graph an algorithm would train with, and what clients sent to build it: every run is billed for its own."""
        graph = wanted(self.graph, algorithm, self.roster)
        if not isinstance(graph, str):
            return graph, Traffic()
        if graph not in self._built:
            seed = self.options.seed
            clients = connect("in_process", self.federation, self._spec(algorithm), Streams(seed), self.options.workers)
            try:
                self._built[graph] = build_from(graph, self.roster, clients, seed), clients.traffic
            finally:
                clients.close()
        return self._built[graph]

    def _spec(self, algorithm: Algorithm) -> ModelSpec:
        return model_of_run(algorithm, self.model, self.roster.names, self.roster.task, self.options)
