"""How much of a run of auto is done: members in the order they are trained, each with what it costs beside FedAvg."""

from __future__ import annotations

from fedkin.portfolio.search import Effort

BAYES = 6.0
"""What training pFedBayes costs, in runs of FedAvg."""


class Done:
    """The share of a run that is done, from what `watch` is told; an estimate, since members may be left out."""

    def __init__(self, effort: Effort, rounds: int, steps: int) -> None:
        longest = max(effort.fine_tuning, default=0) / max(1, steps * rounds)
        self.plan = {"local": 1.0, "fedavg": 1.0, "kin": 1.0}
        """Member → its cost in runs of FedAvg; fine-tuning is told of with what comes after it."""
        if effort.bayes:
            self.plan |= {"pfedbayes": BAYES / 3, "pfedbayes, other folds": BAYES * 2 / 3}
        self.total = sum(self.plan.values()) + 2 * longest
        self.tuning = 2 * longest
        self.ended: list[str] = []

    def share(self, member: str, round: int, rounds: int) -> float:
        """0…1 after this round of a member."""
        member = "pfedbayes, other folds" if member == "pfedbayes" and member in self.ended else member
        order = list(self.plan)
        before = sum(self.plan[name] for name in order[: order.index(member)]) if member in order else 0.0
        now = before + self.plan.get(member, 0.0) * round / max(1, rounds)
        if member.startswith("pfedbayes"):
            now += self.tuning
        if round == rounds:
            self.ended.append(member)
        return min(1.0, now / self.total)
