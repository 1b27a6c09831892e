"""Sites on disk for tests, and a line that reaches them in this process, through the same bytes as on the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engines.flower.site import answer_at
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.federation import Federation

OPEN = """statistics = "exact"
label_counts = true
letters = ["predictions", "public", "private"]
arrays = ["features", "gradient", "parts", "held", "answers", "points", "class_means", "class_counts"]"""
"""A policy that lets every method do what it does."""


def write_sites(
    federation: Federation,
    folder: Path,
    groups: Sequence[Sequence[int]],
    disclose: bool = True,
    models: Mapping[str, str] | None = None,
    policy: str = OPEN,
) -> list[Path]:
    """One folder per group of clients, with their splits as NPZ files and a site.toml."""
    found = []
    for s, group in enumerate(groups):
        site = folder / f"site-{s}"
        site.mkdir(parents=True, exist_ok=True)
        lines = [f"disclose = {str(disclose).lower()}"]
        for k in group:
            name = federation.names[k]
            ends = {"": federation.train, "_validation": federation.validation, "_test": federation.test}
            own = {f"{key}{end}": part for end, split in ends.items() for key, part in zip("xy", split[k])}
            np.savez(site / f"{name}.npz", **own)
            lines += ["[[clients]]", f'name = "{name}"', f'data = "{name}.npz"']
            lines += [f'model = "{models[name]}"'] if models else []
        path = site / "site.toml"
        path.write_text("\n".join([*lines, "[policy]", policy]) + "\n")
        found.append(path)
    return found


class LoopLine:
    """Node n is the site in `paths[n]`. Every message starts from disk, as a new process would."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = dict(enumerate(paths))
        self.away: set[int] = set()
        self.sent: list[tuple[int, str]] = []
        self.answers: list[Message] = []

    def nodes(self) -> list[int]:
        return [node for node in self.paths if node not in self.away]

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        """What the node really sends; tests of bad sites override it."""
        return answer.encode()

    def send(self, messages: Mapping[int, Message], limits: Mapping[int, int], timeout: float) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for node, message in messages.items():
            self.sent.append((node, str(message.head["kind"])))
            if node in self.away:
                found[node] = f"did not answer within {timeout:g} s"
                continue
            received = Message.decode(*message.encode())
            answer = answer_at(self.paths[node], received)
            try:
                found[node] = Message.decode(*self.tamper(node, received, answer), limits[node])
                self.answers.append(found[node])
            except FedkinError as problem:
                found[node] = str(problem)
        return found
