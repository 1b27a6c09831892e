"""How much of a run of auto is done: members in the order they are trained, each with what it costs beside FedAvg."""

from __future__ import annotations

from fedkin.portfolio.effort import Effort

BAYES = 6.0
"""What training pFedBayes costs, in runs of FedAvg."""
FOLDS = 4


class Done:
    """The share of a run that is done, from what `watch` is told; an estimate, since members may be left out."""

    def __init__(self, effort: Effort, rounds: int, steps: int) -> None:
        tuned = max(effort.fine_tuning, default=0) / max(1, steps * rounds)
        used = effort.used or FOLDS

        def trials(name: str) -> list[float]:
            """On the first fold, and then the others with what did best."""
            multiples = effort.together.get(name, ())
            tried = [1 / used] * (len(multiples) + effort.adam) if multiples else []
            return [*tried, *([1 - 1 / used] if used > 1 else [])] if tried else [1.0]

        kin = trials("kin")
        self.plan = {"local": [1.0], "fedavg": trials("fedavg"), "kin": [*kin[:-1], kin[-1] + 2 * tuned]}
        """Member → what its trainings cost in runs of FedAvg, one after the other; fine-tuning counts with Kin's last."""
        if effort.bayes:
            self.plan["pfedbayes"] = [BAYES / 3, BAYES * 2 / 3]
        self.total = sum(map(sum, self.plan.values()))
        self.ended: list[str] = []
        self.best = 0.0

    def share(self, member: str, round: int, rounds: int) -> float:
        """0…1 after this round of a member, never less than before."""
        before = sum(sum(costs) for name, costs in self.plan.items() if self._earlier(name, member))
        costs, ended = self.plan.get(member, [0.0]), self.ended.count(member)
        current = costs[min(ended, len(costs) - 1)] * round / max(1, rounds)
        if round == rounds:
            self.ended.append(member)
        self.best = min(1.0, max(self.best, (before + sum(costs[:ended][: len(costs) - 1]) + current) / self.total))
        return self.best

    def _earlier(self, name: str, member: str) -> bool:
        order = list(self.plan)
        return member in order and order.index(name) < order.index(member)
