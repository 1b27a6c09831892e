"""fedkin attack: honest clients' metric without attack, under attack, and under attack with a defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedkin.commands import flags

if TYPE_CHECKING:
    from rich.table import Table

    from fedkin.attacks import Study

METHODS = ("fedavg", "fedpnp", "fedu", "dfedu", "fedcedar")
"""What is attacked unless methods are named."""


@flags.take_settings
def attack(
    given: dict[str, Any],
    algorithms: Annotated[
        str | None,
        flags.option("--algorithms", f"methods, separated by commas (default: {','.join(METHODS)})", flags.METHOD),
    ] = None,
    attacks: Annotated[
        str | None,
        flags.option(
            "--attacks",
            "separated by commas (default: all): sign-flip, large-norm, alie, ipm, label-flip, backdoor, free-rider",
            flags.METHOD,
        ),
    ] = None,
    attackers: Annotated[
        str | None,
        flags.option("--attackers", "how many clients attack, or a list such as 1,4 (default: 1)", flags.METHOD),
    ] = None,
    robust: Annotated[
        str | None, flags.option("--robust", "the defence (default: what each method recommends)", flags.METHOD)
    ] = None,
    out: Annotated[
        Path | None,
        flags.out_folder("folder for attack.json and pictures of who was reached by whom"),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Let some clients attack, and see what becomes of the others.

    Attacks: sign-flip, large-norm, alie, ipm, label-flip, backdoor, free-rider. Who attacks is drawn by --seed.

    \b
    Examples:
      fedkin attack --data digits --clients 20 --algorithms fedavg,fedu
      fedkin attack --data digits --attackers 1,4 --attacks sign-flip --out hit
      fedkin attack --data digits --clients 20 --robust median --json attack.json
    """
    from fedkin import config
    from fedkin.attacks import study
    from fedkin.commands import show
    from fedkin.files import write_json

    listed = METHODS if algorithms is None else _names(algorithms)
    layers = [config.read_toml(given["file"]) if given["file"] else {}, flags.layer(**given, algorithms=listed)]
    settings = config.settle(layers, flags.assignments(given))
    options = settings.options[0]
    with show.working(f"loading {settings.data.name} …"):
        federation = settings.federation(options.seed)
    found = study(
        federation,
        settings.model,
        list(settings.algorithms.values()),
        None if attacks is None else _names(attacks),
        _counts(attackers or "1"),
        options,
        settings.graph,
        robust,
        tell=lambda what: show.say(f"{what} …"),
    )
    show.console().print(attack_table(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "attack.json", found.to_dict())
        draw_reach(found, out)
        show.wrote(out)
    if json is not None:
        write_json(json, found.to_dict())
        show.wrote(json)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _counts(text: str) -> tuple[int, ...]:
    from fedkin.errors import FedkinError

    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise FedkinError(f"attackers is {text!r}; give a number, or a list such as 1,4") from None


def attack_table(study: Study) -> Table:
    """One line per method, number of attackers and attack."""
    from fedkin.commands import show
    from fedkin.task.metrics import find_metric

    metric, share = find_metric(study.metric.removeprefix("test_").replace("_", "-")), find_metric("accuracy")
    caption = (
        f"{metric.heading} of the models that honest clients would deploy, on their own test samples: without attack, under "
        "attack, under attack with the defence.\nalone: the same clients training alone (local). marked: under a backdoor, "
        "the share of marked samples taken for the\nattackers' class, without and with the defence."
    )
    columns = ("method", "attack", "attackers", "alone", "clean", "attacked", "guarded", "defence", "marked")
    made = show.table(*columns, caption=caption)
    for cell in study.cells:
        scores = [metric.number(v) for v in (cell.alone, cell.clean, cell.attacked, cell.guarded)]
        marked = " → ".join(share.number(cell.backdoor.get(kind)) for kind in ("attacked", "guarded"))
        count = f"{cell.attackers} of {len(study.names)}"
        made.add_row(cell.title, cell.attack, count, *scores, cell.robust, marked if cell.backdoor else "")
    for cell in study.cells:
        if cell.broke:
            made.caption = f"{made.caption}\n–: {cell.title} under {cell.attack} broke off: {cell.broke}"
            break
    return made


def draw_reach(study: Study, out: Path) -> None:
    """reach-METHOD.png: for every attack, who was reached by whom, without and with the defence; attackers in red."""
    from matplotlib.figure import Figure

    for method in dict.fromkeys(cell.algorithm for cell in study.cells):
        kept = {key[1:]: matrix for key, matrix in study.influence.items() if key[0] == method}
        lines = list(dict.fromkeys(key[:2] for key in kept))
        if not lines:
            continue
        figure = Figure(figsize=(6, 2.9 * len(lines)), layout="constrained")
        panels = figure.subplots(len(lines), 2, squeeze=False)
        for line, (attack, count) in enumerate(lines):
            for column, kind in enumerate(("attacked", "guarded")):
                ax = panels[line][column]
                ax.set_title(f"{attack}, {count}: {kind}", fontsize=8)
                ax.set(xticks=[], yticks=[])
                if (attack, count, kind) not in kept:
                    ax.axis("off")
                    continue
                ax.imshow(kept[attack, count, kind], cmap="Blues", vmin=0)
                hostile = [study.names.index(name) for name in study.hostile[count]]
                ax.set_xticks(hostile, ["▲"] * len(hostile), color="#d55e00")
        figure.supxlabel("whose updates (▲ attackers)", fontsize=8)
        figure.supylabel("whose model", fontsize=8)
        figure.savefig(out / f"reach-{method}.png", dpi=80)
