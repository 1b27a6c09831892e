"""What auto found, in words: who does better together, who helps whom, who stays alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.result.history import History
from fedkin.result.result import Result

FEW_TO_JUDGE = 5
"""With fewer held-out samples nothing is said about a client; those of one class hardly count."""


def standing(told: Mapping[str, Any]) -> str:
    """better, same, alone or unknown: by the gain to expect on new samples, which no test sample has a part in."""
    if min(told["samples"], told.get("effective", told["samples"])) < FEW_TO_JUDGE:
        return "unknown"
    if told["kept_alone"]:
        return "alone"
    return "better" if told["gain"][1] > 0 else "same"


def kin_of(result: Result, k: int, most: int = 3) -> list[str]:
    """Who helps client k, with their shares; nobody where the gate kept it alone."""
    if result.auto[result.names[k]]["kept_alone"]:
        return []
    return [f"{100 * weight:.0f}% {name}" for name, weight in helpers(result, k, most)]


def helpers(result: Result, k: int, most: int = 3) -> list[tuple[str, float]]:
    """The other clients with the largest weights in client k's kin, and the weights; a newcomer's are those of the run."""
    names: Sequence[str] = result.names
    if "kin_of_peers" in result.extras:
        names, row = result.facts["peers"], result.extras["kin_of_peers"][k].numpy()
        who = np.arange(len(row))
    elif "kin_peers" in result.extras:  # the client's own line alone: there may be many
        who, row = result.extras["kin_peers"][k].numpy(), result.extras["kin_weights"][k, 1:].numpy()
    elif "kin" not in result.extras:
        return []
    else:
        who, row = np.arange(len(names)), np.where(np.arange(len(names)) == k, 0, result.extras["kin"][k].numpy())
    return [(names[int(who[j])], float(row[j])) for j in np.argsort(-row, kind="stable")[:most] if row[j] > 0.02]


def who_helps(result: Result, most: int = 2) -> str:
    """Who helps whom by the transfer gains that kin and auto weigh models by, in a sentence; empty for other methods."""
    if "kin_weights" not in result.extras and "kin" not in result.extras:
        return ""
    alone = {name for name, told in result.facts.get("auto", {}).items() if told["kept_alone"]}
    found = {name: helpers(result, k, len(result.names)) for k, name in enumerate(result.names) if name not in alone}
    helped = sorted((name for name, kin in found.items() if kin), key=lambda name: -found[name][0][1])
    if not helped:
        return f"By {result.title}'s transfer gains nobody's model helps another client."
    parts = [f"{name} learns most from {found[name][0][0]} ({100 * found[name][0][1]:.0f} %)" for name in helped[:most]]
    counts = Counter(helper for kin in found.values() for helper, _ in kin)
    (helper, times), *others = counts.most_common(2)
    if times > 1 and (not others or others[0][1] < times):
        parts.append(f"{helper} helps {times} others, more than anybody")
    lone = [name for name in result.names if name in alone or not found[name]]
    if lone:
        parts.append(f"nobody helps {in_words(lone)}")
    return f"By {result.title}'s transfer gains {'; '.join(parts)}."


def combination(told: Mapping[str, Any], most: int = 3) -> list[str]:
    """The members of a client's model with their shares, the heaviest first; "its own" where the gate kept it alone."""
    if told["kept_alone"]:
        return ["its own"]
    heaviest = sorted(told["members"].items(), key=lambda entry: -entry[1])[:most]
    return [f"{100 * weight:.0f}% {member}" for member, weight in heaviest]


def gain_text(told: Mapping[str, Any]) -> str:
    """The gain to expect, in loss per sample, and half of its 95 % interval; "?" where there is too little to judge by."""
    gain, low, high = told["gain"]
    if standing(told) == "unknown":
        return "?"
    return "–" if told["kept_alone"] else f"{gain:+.2f} ± {(high - low) / 2:.2f}".replace("-", "−")


def distilled_text(result: Result) -> str:
    """What one network per client costs against the combinations that taught them, on the same test samples."""
    told, metric = result.facts["distilled"], result.task.headline_metric
    before = metric.amount(float(np.nanmean(told["combined"][result.metric])))
    after = metric.amount(float(np.nanmean(result.metrics["deployed"][result.metric])))
    networks = float(np.mean(told["networks"]))
    return f"distilled: one network per client instead of {networks:.1f} on average; mean {metric.label} {after}, combined {before}"


def trained_alone(result: Result) -> Result:
    """What the clients of an auto result reach alone, as a run of Local: to be shown beside it. It has no models."""
    metrics = result.facts["alone"]
    record = {**result.history[-1], "pre": metrics, "post": metrics, "bytes": 0, "messages": 0}
    training = {
        key: value for key, value in result.config["algorithm"].items() if key not in ("name", "effort", "distil")
    }
    kept = {key: value for key, value in result.facts.items() if key not in ("auto", "seconds", "distilled")}
    return replace(
        result,
        models={},
        choice=("received",) * len(result.names),
        metrics={"pre": metrics, "post": metrics, "deployed": metrics},
        history=History(result.names, [record]),
        config={**result.config, "algorithm": {"name": "local", **training}},
        extras={name.removeprefix("alone_"): v for name, v in result.extras.items() if name.startswith("alone_")},
        facts={**kept, "title": "Local", "bytes": 0, "messages": 0},
    )


def sentence(result: Result) -> str:
    """The headline."""
    told = {name: dict(entry) for name, entry in result.auto.items()}
    found = {name: standing(entry) for name, entry in told.items()}
    by = {what: [name for name, own in found.items() if own == what] for what in ("better", "same", "alone", "unknown")}
    if len(by["unknown"]) == len(found):
        return f"No client has {FEW_TO_JUDGE} samples that tell something; nothing can be said about who gains."
    clients = len(found)
    parts = [f"{len(by['better'])} of {clients} clients do better together, none is expected to do worse"]
    if by["same"]:
        parts.append(f"{len(by['same'])} about the same")
    if by["better"]:
        most = max(by["better"], key=lambda name: told[name]["gain"][0])
        kin = helpers(result, result.names.index(most))
        parts.append(f"{most} gains most" + (f", from {in_words([name for name, _ in kin])}" if kin else ""))
    if by["alone"]:
        parts.append(f"{in_words(by['alone'])} {'stays' if len(by['alone']) == 1 else 'stay'} alone")
    few = [name for name in by["unknown"] if told[name]["samples"] < FEW_TO_JUDGE]
    if few:
        parts.append(f"too few samples to judge {in_words(few)}")
    if uniform := [name for name in by["unknown"] if name not in few]:
        parts.append(f"too few of a second class to judge {in_words(uniform)}")
    return "; ".join(parts) + "."


def in_words(names: Sequence[str], most: int = 3) -> str:
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
