from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import FedkinError
from fedkin.result.predict import predict, predict_file


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """A run on a table with numbers, texts, truth values and gaps."""
    rng, n = np.random.default_rng(0), 240
    frame = pd.DataFrame({"site": rng.choice(["site-1", "site-2", "site-3"], n), "age": rng.normal(50, 10, n)})
    frame["sex"] = rng.choice(["m", "f"], n)
    frame["smoker"] = rng.random(n) < 0.5
    frame["outcome"] = np.where(frame["age"] + 6 * frame["smoker"] > 53, "ill", "well")
    frame.loc[::17, "age"] = np.nan
    folder = tmp_path_factory.mktemp("visits")
    frame.to_csv(folder / "visits.csv", index=False)
    federation = fedkin.data.from_csv(folder / "visits.csv", client="site", target="outcome")
    result = fedkin.train(federation, "mlr", "fedavgft", rounds=5, out=folder / "run")
    return folder, frame, federation, result


def test_new_rows_are_prepared_as_in_training(visits):
    """Predictions for a client's test rows give the accuracy the run reported."""
    folder, frame, federation, result = visits
    k = federation.index("site-3")
    (folder / "visits.csv").rename(folder / "gone.csv")  # the table itself is not needed any more
    own = frame[frame["site"] == "site-3"][["smoker", "sex", "age", "outcome"]]
    own.to_csv(folder / "new.csv", index=False)
    found = predict_file(folder / "run", "site-3", folder / "new.csv")
    encoded = federation.train[k][0].tolist() + federation.test[k][0].tolist()
    import torch

    direct = result.models["site-3"](torch.tensor(encoded)).argmax(dim=1).numpy()
    labels = np.asarray(federation.task.classes)[direct]
    assert sorted(found["prediction"]) == sorted(labels)
    accuracy = (found["prediction"].to_numpy() == own["outcome"].to_numpy()).sum()
    truth = np.concatenate([federation.train[k][1], federation.test[k][1]])
    assert accuracy == (direct == truth).sum()
    assert found["probability"].between(0.5, 1).all()


def test_bad_tables_are_refused_in_one_line(visits):
    _, frame, _, result = visits
    with pytest.raises(FedkinError, match="unknown client 'site-9'"):
        predict(result, "site-9", frame)
    with pytest.raises(FedkinError, match="'smoker'"):
        predict(result, "site-1", frame[["age", "sex"]])
    with pytest.raises(FedkinError, match="'age' was numeric"):
        predict(result, "site-1", frame.assign(age="old"))
    with pytest.raises(FedkinError, match="no rows"):
        predict(result, "site-1", frame.head(0))


def test_plain_numbers_for_other_data():
    federation = fedkin.data.load("digits", clients=3)
    result = fedkin.train(federation, "mlr", "local", rounds=3)
    x, y = federation.test[0]
    flat = pd.DataFrame(x.reshape(len(x), -1))
    found = predict(result, federation.names[0], flat)
    expected = result.metrics["deployed"]["test_accuracy"][0]
    classes = np.asarray(federation.task.classes)
    assert (found["prediction"].to_numpy() == classes[y]).mean() == pytest.approx(expected)
    with pytest.raises(FedkinError, match="64 numbers per row"):
        predict(result, federation.names[0], flat.iloc[:, :5])
    with pytest.raises(FedkinError, match="no finite number"):
        predict(result, federation.names[0], flat.mask(flat > 0.9))


def test_command(visits, tmp_path):
    from typer.testing import CliRunner

    from fedkin.cli import app

    folder, frame, _, result = visits
    frame.head(7).to_csv(tmp_path / "new.csv", index=False)
    said = CliRunner().invoke(app, ["predict", str(folder / "run"), "--client", "site-2", str(tmp_path / "new.csv")])
    assert said.exit_code == 0
    assert said.output == predict(result, "site-2", frame.head(7)).to_csv(index=False)


def test_predictions_for_programs(visits, tmp_path):
    from typer.testing import CliRunner

    from fedkin.cli import app

    folder, frame, _, result = visits
    frame.head(7).to_csv(tmp_path / "new.csv", index=False)
    asked = ["predict", str(folder / "run"), "--client", "site-2", str(tmp_path / "new.csv")]
    said = CliRunner().invoke(app, [*asked, "--json", str(tmp_path / "said.json")])
    assert (said.exit_code, said.output) == (0, "")
    written = json.loads((tmp_path / "said.json").read_text())
    expected = predict(result, "site-2", frame.head(7))
    assert written["columns"] == list(expected.columns)
    assert pd.DataFrame(written["rows"]).to_csv(index=False) == expected.to_csv(index=False)
