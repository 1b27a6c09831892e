"""What the tensors of an answer may be. A site is not trusted: bytes, names, types, shapes and values are checked first.

A shape that is wrong sets the site's clients aside, a value that is out of range the client whose it is. How large a value
may be is told by the other sites': so many times (`Far`) the median of what their clients sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.clients import n_bytes
from fedkin.engines.flower.messages import Answered, Posted, read_head
from fedkin.engines.flower.wire import Message
from fedkin.engines.host import Answer
from fedkin.engines.sharding import Question
from fedkin.errors import FedkinError
from fedkin.federation import PARTS
from fedkin.local.steady import HALVED
from fedkin.models import ModelSpec
from fedkin.roster import Roster
from fedkin.task import Task
from fedkin.task.curves import ASK_CURVES, NO_VALUE, no_curves, tells_curves
from fedkin.task.judging import may_lack

SLACK = 2**20
"""Bytes for counts, losses, metrics and names, whatever the model."""
MOST_HALVINGS = 64
"""A rate that was halved more often than this is none."""
COPIES = 6
"""How many arrays of a row's size a task may give back for a client (rows, model, control, …)."""


def allowed_bytes(question: Question, spec: ModelSpec, task: Task) -> int:
    """The most an answer to this question may weigh: a few rows per client, statistics of its inputs, predictions.

    A method that asks for more says so: `numbers` in what is shared is how many more a client may send.
    """
    inputs, number = int(np.prod(task.input_shape, dtype=int)), spec.dtype.itemsize
    models = question.shared.get("models")
    across = len(models) if isinstance(models, Tensor) else 0
    each = 8 * COPIES * (spec.layout.width + len(spec.layout.counters)) + 64 * (inputs + task.outputs)
    each += (
        8 * int(question.shared.get("numbers", 0))
        + 16 * across
        + n_bytes(question.per_client) // max(1, len(question.ids)) * (8 // number)
    )
    return SLACK + len(question.ids) * each


