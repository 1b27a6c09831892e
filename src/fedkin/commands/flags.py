"""The flags that commands share, and the layer of settings they make."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

DATA, METHOD, LEARNING, RUN, OUTPUT = "Data", "Method", "Loss and metrics", "Run", "Output"


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before an hour of training goes by."""
    if path is not None and (path.is_dir() or not os.access(_existing(path.absolute().parent), os.W_OK)):
        raise typer.BadParameter(f"{path} cannot be written; choose another file")
    return path


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


def option(name: str, help: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    """A flag of a panel of the help; its default is told by its words, if at all."""
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar, show_default=False, **more)


def out_folder(help: str) -> Any:
    """The flag --out of a command that fills a folder."""
    return option("--out", help, OUTPUT, "DIR")


Data = Annotated[str | None, option("--data", "a data set, see: fedkin data list; or package.module:set", DATA)]
NumClients = Annotated[int | None, option("--clients", "how many clients", DATA)]
Partition = Annotated[
    str | None,
    option("--partition", "who holds what: natural, iid, dirichlet:0.3, labels:2, shards:2, …", DATA),
]
Csv = Annotated[Path | None, option("--csv", "a table of your own (CSV, Excel or Parquet)", DATA)]
Client = Annotated[str | None, option("--client", "the table's column that names the client", DATA)]
Target = Annotated[str | None, option("--target", "the table's column to predict", DATA)]
DropFlag = Annotated[list[str] | None, option("--drop", "a column to leave out (repeatable)", DATA)]
Keep = Annotated[list[str] | None, option("--keep", "use these columns only (repeatable)", DATA)]
IdColumn = Annotated[str | None, option("--id", "a column that names the rows; no input", DATA)]
DateColumn = Annotated[
    list[str] | None,
    option("--date", "a column of dates: year, month, weekday, days since (repeatable)", DATA),
]
MissingValue = Annotated[
    list[str] | None,
    option("--missing", "a cell that means missing, for example -999 (repeatable)", DATA, "VALUE"),
]
Sep = Annotated[str | None, option("--sep", "the separator of a CSV file (default: ,)", DATA)]
Encoding = Annotated[str | None, option("--encoding", "of a CSV file, for example latin-1", DATA)]
Decimal = Annotated[
    str | None, option("--decimal", "what stands before decimals in the table (default: a point)", DATA)
]
TargetKind = Annotated[str | None, option("--task", "the target is: classification, regression or counts", DATA)]
DataSeed = Annotated[
    int | None,
    option("--data-seed", "fix partition and splits while --seed varies (default: --seed)", DATA),
]
Model = Annotated[str | None, option("--model", "network, for example mlr or mlp:100,100 (default: mlp)", METHOD)]
FrozenFlag = Annotated[
    list[str] | None,
    option("--frozen", "tensors that nobody trains, kept once: backbone.* (repeatable)", METHOD, "PATTERN"),
]
PrivateFlag = Annotated[
    list[str] | None,
    option("--private", "tensors that never leave their client: *.lora_B (repeatable)", METHOD, "PATTERN"),
]
CacheFlag = Annotated[
    str | None,
    option("--cache-features", "keep what frozen first layers make of samples: auto, off (default: auto)", METHOD),
]
Graph = Annotated[
    str | None,
    option("--graph", "graph between clients: knn:5, labels, FILE.csv, FILE.parquet, FILE.npz, …", METHOD),
]
Assign = Annotated[
    list[str] | None,
    option("--set", "a parameter, for example lr=0.1 or fedprox.mu=1 (repeatable)", METHOD, "KEY=VALUE"),
]
LossFlag = Annotated[
    str | None,
    option("--loss", "what is minimised: focal:2, mae, huber:1, quantile:0.9, poisson, …", LEARNING),
]
ClassWeight = Annotated[
    str | None,
    option("--class-weight", "balanced, one per class (1,5), or by label (died=5)", LEARNING),
]
LabelSmoothing = Annotated[
    float | None, option("--label-smoothing", "share of a label spread over all classes", LEARNING)
]
AugmentFlag = Annotated[
    str | None, option("--augment", "random changes of training images: crop:4+flip, mixup:0.2", LEARNING)
]
MetricFlag = Annotated[
    list[str] | None,
    option("--metric", "auroc, f1, brier, mae, … (repeatable, or separated by commas)", LEARNING),
]
HeadlineFlag = Annotated[
    str | None, option("--headline", "the metric that tables speak of (default: the first)", LEARNING)
]
PrivacyTable = Annotated[
    str | None,
    option(
        "--privacy",
        "differential privacy: level=sample,epsilon=6,delta=1e-5,clip=1.0 (docs/private-training.md)",
        LEARNING,
        "TABLE",
    ),
]
InsecureSeed = Annotated[
    int | None,
    option("--insecure-noise-seed", "for tests: noise of --privacy that anybody can draw again", LEARNING),
]
Guard = Annotated[
    str | None,
    option(
        "--robust",
        "guard methods that mix rows against hostile clients: clip, trimmed, median, norm, evidence, … "
        "(docs/robustness.md)",
        METHOD,
        "NAME",
    ),
]
Rounds = Annotated[int | None, option("--rounds", "rounds to train (default: 50)", RUN)]
Fraction = Annotated[float | None, option("--fraction", "share of clients per round (default: 1.0)", RUN)]
Seed = Annotated[int | None, option("--seed", "seed of all random numbers (default: 0)", RUN)]
EvalEvery = Annotated[int | None, option("--eval-every", "evaluate every so many rounds", RUN)]
RangeTest = Annotated[
    bool | None,
    option("--range-test", "try other rates, and Adam, on a fold first; train as does best there", RUN),
]
Dtype = Annotated[str | None, option("--dtype", "float32 or float64 (default: float32)", RUN)]
DeviceFlag = Annotated[
    str | None, option("--device", "where clients compute: cpu, cuda, cuda:1, mps, auto (default: cpu)", RUN)
]
PrecisionFlag = Annotated[str | None, option("--precision", "float32 or bfloat16-mixed (default: float32)", RUN)]
RowsPath = Annotated[
    Path | None,
    option("--rows-file", "keep the server's rows in this file, not in memory (fedu)", RUN, "FILE"),
]
Engine = Annotated[str | None, option("--engine", "who runs the clients: in_process, ray (default: in_process)", RUN)]
RayAddress = Annotated[
    str | None,
    option("--ray-address", "join this Ray cluster (default: start one here)", RUN, "ADDRESS"),
]
Json = Annotated[
    Path | None,
    option("--json", "write everything a program needs", OUTPUT, "FILE", callback=_writable),
]
SettingsFile = Annotated[
    Path | None, typer.Argument(help="settings (TOML); flags override them", metavar="FILE.toml", show_default=False)
]


