"""A run under differential privacy: what it may not do, who may still take part, and what clients have spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.algorithm import Algorithm, Setting, State
from fedkin.clients import Clients
from fedkin.defence import EVIDENCE, parsed
from fedkin.errors import FedkinError
from fedkin.local.kernels import choose_kernel
from fedkin.local.kernels.clipping import clipping_kernel
from fedkin.privacy.accounting import accountants, cost_of_steps, epsilon_of, steps_within
from fedkin.privacy.ledger import LEDGER, TOLERANCE, Charge, Ledger
from fedkin.privacy.settings import Privacy
from fedkin.run.options import Options

SHOWN = ("epsilon", "exposure")
"""Arrays of the state that the result of a private run shows."""


def completed(algorithm: Algorithm, options: Options, clients: int, out: Path | None) -> Privacy | None:
    """The privacy that a method was given, with what its budget must last for and the place of its ledger.

    Local training of samples is also paid for when the trained models are tested in the end: one round more. Where only some
    clients train in a round, three standard deviations more than on average are planned for; who is drawn more often sits out.
    """
    privacy = algorithm.privacy
    if privacy is None:
        return None
    share = options.cohort_size(clients) / clients
    rounds = options.rounds * share + 3 * math.sqrt(options.rounds * share * (1 - share))
    rounds = min(options.rounds, math.ceil(rounds - 1e-9)) + (privacy.level == "sample")
    changes = {"planned": privacy.planned or algorithm.planned(max(1, int(rounds)))}
    where = None if privacy.ledger is None else str(Path(privacy.ledger).absolute())
    if privacy.level == "sample" and options.engine == "flower":  # sites keep ledgers of their own
        where = None
    elif where is None and out is not None:
        where = str((out / LEDGER).absolute())
    return privacy.model_copy(update={**changes, "ledger": where})


def refuse_unprotected(algorithm: Algorithm, setting: Setting) -> None:
    """What would not be private although it was asked for, one line before training."""
    privacy = setting.privacy
    if privacy is None:
        return
    accountants()
    counted = setting.sizes if privacy.level == "sample" else np.full(len(setting), len(setting))
    k = int(np.argmax(counted))
    if privacy.delta >= 1 / counted[k]:
        what = (
            f"client {setting.names[k]!r} has {counted[k]:,} samples"
            if privacy.level == "sample"
            else f"there are {len(setting)} clients"
        )
        raise FedkinError(
            f"privacy: delta = {privacy.delta:g} is not below 1/n ({what}); give delta below {1 / counted[k]:.2g}"
        )
    if algorithm.robust is not None and (privacy.level == "client" or parsed(algorithm.robust)[0] == EVIDENCE):
        raise FedkinError(
            f"privacy: robust={algorithm.robust!r} looks at more than noisy rows; leave out robust or privacy"
        )
    if privacy.level == "sample":
        clipping_kernel(choose_kernel(setting.model, setting.task), setting.model, setting.task)


@dataclass
class Allowance:
    """Who may still train."""

    setting: Setting
    privacy: Privacy
    ledger: Ledger | None
    """The server's own account, of whole clients; that of samples is kept where the samples are."""
    batch: int = 1
    """Samples of a step, on average."""

    @classmethod
    def of(cls, algorithm: Algorithm, setting: Setting) -> Allowance | None:
        privacy = setting.privacy
        if privacy is None:
            return None
        path = None if privacy.ledger is None else Path(privacy.ledger)
        return cls(setting, privacy, Ledger(path) if privacy.level == "client" else None, algorithm.batch_size)

    @property
    def reserve(self) -> int:
        """Rounds that are kept for the test of trained models in the end."""
        return 1 if self.privacy.level == "sample" else 0

    def asked(self, algorithm: Algorithm, clients: Clients, state: State) -> State:
        """The state with what the clients' ledgers say, before the first round or the first after a resume."""
        if self.ledger is not None:
            return self._listening(self._counted(state))
        told = {**algorithm.told(state.round + 1), "privacy": self.privacy.model_dump()}
        replies = clients.ask("ledger", self.setting.everyone, shared={"sgd": told}, bill=False)
        empty = torch.zeros(len(self.setting), dtype=torch.float64)
        return self._listening(state.with_arrays(epsilon=empty, rounds_left=empty.clone())).with_account(replies)

    def _listening(self, state: State) -> State:
        """The state with who can have heard of whom, where that is followed; a resumed run goes on with what it has."""
        clients = len(self.setting)
        if "heard" in state.arrays or "influence" not in state.arrays:
            return state
        return state.with_arrays(heard=torch.zeros((clients, clients), dtype=torch.float64))

    def with_exposure(self, state: State) -> State:
        """The state with ε_ij (K, K): what client i can have learned of client j in this run through the couplings, at the run's δ.

        All that can have reached i comes from j's noisy trainings (or noisy hand-outs), so that i learns no more than their cost:
        those of the rounds from which a chain of couplings leads to i (`Algorithm.exposed`). 0 where none does.
        """
        if "heard" not in state.arrays:
            return state
        heard = state.arrays["heard"].numpy()
        exposure = np.zeros(heard.shape)
        for j, cost in enumerate(self._costs()):
            for rounds in np.unique(heard[:, j]):
                exposure[heard[:, j] == rounds, j] = epsilon_of(rounds * cost, self.privacy.delta) if rounds else 0.0
        np.fill_diagonal(exposure, 0.0)
        return state.with_arrays(exposure=torch.from_numpy(exposure))

    def _costs(self) -> list[np.ndarray]:
        """What a round costs each client."""
        privacy, plan = self.privacy, self.privacy.planned
        if self.ledger is not None or plan is None:
            return [cost_of_steps(1.0, privacy.client_noise)] * len(self.setting)
        costs = []
        for n in self.setting.sizes.tolist():
            rate, steps = min(1.0, self.batch / n), plan.steps_per_round(-(-n // self.batch))
            costs.append(cost_of_steps(rate, privacy.sample_noise(rate, steps) / plan.queries**0.5, steps))
        return costs

    def refuse_spent(self, state: State) -> None:
        """Nobody can take part in even one round."""
        if bool((state.arrays["rounds_left"] <= self.reserve).all()):
            k = int(state.arrays["epsilon"].argmax())
            budget, name = self.privacy.epsilon, self.setting.names[k]
            alone = epsilon_of((1 + self.reserve) * self._costs()[k], self.privacy.delta)
            tested = " and the test of what it trains" if self.reserve else ""
            done = f"all {self.setting.rounds} rounds are done, and " if state.round >= self.setting.rounds else ""
            raise FedkinError(
                f"{done}the privacy budget does not last for another round: client {name!r} has used "
                f"ε = {float(state.arrays['epsilon'][k]):.4g} of {budget:g} (δ = {self.privacy.delta:g}), and a round{tested} "
                f"alone takes {alone:.3g}; allow a larger epsilon, or more noise"
            )

    def among(self, cohort: np.ndarray, state: State) -> np.ndarray:
        """Those of a cohort whose budget lasts for this round."""
        return cohort[(state.arrays["rounds_left"] > self.reserve).numpy()[cohort]]

    def covers_test(self, state: State, finished: bool) -> bool:
        """Whether anybody can pay for the local training that the last test takes.

        An interrupted run does not: what is left in the ledger is for the rounds of the run that goes on.
        """
        if not finished and state.round < self.setting.rounds:
            return False
        return self.ledger is not None or bool((state.arrays["rounds_left"] >= 1).any())

    def told(self) -> dict[str, Any]:
        """What a result says of its privacy."""
        privacy = self.privacy
        facts = privacy.model_dump(include={"level", "epsilon", "delta", "clip", "noise", "insecure_noise_seed"})
        return {**facts, "secret_noise": privacy.insecure_noise_seed is None}

    def noted(self, state: State) -> State:
        """The log of a round says what was spent: the most of all clients, and where the round is tested that of each."""
        spent = state.arrays["epsilon"].tolist()
        state = state.with_log(epsilon=max(spent))
        return state.with_log(epsilon_of_clients=spent) if state.watched else state

    def pay(self, cohort: np.ndarray, state: State) -> State:
        """Clients that are protected as a whole pay before their updates are used."""
        if self.ledger is None:
            return state
        names = [self.setting.names[k] for k in cohort]
        noise = self.privacy.client_noise
        self.ledger.charge([Charge(name, 1.0, noise, 1) for name in names], "client", *self._budget)
        return self._counted(state)

    @property
    def _budget(self) -> tuple[float, float]:
        return self.privacy.epsilon, self.privacy.delta

    def _counted(self, state: State) -> State:
        assert self.ledger is not None
        self.ledger.refresh()
        (epsilon, delta), round = self._budget, cost_of_steps(1.0, self.privacy.client_noise)
        spent = [self.ledger.epsilon(name, "client", delta) for name in self.setting.names]
        costs = [self.ledger.cost(name, "client") for name in self.setting.names]
        left = [steps_within(cost, round, epsilon * (1 + TOLERANCE), delta) for cost in costs]
        arrays = {"epsilon": torch.tensor(spent).double(), "rounds_left": torch.tensor(left).double()}
        return state.with_arrays(**arrays)


def spent_out(round: int, rounds: int) -> str:
    """Why a run ends before its last round."""
    return f"the run ended after round {round} of {rounds}: nobody's privacy budget lasts for another one"


def private_notes(privacy: Privacy | None, graph: object) -> list[str]:
    """What a reader must know of the privacy of a result."""
    notes = []
    if privacy is not None and privacy.insecure_noise_seed is not None:
        notes.append(
            f"the noise came from --insecure-noise-seed {privacy.insecure_noise_seed}: whoever knows it can subtract it, so that "
            "this run protects nobody"
        )
    if privacy is not None and isinstance(graph, str) and "noise=" in graph:
        notes.append("the noisy statistics for the graph cost (ε, δ) of their own, which add to the ledger's")
    return notes
