"""What a site may say: one strict schema per kind of message. Whatever does not fit is refused in one line.

hello    its clients: names, shapes, columns, labels, models        join     sizes of their splits, hashes of their data
answer   who answered a task, who did not and why                   post     letters, or the names of those it has
deploy   whose models were written                                  frozen   the hash of the frozen part it has
Any of them may be a refusal instead: {"refused": reason}. Tensors ride beside the head and are checked in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError, first_fault

REASON = 500
"""Characters of a site's reason that are kept."""
MOST_CLIENTS, MOST_LABELS, MOST_COLUMNS, MOST_ENTRIES = 100_000, 10_000, 100_000, 2**28
"""Bounds on what one site may tell of: clients, labels, columns, and entries of one input or target."""
MOST_SAMPLES = 10**9
"""Samples a client may claim to have, whatever federation.toml allows."""


def one_line(text: object) -> str:
    """A reason from outside as one printable line.

    >>> one_line("no\\x1b[2J\\nway")
    'no [2J way'
    """
    shown = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * REASON])
    return " ".join(shown.split())[:REASON]


def _printable(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("use printable characters, without space around them")
    return name


def _countable(shape: list[int]) -> list[int]:
    entries = 1
    for side in shape:
        entries *= side
    if entries > MOST_ENTRIES:
        raise ValueError(f"more than {MOST_ENTRIES:,} entries")
    return shape


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError("names the same client twice")
    return names


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Names = Annotated[list[Name], Field(max_length=MOST_CLIENTS), AfterValidator(_distinct)]
Side = Annotated[int, Field(ge=1, le=MOST_ENTRIES)]
Shape = Annotated[list[Side], Field(max_length=8), AfterValidator(_countable)]
Reason = Annotated[str, AfterValidator(one_line)]
Count = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
Label = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=1000)] | bool


class Said(BaseModel):
    """The head of a site's message."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: ClassVar[str] = "message"


Ends = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=2, max_length=2)]


class ColumnTold(Said):
    """A column of a raw table, as far as the site's policy lets it be told."""

    holds: Literal["number", "text", "date", "empty"]
    range: Ends | None = None
    texts: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=MOST_LABELS)] | None = None


class Described(Said):
    """A client before the task is agreed on."""

    name: Name
    input_shape: Annotated[Shape, Field(min_length=1)]
    output_shape: Shape
    columns: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=MOST_COLUMNS)] | None = None
    model: Annotated[str, Field(max_length=200)] | None = None
    labels: Annotated[list[Label], Field(min_length=1, max_length=MOST_LABELS)] | None = None
    table: Annotated[list[ColumnTold], Field(max_length=MOST_COLUMNS)] | None = None
    """Of a raw table that is to be prepared: its columns, in order."""
    target_range: Ends | None = None
    missing: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100)] = []
    """Cells of a raw table that stand for missing ones."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Described:
        if self.table is not None and len(self.table) != len(self.columns or ()):
            raise ValueError("tells of another number of columns than it names")
        return self


class Sized(Said):
    """A client after its data are split."""

    name: Name
    train: Annotated[Count, Field(ge=1)]
    validation: Count
    test: Count
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{8,128}$")]
    class_counts: Annotated[list[Count], Field(max_length=MOST_LABELS)] | None = None
    """Training samples of each class, where they were asked for and the site lets them leave."""


class Hello(Said):
    kind: ClassVar[str] = "hello"

    clients: Annotated[list[Described], Field(min_length=1, max_length=MOST_CLIENTS)]


class Join(Said):
    kind: ClassVar[str] = "join"

    clients: Annotated[list[Sized], Field(min_length=1, max_length=MOST_CLIENTS)]


class Answered(Said):
    """Who answered a task, who did not and why, who must be told again, the bytes of one letter."""

    kind: ClassVar[str] = "answer"

    answered: Names
    failed: dict[Name, Reason] = {}
    forgot: Names = []
    letter_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0


class Posted(Said):
    """Letters, or (`missing`) the names of the private state there is instead."""

    kind: ClassVar[str] = "post"

    missing: Annotated[list[Name], Field(max_length=1000)] | None = None


class HasFrozen(Said):
    """The hash of the frozen part that a site has; "" if it must be sent."""

    kind: ClassVar[str] = "frozen"

    kept: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class Deployed(Said):
    kind: ClassVar[str] = "deploy"

    deployed: Names


SaidT = TypeVar("SaidT", bound=Said)


def read_head(schema: type[SaidT], message: Message, tensor: Callable[[str], bool] = lambda name: False) -> SaidT:
    """The head of a message by its schema; `tensor` says which tensors may ride with it."""
    if "refused" in message.head:
        raise FedkinError(f"refused: {one_line(message.head['refused'])}")
    try:
        said = schema.model_validate(dict(message.head))
    except ValidationError as problem:
        fault = one_line(first_fault("head", problem))
        raise FedkinError(f"sent a head that is no {schema.kind}: {fault}") from problem
    strange = [name for name in message.tensors if not tensor(name)]
    if strange:
        raise FedkinError(f"sent a tensor {one_line(strange[0])!r} that nobody asked for")
    names = [client.name for client in said.clients] if isinstance(said, Hello | Join) else []
    if len(set(names)) != len(names):
        raise FedkinError("names the same client twice")
    return said