SETTINGS: dict[str, Any] = {
    "file": SettingsFile,
    "data": Data,
    "clients": NumClients,
    "partition": Partition,
    "csv": Csv,
    "client": Client,
    "target": Target,
    "drop": DropFlag,
    "keep": Keep,
    "id": IdColumn,
    "date": DateColumn,
    "missing": MissingValue,
    "sep": Sep,
    "encoding": Encoding,
    "decimal": Decimal,
    "task": TargetKind,
    "data_seed": DataSeed,
    "model": Model,
    "frozen": FrozenFlag,
    "private": PrivateFlag,
    "cache_features": CacheFlag,
    "graph": Graph,
    "assign": Assign,
    "loss": LossFlag,
    "class_weight": ClassWeight,
    "label_smoothing": LabelSmoothing,
    "augment": AugmentFlag,
    "metric": MetricFlag,
    "headline": HeadlineFlag,
    "privacy": PrivacyTable,
    "insecure_noise_seed": InsecureSeed,
    "rounds": Rounds,
    "fraction": Fraction,
    "seed": Seed,
    "eval_every": EvalEvery,
    "range_test": RangeTest,
    "dtype": Dtype,
    "device": DeviceFlag,
    "precision": PrecisionFlag,
    "engine": Engine,
    "ray_address": RayAddress,
}
"""The flags of every command that trains."""
TABLE_PANEL = ("drop", "keep", "id", "date", "sep", "encoding", "decimal", "task")
"""Those that speak of a table, as [data] has them."""


