"""Attacks: hostile clients to try a run against. Who they are, what they send, and what it does to the others."""

from __future__ import annotations

from fedkin.attacks.behaviour import ATTACKS, Attack
from fedkin.attacks.clients import Attacked
from fedkin.attacks.samples import poisoned, stamped
from fedkin.attacks.study import Attempt, Study, attackers, study, under_attack

__all__ = [
    "ATTACKS",
    "Attack",
    "Attacked",
    "Attempt",
    "Study",
    "attackers",
    "poisoned",
    "stamped",
    "study",
    "under_attack",
]
