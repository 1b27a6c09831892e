"""Do the defaults train every network of the catalogue to within a point of its tuned self? On folds; test samples are never seen.

    python benchmarks/networks.py                      every pair that networks.json lacks, then docs/networks.md
    python benchmarks/networks.py --only digits heart --networks mlr mlp      some sets, some networks
    python benchmarks/networks.py --page-only          writes the page again from the JSON
    python benchmarks/networks.py --quick              a trial of one pair and two rounds, which writes nothing

Every network that fits a set's inputs trains alone (Local) for as many rounds as `fedkin run` has by default, with the default
training and with others, on two thirds of every client's training samples; the other third judges. Tuned is the best of all by that
third, the default among them, so that the distance is never negative and rather too large than too small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from defaults import FEDERATIONS, FOLDS, HERE, federation, markdown, named

from fedkin import algorithms, data, train
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import folded
from fedkin.files import versions, write_json
from fedkin.models import NETWORKS, build_network
from fedkin.run.options import Options

ROUNDS: int = Options.model_fields["rounds"].default
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.01},
    {"lr": 0.2},
    {"optimiser": "adam", "lr": 0.001},
    {"optimiser": "adam", "lr": 0.01},
)
IMAGES: dict[str, dict[str, Any]] = {
    "MNIST": {"name": "mnist", "clients": 10, "samples": 1000, "partition": "dirichlet:0.5"},
    "CIFAR-10": {"name": "cifar10", "clients": 10, "samples": 1000, "partition": "dirichlet:0.5"},
}
POINT = 1.0


def clients(title: str) -> Federation:
    """The training samples of a set, a third of them held out."""
    if title in FEDERATIONS:
        return federation(title)
    return folded(data.load(**{"seed": 0, **IMAGES[title]}), FOLDS, used=1)


def fits(network: str, whole: Federation) -> bool:
    try:
        build_network(network, whole.task)
    except FedkinError:  # made for another kind of inputs
        return False
    return True


def points(network: str, settings: Mapping[str, Any], whole: Federation, rounds: int) -> float | None:
    """Accuracy in %, or 100·R² of z-scored targets, on what was held out; None where training broke off."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = algorithms.make("local", dict(settings))
            result = train(whole, network, made, rounds=rounds, eval_every=rounds, influence=False, workers=1)
    except FedkinError:
        return None
    name = result.metric.removeprefix("test_")
    found = 100 * float(np.nanmean(np.array(result.metrics["deployed"][f"validation_{name}"], dtype=float)))
    return found if whole.task.kind == "classification" else 100 - found


def sweep(path: Path, only: list[str], networks: list[str], rounds: int, most: int | None = None) -> dict[str, Any]:
    """Every pair of the named sets and networks; what the file has is not tried again."""
    records = json.loads(path.read_text())["records"] if path.exists() else []
    done = {(r["set"], r["network"], json.dumps(r["settings"])) for r in records}
    for title in (title for title in (*FEDERATIONS, *IMAGES) if any(text in title for text in only)):
        whole = clients(title)
        for network in [name for name in networks if fits(name, whole)][:most]:
            for settings in SETTINGS:
                if (title, network, json.dumps(settings)) not in done:
                    before = time.process_time()
                    found = points(network, settings, whole, rounds)
                    told = {"set": title, "network": network, "settings": settings, "points": found}
                    records.append(told | {"rounds": rounds, "cpu": round(time.process_time() - before, 2)})
                    write_json(path, {"versions": versions(), "records": records})
                    print(title, network, named(settings), found, flush=True)
    return {"records": records}


def page(facts: Mapping[str, Any]) -> str:
    pairs: dict[tuple[str, str], dict[str, float | None]] = {}
    for record in facts["records"]:
        pairs.setdefault((record["set"], record["network"]), {})[json.dumps(record["settings"])] = record["points"]
    whole = {pair: tried for pair, tried in pairs.items() if len(tried) == len(SETTINGS)}
    rows, short = [], []
    for (title, network), tried in whole.items():
        known = {text: value for text, value in tried.items() if value is not None}
        best = max(known, key=lambda text: known[text])
        own = tried["{}"]
        gap = known[best] - own if own is not None else float("inf")
        if gap > POINT:
            short.append(f"{network} on {title} ({gap:.1f})")
        cells = ["broke off" if value is None else f"{value:.1f}" for value in tried.values()]
        rows.append([title, network, *cells, f"{gap:.1f}", named(json.loads(best)) if gap else "–"])
    within = len(rows) - len(short)
    far = f" Further away: {'; '.join(short)}." if short else ""
    rounds = "/".join(str(n) for n in sorted({record["rounds"] for record in facts["records"]}))
    head = ["set", "network", *("default" if not settings else named(settings) for settings in SETTINGS), "gap", "best"]
    text = (
        f"Every network of the catalogue that fits a set, trained alone for {rounds} rounds with the default settings and with others, on two "
        "thirds of each client's training samples; the last third judges (one fold, one seed, test samples were not there). Points are accuracy in % "
        "or 100·R². *Gap* is how far the default is from the best of the line by the same third, which flatters the best."
    )
    return "\n\n".join(
        [
            "# Networks at their defaults",
            "Written by `python benchmarks/networks.py` from [networks.json](../benchmarks/networks.json); do not edit. How the defaults were chosen: "
            "[defaults.md](defaults.md).",
            text,
            f"**Within a point: {within} of {len(rows)} pairs.**{far}",
            markdown(head, rows) + "\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=HERE / "networks.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "networks.md")
    parser.add_argument("--only", nargs="*", default=[""], help="sets whose name holds one of these texts")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--page-only", action="store_true", help="write the page from the JSON, train nothing")
    parser.add_argument("--quick", action="store_true", help="one pair, two rounds")
    options = parser.parse_args()
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            print(page(sweep(Path(folder) / "networks.json", ["heart"], options.networks, 2, most=1)))
        return
    if options.page_only:
        facts = json.loads(options.json.read_text())
    else:
        facts = sweep(options.json, options.only, options.networks, ROUNDS)
    options.page.write_text(page(facts))
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