def take_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of SETTINGS before its own; it gets what they were given as its first argument."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in SETTINGS.items()]
    parameters = [*shared, *(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own)]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name, None) for name in SETTINGS}
        command(given, **values)

    wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapped.__wrapped__
    return wrapped


def assignments(given: dict[str, Any], robust: str | None = None) -> dict[str, Any]:
    """What --set and --robust say of the methods' parameters."""
    from fedkin.config import parse_assignments

    return parse_assignments(given["assign"] or []) | ({} if robust is None else {"robust": robust})


def class_weight(text: str) -> str | list[float] | dict[str, float]:
    """What --class-weight says.

    >>> class_weight("balanced"), class_weight("1,5"), class_weight("died=5, moved=2")
    ('balanced', [1.0, 5.0], {'died': 5.0, 'moved': 2.0})
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        if all("=" in part for part in parts):
            pairs = (part.rpartition("=") for part in parts)
            return {label.strip(): float(weight) for label, _, weight in pairs}
        return text if parts == [text] and text.isalpha() else [float(part) for part in parts]
    except ValueError:
        wanted = "balanced, one number per class (1,5), or label=number (died=5)"
        raise typer.BadParameter(f"--class-weight {text!r} is none of: {wanted}") from None


def privacy_table(text: str | None, insecure: int | None) -> dict[str, Any] | None:
    """What --privacy and --insecure-noise-seed say.

    >>> privacy_table("level=sample, epsilon=6,delta=1e-5", None)
    {'level': 'sample', 'epsilon': 6.0, 'delta': 1e-05}
    """
    if text is None:
        if insecure is not None:
            raise typer.BadParameter("--insecure-noise-seed is a part of --privacy; give both")
        return None
    table: dict[str, Any] = {} if insecure is None else {"insecure_noise_seed": insecure}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise typer.BadParameter(
                f"--privacy {text!r} is no table; write level=sample,epsilon=6,delta=1e-5,clip=1.0"
            )
        try:
            table[key] = float(value)
        except ValueError:
            table[key] = value
    return table


RUN_FLAGS = (
    *("rounds", "fraction", "seed", "seeds", "eval_every", "dtype", "device", "precision", "engine", "range_test"),
    *("loss", "label_smoothing", "headline", "augment", "frozen", "private", "cache_features"),
)
"""Flags that are called as the keys of [run] are."""


def layer(**given: Any) -> dict[str, dict[str, Any]]:
    """Flags as a layer of settings; those that were not given leave no trace."""
    data = {key: given.get(key) for key in ("clients", "partition", "client", "target", *TABLE_PANEL)}
    data |= {"missing_values": given.get("missing") or None}
    data |= {"name": given.get("data"), "seed": given.get("data_seed")}
    if given.get("csv") is not None:
        if given.get("data") is not None:
            raise typer.BadParameter("use --data or --csv, not both")
        data |= {"name": "csv", "path": str(given["csv"].expanduser().absolute())}
    run = {key: given.get(key) for key in RUN_FLAGS}
    if given.get("class_weight") is not None:
        run["class_weight"] = class_weight(given["class_weight"])
    if given.get("metric"):
        run["metrics"] = [name.strip() for text in given["metric"] for name in text.split(",") if name.strip()]
    if given.get("rows_file") is not None:
        run |= {"rows_file": str(given["rows_file"].expanduser().absolute())}
    if given.get("ray_address") is not None:
        run |= {"engine": run["engine"] or "ray", "engine_options": {"address": given["ray_address"]}}
    sections: dict[str, dict[str, Any]] = {
        "data": data,
        "model": {"name": given.get("model")},
        "graph": {"name": given.get("graph")},
        "run": run,
        "training": {"privacy": privacy_table(given.get("privacy"), given.get("insecure_noise_seed"))},
        "algorithm": {"name": given.get("algorithm")},
        "algorithms": {name: {} for name in given.get("algorithms") or ()},
    }
    return {
        name: {key: value for key, value in section.items() if value is not None and value != []}
        for name, section in sections.items()
    }