def expected(question: Question, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shapes, per client, of arrays whose shape is known beforehand."""
    width, shared = spec.layout.width, question.shared
    private = (*shared.get("private", ()), *shared.get("home", ()))
    known: dict[str, tuple[int, ...]] = {"loss": (), "moved": (), "epsilon": (), "rounds_left": (), "model": (width,)}
    known |= {"counters": (len(spec.layout.counters),)} | dict.fromkeys(HALVED, ())
    known |= {name: tuple(value.shape[1:]) for name, value in no_curves(0).items()}
    if "sgd" in shared:
        known["rows"] = (width - int(spec.layout.mask(private).sum()),)
    return known


def required(question: Question, task: Task) -> set[str]:
    """The arrays that must be there: those of training, and those of an evaluation."""
    training = {"sgd", "round", "private"} <= question.shared.keys()
    names = {"rows", "loss", "moved"} if training else set()
    asked = "parts" if question.task == "evaluate" else "evaluate" if training else ""
    parts = question.shared.get(asked, ())
    judged = {f"{part}_{what}" for part in parts if part in PARTS for what in ("loss", *task.metric_keys, "count")}
    return names | judged | ({"roc", "calibration"} if ASK_CURVES in parts and tells_curves(task) else set())


def read_answer(
    message: Message, names: list[str], question: Question, spec: ModelSpec, task: Task
) -> tuple[Answer, int]:
    """The answer of a site to a question put to its clients `names`, and the bytes of a letter.

    FedkinError says what is wrong with it.
    """
    told = read_head(Answered, message, tensor=lambda name: name.startswith("array/"))
    spoken = [*told.answered, *told.failed, *told.forgot]
    if not {*spoken} <= set(names):
        raise FedkinError("answered for clients it was not asked about")
    if len(set(spoken)) != len(spoken):
        raise FedkinError("says of the same client that it answered and that it did not")
    arrays, known = message.part("array"), expected(question, spec)
    for key, value in arrays.items():
        if value.ndim < 1 or len(value) != len(told.answered):
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape)} for {len(told.answered)} clients")
        if key in known and tuple(value.shape[1:]) != known[key]:
            raise FedkinError(f"sent {key!r} of shape {tuple(value.shape[1:])} per client, expected {known[key]}")
        if key in ("rows", "model") and value.numel() and value.dtype != spec.dtype:
            raise FedkinError(f"sent {key!r} as {value.dtype}, expected {spec.dtype}")
    lacking = sorted(required(question, task) - set(arrays)) if told.answered else []
    if lacking:
        raise FedkinError(f"sent other arrays than it was asked for: {', '.join(lacking)} missing")
    ids = np.array([names.index(name) for name in told.answered], dtype=np.int64)
    silent = dict.fromkeys((name for name in names if name not in spoken), "gave no answer")
    return Answer(ids, arrays, {**told.failed, **silent}, tuple(told.forgot)), told.letter_bytes


def read_letters(message: Message, letter: str, names: list[str], padded: bool) -> dict[str, Tensor] | list[str]:
    """What the clients `names` of a site wrote, by name, or the names of the state it has instead of the letter.

    FedkinError says what is wrong with it. In padded letters NaN stands for no value.
    """
    told = read_head(Posted, message, tensor=lambda name: name == "letters")
    stack = message.tensors.get("letters")
    if told.missing is not None and stack is None:
        return told.missing
    if stack is None or stack.ndim < 1 or len(stack) != len(names):
        raise FedkinError(f"sent no letters {letter!r} of its {len(names)} clients")
    if stack.is_floating_point() and bool((stack.isinf() if padded else ~stack.isfinite()).any()):
        raise FedkinError(f"sent NaN or infinity in its letters {letter!r}")
    return dict(zip(names, stack))


def letter_limit(spec: ModelSpec, task: Task) -> int:
    """The most a letter may weigh: a few rows, or inputs of a few thousand public points."""
    inputs = int(np.prod(task.input_shape, dtype=int))
    return SLACK + 8 * spec.dtype.itemsize * (spec.layout.width + inputs * 1000)


# --- agreement between sites ------------------------------------------------------------------------------------------


def usual(kinds: Mapping[int, Any], clients: Mapping[int, int]) -> Any:
    """What most sites sent; of two that are equally frequent, what was sent for more clients."""
    sites, size = Counter(kinds.values()), Counter[Any]()
    for site, kind in kinds.items():
        size[kind] += clients[site]
    return max(sites, key=lambda kind: (sites[kind], size[kind]))


def _kind(answer: Answer) -> tuple[Any, ...]:
    return tuple(sorted((key, str(value.dtype), tuple(value.shape[1:])) for key, value in answer.arrays.items()))


def agreeing(answers: Mapping[int, Answer | str]) -> dict[int, Answer | str]:
    """Answers that hold other arrays than most sites' do become a reason."""
    given = {site: a for site, a in answers.items() if isinstance(a, Answer) and len(a.ids)}
    kinds = {site: _kind(answer) for site, answer in given.items()}
    checked = dict(answers)
    if len(set(kinds.values())) > 1:
        most = usual(kinds, {site: len(answer.ids) for site, answer in given.items()})
        for site, kind in kinds.items():
            if kind != most:
                names = sorted({entry[0] for entry in {*kind} ^ {*most}})
                checked[site] = f"sent other arrays than most sites: {', '.join(names)}"
    return checked


def agreeing_letters(
    letters: Mapping[int, Mapping[str, Tensor]], letter: str, far: float
) -> tuple[dict[int, Mapping[str, Tensor]], dict[int, str]]:
    """Letters of the shape that most sites' have and of a size that others' have; and why a site's are left out."""
    kinds = {
        site: (str(first.dtype), tuple(first.shape)) for site, own in letters.items() for first in [*own.values()][:1]
    }
    good, silent = dict(letters), {}
    if len(set(kinds.values())) > 1:
        most = usual(kinds, {site: len(own) for site, own in letters.items()})
        silent = {
            site: f"sent letters {letter!r} of another shape or type than most sites"
            for site, kind in kinds.items()
            if kind != most
        }
    stacks = {site: torch.stack([*own.values()]) for site, own in letters.items() if site not in silent}
    sizes = {
        site: _norms(stack.nan_to_num(0.0) if stack.is_floating_point() else stack) for site, stack in stacks.items()
    }
    for site, own in sizes.items():
        limit = far * max(1.0, _median(sizes, site))
        if bool((own > limit).any()):
            silent[site] = f"sent a letter {letter!r} of norm {float(own.max()):.3g}; others' allow {limit:.3g}"
    return {site: own for site, own in good.items() if site not in silent}, silent


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Far:
    """How many times the median of the other sites a client's value may be."""

    updates: float = 1e3
    """For ‖row sent − row received‖, and for whole numbers."""
    values: float = 1e6
    """For everything else: losses, statistics, gradients, …"""


def _norms(value: Tensor) -> Tensor:
    """The Euclidean norm of each client's part, (n,), in float64."""
    return value.reshape(len(value), -1).double().norm(dim=1)


def _median(norms: Mapping[int, Tensor], site: int) -> float:
    """The median over the clients of the other sites; 0 where there are none."""
    others = [own[own.isfinite()] for host, own in norms.items() if host != site]
    joined = torch.cat(others) if others else torch.zeros(0)
    return float(joined.median()) if len(joined) else 0.0


Fault = tuple[Tensor, Callable[[int], str]]
"""Which of a site's clients are at fault, (n,) bool, and the reason for the one at a position."""


def plausible(
    answers: Mapping[int, Answer | str],
    questions: Mapping[int, Question],
    members: Mapping[int, np.ndarray],
    roster: Roster,
    far: Far,
) -> dict[int, Answer | str]:
    """The answers without the clients whose values cannot be; they join the failed, with the reason.

    `ids` of an answer are positions within its site, `members` those of a site's clients in the roster. NaN and infinity
    are left to the caller of all engines (`fedkin.clients.set_aside`).
    """
    given = {site: a for site, a in answers.items() if isinstance(a, Answer) and len(a.ids)}
    checked = dict(answers)
    faults: dict[int, list[Fault]] = {site: [] for site in given}
    for site, answer in given.items():
        faults[site] += _out_of_range(answer, questions[site], members[site][answer.ids], roster)
    known = _sample_counts(roster)
    for key in {key for answer in given.values() for key in answer.arrays} - known.keys() - {*HALVED}:
        for site, fault in _too_far(key, given, questions, far):
            faults[site].append(fault)
    for site, answer in given.items():
        reasons: dict[int, str] = {}
        for bad, reason in faults[site]:
            reasons |= {p: reason(p) for p in torch.nonzero(bad).flatten().tolist() if p not in reasons}
        if reasons:
            keep = torch.tensor([p for p in range(len(answer.ids)) if p not in reasons], dtype=torch.int64)
            names = {roster.names[members[site][answer.ids[p]]]: reason for p, reason in reasons.items()}
            arrays = {key: value[keep] for key, value in answer.arrays.items()}
            checked[site] = replace(
                answer, ids=answer.ids[keep.numpy()], arrays=arrays, failed={**answer.failed, **names}
            )
    return checked


def _out_of_range(answer: Answer, question: Question, clients: np.ndarray, roster: Roster) -> Iterator[Fault]:
    """Metrics outside their range, negative errors and whole numbers, counts that are not those of the roster."""
    counts = _sample_counts(roster)
    counts |= {"sizes": roster.train} if question.task == "sizes" else {}
    counts |= {"count": roster.test} if question.task == "cross_evaluate" else {}
    ranges = {f"{part}_{key}": limits for part in PARTS for key, limits in roster.task.ranges.items()}
    ranges |= {"metric": roster.task.ranges[roster.task.metric]} if question.task == "cross_evaluate" else {}
    ranges |= {"roc": (NO_VALUE, 1.0), "calibration": (0.0, 1.0)}
    choices = [len(v) for v in question.shared.values() if isinstance(v, Tensor) and v.ndim > 1]
    choices += [v.shape[1] for v in question.per_client.values() if v.ndim > 2]
    for key, value in answer.arrays.items():
        flat = value.reshape(len(value), -1)
        if key in counts:
            due, some = torch.from_numpy(np.asarray(counts[key])[clients])[:, None], flat
            if key not in ("count", "sizes", *(f"{part}_count" for part in PARTS)):
                some = torch.where(flat == 0, due, flat)  # of a metric that has no value
            yield (some != due).any(dim=1), _says(key, "is not the number of samples it joined with")
        elif key in HALVED:
            most = MOST_HALVINGS if key == HALVED[0] else np.inf
            yield ((flat < 0) | (flat > most)).any(dim=1), _says(key, "cannot be")
        elif key == "label_counts":
            wrong = (flat < 0).any(dim=1) | (flat.double().sum(dim=1) != torch.from_numpy(roster.train[clients]))
            yield wrong, _says(key, "does not sum to the number of samples it joined with")
        elif key in ranges:
            low, high = ranges[key]
            yield (
                ((flat < low - 1e-6) | (flat > high + 1e-6)).any(dim=1),
                _says(key, f"lies outside [{low:g}, {high:g}]"),
            )
        elif key.endswith(("mse", "mae", "rmse", "moved", "norm", "epsilon", "rounds_left")):
            yield (flat < 0).any(dim=1), _says(key, "is negative")
        elif not value.is_floating_point() and value.dtype != torch.bool:
            yield (flat < 0).any(dim=1), _says(key, "is negative")
            if key == "choice" and choices:
                yield (flat >= min(choices)).any(dim=1), _says(key, f"is not one of {min(choices)}")


def _sample_counts(roster: Roster) -> dict[str, np.ndarray]:
    """Arrays that say how many samples were judged → how many there are; of a metric without a value it is 0."""
    lacking = (f"{name}_" for name in may_lack(roster.task))
    counts = {f"{part}_{name}count": getattr(roster, part) for part in PARTS for name in ("", *lacking)}
    return counts | {"metric_count": roster.test}


def _says(key: str, what: str) -> Callable[[int], str]:
    return lambda position: f"sent {key!r} that {what}"


def _too_far(
    key: str, given: Mapping[int, Answer], questions: Mapping[int, Question], far: Far
) -> Iterator[tuple[int, Fault]]:
    """Values much larger than those of other sites' clients; of rows, how far they are from the received ones."""
    norms: dict[int, Tensor] = {}
    floors: dict[int, float] = {}
    factor = far.values
    for site, answer in given.items():
        value = answer.arrays.get(key)
        if value is None or value.dtype == torch.bool:
            continue
        if not value.is_floating_point():
            factor = far.updates
        received, floor = questions[site].per_client.get("rows"), 1.0
        if key == "rows" and received is not None and received.shape[1:] == value.shape[1:]:
            place = {int(k): position for position, k in enumerate(questions[site].ids)}
            start = received[[place[int(k)] for k in answer.ids]].double()
            factor, floor = far.updates, max(1.0, float(_norms(start).max()))
            value = value.double() - start
        norms[site], floors[site] = _norms(value), floor
    for site, own in norms.items():
        limit = factor * max(floors[site], _median(norms, site))
        bad = (own > limit) & torch.isfinite(given[site].arrays[key].reshape(len(own), -1).double()).all(dim=1)
        yield site, (bad, _norm_says(key, own, limit))


def _norm_says(key: str, norms: Tensor, limit: float) -> Callable[[int], str]:
    return lambda position: f"sent {key!r} of norm {float(norms[position]):.3g}; others' allow {limit:.3g}"
