"""ONNX models of a table take its raw columns: the same numbers as `predict`, in another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedkin
from fedkin import Federation
from fedkin.result import Result
from fedkin.result.predict import inputs_of


def ward_table(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(["n", "s"], rows), "age": rng.normal(60, 15, rows).round()})
    frame["lab"] = np.where(rng.random(rows) < 0.1, -999, rng.normal(4, 1, rows).round(2))
    frame["ward"] = rng.choice(["01", "02", " ICU", None], rows)
    frame["smoker"] = rng.random(rows) < 0.3
    frame["seen"] = (pd.Timestamp("2022-03-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")).strftime(
        "%d.%m.%Y"
    )
    frame.loc[rng.random(rows) < 0.05, "age"] = np.nan
    frame["died"] = np.where(frame["age"].fillna(60) + 5 * rng.normal(size=rows) > 62, "yes", "no")
    frame["stay"] = 30 + 4 * frame["age"].fillna(60) + rng.normal(size=rows)
    return frame


def trained(target: str) -> Result:
    frame = ward_table().drop(columns="stay" if target == "died" else "died")
    federation = Federation.from_frame(frame, "site", target, date="seen", missing_values=[-999, "unknown"])
    return fedkin.train(federation, "mlp:8", "fedavgft", rounds=2)


def raw(frame: pd.DataFrame) -> dict[str, Any]:
    """What somebody without fedkin feeds: columns as they are, dates as their parts."""
    days = pd.to_datetime(frame["seen"], format="%d.%m.%Y")
    numbers = {
        **{name: frame[name] for name in ("age", "lab", "smoker")},
        **{"seen.year": days.dt.year, "seen.month": days.dt.month, "seen.weekday": days.dt.weekday},
        "seen.days": (days - pd.Timestamp(0)).dt.days,
    }
    fed = {name: values.to_numpy(dtype=np.float64)[:, None] for name, values in numbers.items()}
    return {**fed, "ward": frame["ward"].fillna("").str.strip().to_numpy(dtype=object)[:, None]}


@pytest.mark.parametrize("target", ["died", "stay"])
def test_raw_columns_give_the_numbers_of_predict(target: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result = trained(target)
    out = result.export(tmp_path, "onnx")
    fresh = ward_table(300).iloc[200:].reset_index(drop=True)
    fresh.loc[0, "ward"], fresh.loc[1, "ward"], fresh.loc[2, "lab"] = "never seen", "unknown", -999
    session = runtime.InferenceSession(str(out / "n.onnx"))
    assert {entry.name for entry in session.get_inputs()} == set(raw(fresh))
    (found,) = session.run(["output"], raw(fresh))
    if target == "stay":
        assert np.allclose(found[:, 0], fedkin.predict(result, "n", fresh)["prediction"], rtol=1e-4)
        inputs = torch.from_numpy(inputs_of(result, fresh))
        assert np.allclose(found[:, 0], result.in_units("n")(inputs).detach()[:, 0], rtol=1e-4)
        return
    direct = result.models["n"](torch.from_numpy(inputs_of(result, fresh))).detach().numpy()
    assert np.allclose(found, direct, atol=1e-4)
    labels = np.array(result.task.classes)[found.argmax(axis=1)]
    assert (labels == fedkin.predict(result, "n", fresh)["prediction"]).all()
