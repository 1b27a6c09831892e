"""The command line as users meet it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

import fedkin
from fedkin.cli import app

SMALL = "--data digits --clients 4 --model mlr"
FEDKIN = [sys.executable, "-m", "fedkin"]
HEAVY = ("torch", "numpy", "pandas", "sklearn", "scipy", "matplotlib", "networkx")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fedkin_says(arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result


def refusal(arguments: str) -> str:
    """The one line a command ends with on bad input."""
    result = fedkin_says(arguments, code=2)
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def table(path: Path, rows: int = 80, **columns: Any) -> Path:
    import pandas as pd

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    frame = pd.DataFrame({"site": [f"site-{i % 4}" for i in range(rows)], "a": x[:, 0], "b": x[:, 1]})
    frame["y"] = np.where(x.sum(axis=1) > 0, "yes", "no")
    for name, values in columns.items():
        frame[name] = values
    frame.to_csv(path, index=False)
    return path


# --- help ---------------------------------------------------------------------------------------------------------------

COMMANDS = ["run", "compare", "attack", "resume", "demo", "report", "algorithms"]
NESTED = ["data list", "data info", "data prepare", "graph build", "graph show"]


@pytest.mark.parametrize("arguments", ["--help", "--version", *(f"{command} --help" for command in COMMANDS + NESTED)])
def test_help_imports_nothing_heavy(arguments: str) -> None:
    program = (
        "import sys; from fedkin.cli import app\n"
        f"try: app({arguments.split()!r}, prog_name='fedkin')\n"
        f"except SystemExit: print('imported:', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "imported: []" in done.stdout


@pytest.mark.parametrize("command", COMMANDS + NESTED)
def test_every_command_has_examples_and_json(command: str) -> None:
    text = fedkin_says(f"{command} --help").stdout
    assert "Examples:" in text
    assert f"fedkin {command}" in text
    assert "--json" in text


def test_version_and_bare_call() -> None:
    assert fedkin_says("--version").stdout == f"fedkin {fedkin.__version__}\n"
    assert "Usage" in fedkin_says("").stdout


# --- run ----------------------------------------------------------------------------------------------------------------


def test_run_writes_everything_a_program_needs() -> None:
    said = fedkin_says(f"run {SMALL} --algorithm fedprox --set mu=0.5 --rounds 4 --eval-every 2 --seed 3 --json r.json")
    assert "FedProx on 4 clients, 4 rounds" in said.stdout
    assert "wrote runs/digits-fedprox-seed3" in said.stdout
    found = json.loads(Path("r.json").read_text())
    assert (found["algorithm"], found["seed"], found["rounds"], found["finished"]) == ("fedprox", 3, 4, True)
    assert set(found["accuracy"]) >= {"mean", "std", "best5", "worst5"}
    assert found["config"]["algorithm"]["mu"] == 0.5
    assert found["config"]["data"]["clients"] == 4
    evaluated = [record for record in found["history"] if "pre" in record]
    assert [record["round"] for record in evaluated] == [2, 4]
    assert all(len(record["pre"]["test_accuracy"]) == len(found["names"]) == 4 for record in evaluated)
    assert found["history"][-1]["bytes"] == found["bytes"] > 0
    assert found["versions"]["torch"]
    assert {"notes", "failures", "seconds", "metrics"} <= set(found)
    result = fedkin.load("runs/digits-fedprox-seed3")
    deployed = [client["deployed"] for client in found["clients"].values()]
    assert deployed == result.metrics["deployed"]["test_accuracy"]
    assert found["accuracy"]["mean"] == pytest.approx(np.mean(deployed))


def test_run_again_takes_a_new_folder_but_not_a_given_one_twice() -> None:
    fedkin_says(f"run {SMALL} --rounds 1")
    fedkin_says(f"run {SMALL} --rounds 1")
    assert Path("runs/digits-fedavg-seed0-2/result.safetensors").exists()
    assert "already holds a run" in refusal(f"run {SMALL} --rounds 1 --out runs/digits-fedavg-seed0")


def test_a_run_s_own_config_repeats_it() -> None:
    fedkin_says(f"run {SMALL} --algorithm fedu --rounds 2 --out one")
    fedkin_says("run one/config.toml --out two")
    one, two = fedkin.load("one"), fedkin.load("two")
    np.testing.assert_array_equal(one.rows, two.rows)
    assert one.metrics == two.metrics


def test_run_from_a_file_with_flags_on_top() -> None:
    Path("e.toml").write_text('data = "digits"\nmodel = "mlr"\n[run]\nrounds = 3\nseed = 4\n[training]\nlr = 0.2\n')
    fedkin_says("run e.toml --clients 3 --rounds 1 --out r --json r.json")
    config = json.loads(Path("r.json").read_text())["config"]
    assert (config["run"]["rounds"], config["run"]["seed"], config["data"]["clients"]) == (1, 4, 3)
    assert config["algorithm"]["lr"] == 0.2
    said = fedkin_says("run e.toml --clients 3 --rounds 1 --set epochs=2 --explain").stdout
    assert re.search(r"run\.rounds +1 +flag", said)
    assert re.search(r"run\.seed +4 +file", said)
    assert re.search(r"fedavg\.lr +0\.2 +file", said)
    assert re.search(r"fedavg\.epochs +2 +flag", said)
    assert re.search(r"run\.dtype +float32 +default", said)
    assert "local training: linear kernel (a plain chain of linear layers" in said
    assert not Path("runs").exists(), "--explain trains nothing"


def test_run_on_a_table_of_one_s_own() -> None:
    table(Path("visits.csv"))
    fedkin_says("run --csv visits.csv --client site --target y --model mlr --set lr=0.5 --rounds 20 --json r.json")
    found = json.loads(Path("r.json").read_text())
    assert found["names"] == ["site-0", "site-1", "site-2", "site-3"]
    assert found["accuracy"]["mean"] > 0.8, "the classes are linearly separable"


def test_a_run_on_a_table_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(Path("visits.csv"))
    fedkin_says("run --csv visits.csv --client site --target y --model mlr --rounds 2 --out r")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    fedkin_says("resume ../r --rounds 4 --json r.json")
    assert json.loads(Path("r.json").read_text())["rounds"] == 4


def test_regression_is_reported_under_its_metric() -> None:
    table(Path("t.csv"), y=np.linspace(0, 1, 80))
    fedkin_says("run --csv t.csv --client site --target y --model linear --rounds 2 --json r.json")
    found = json.loads(Path("r.json").read_text())
    assert found["metric"] == "mse"
    assert found["mse"]["mean"] > 0
    assert "accuracy" not in found


def test_interrupted_and_resumed_is_bitwise_the_uninterrupted_run() -> None:
    command = f"run {SMALL} --algorithm scaffold --rounds 400 --eval-every 40"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [*FEDKIN, *command.split(), "--out", "cut"]
    process = subprocess.Popen(started, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not Path("cut/config.toml").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "resume with: fedkin resume cut" in said
    stopped = fedkin.load("cut").facts["rounds"]
    assert 0 < stopped < 400
    subprocess.run([*FEDKIN, "resume", "cut"], check=True, capture_output=True, env=environment, timeout=240)
    subprocess.run(
        [*FEDKIN, *command.split(), "--out", "whole"], check=True, capture_output=True, env=environment, timeout=240
    )
    resumed, whole = load_file("cut/result.safetensors"), load_file("whole/result.safetensors")
    assert resumed.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)
    history, other = fedkin.load("cut").history, fedkin.load("whole").history
    assert [record.get("pre") for record in history] == [record.get("pre") for record in other]


def test_who_can_keep_rows_in_a_file_is_known_in_a_fresh_process() -> None:
    command = f"run {SMALL} --algorithm fedavg --rounds 1 --rows-file rows.bin"
    done = subprocess.run([*FEDKIN, *command.split()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "a method that writes over them: fedu" in " ".join(done.stderr.split())


# --- compare, demo, report -----------------------------------------------------------------------------------------------


def test_compare_prints_a_table_and_writes_json() -> None:
    arguments = f"compare {SMALL} --algorithms fedavg,fedprox --seeds 2 --rounds 2 --set fedprox.mu=0.5 --json c.json"
    said = fedkin_says(arguments).stdout
    for word in ("method", "accuracy %", "± seeds", "best 5 %", "worst 5 %", "gained/lost", "exchanged", "local *"):
        assert word in said
    found = json.loads(Path("c.json").read_text())
    cells = [(entry["algorithm"], entry["seed"]) for entry in found["results"]]
    assert cells == [(name, seed) for seed in (0, 1) for name in ("local", "fedavg", "fedprox")]
    for entry in found["results"]:
        assert set(entry["accuracy"]) >= {"mean", "std", "best5", "worst5"}
        assert {"pre", "post", "gained", "lost", "same", "bytes", "seconds", "clients", "history"} <= set(entry)
    assert found["config"]["algorithms"]["fedprox"]["mu"] == 0.5
    assert found["config"]["seeds"] == [0, 1]
    assert found["versions"]["fedkin"] == fedkin.__version__


def test_compare_from_a_file_keeps_its_runs() -> None:
    Path("e.toml").write_text(
        'data = {name = "digits", clients = 4}\nmodel = "mlr"\n[run]\nrounds = 2\n'
        "[algorithms.local]\n[algorithms.fedprox]\nmu = 0.5\n"
    )
    fedkin_says("compare e.toml --out kept")
    names = {path.name for path in Path("kept").iterdir()}
    assert names == {"local-seed0", "fedprox-seed0", "comparison.json"}
    before = Path("kept/fedprox-seed0/result.safetensors").stat().st_mtime_ns
    fedkin_says("compare e.toml --out kept")
    assert Path("kept/fedprox-seed0/result.safetensors").stat().st_mtime_ns == before
    assert "choose another --out" in refusal("compare e.toml --out kept --set mu=0.1")


def test_demo_runs_auto_beside_the_five_systems_and_writes_a_report() -> None:
    said = fedkin_says("demo --seeds 1 --rounds 2 --json d.json").stdout
    found = json.loads(Path("d.json").read_text())
    ran = [entry["algorithm"] for entry in found["results"]]
    assert ran == ["local", "fedavgft", "fedpnp", "fedu", "fedcedar", "fedska", "fedrelax", "auto"]
    assert found["skipped"] == {}
    assert "report: fedkin-demo/report.html" in said
    assert "<html" in Path("fedkin-demo/report.html").read_text().lower()
    fedkin_says("report fedkin-demo/auto-seed0 fedkin-demo/local-seed0 --out page.html --json p.json")
    assert Path("page.html").stat().st_size > 10_000
    assert len(json.loads(Path("p.json").read_text())["runs"]) == 2


# --- data, graph, algorithms ---------------------------------------------------------------------------------------------


def test_data_commands() -> None:
    assert "digits" in fedkin_says("data list --json l.json").stdout
    assert "digits" in [entry["name"] for entry in json.loads(Path("l.json").read_text())["data"]]
    said = fedkin_says("data info digits --clients 3 --partition labels:2 --json i.json").stdout
    assert "CC BY 4.0" in said
    assert "Federation(3 clients" in said
    counts = json.loads(Path("i.json").read_text())["federation"]["label_counts"]
    assert all(sum(n > 0 for n in own) == 2 for own in counts.values())
    assert "nothing to prepare" in fedkin_says("data prepare digits").stdout


def test_graph_commands() -> None:
    said = fedkin_says("graph build knn:2 --data digits --clients 6 --out g.npz --json b.json").stdout
    assert "ClientGraph(6 clients" in said
    graph = fedkin.ClientGraph.load("g.npz")
    assert json.loads(Path("b.json").read_text())["lambda_max"] == pytest.approx(graph.lambda_max())
    said = fedkin_says("graph show g.npz --plot g.png --json s.json").stdout
    numbers = json.loads(Path("s.json").read_text())
    assert numbers["lambda_1"] == pytest.approx(graph.lambda_1())
    assert sum(numbers["degree_histogram"]["counts"]) == 6
    assert numbers["components"] == graph.components().max() + 1
    assert "isolated clients" in said
    assert Path("g.png").read_bytes().startswith(b"\x89PNG")
    fedkin_says("graph build empty --data digits --clients 3 --out alone.csv")
    assert "client-00, client-01, client-02" in fedkin_says("graph show alone.csv").stdout
    fedkin_says(f"run {SMALL.replace('4', '6')} --algorithm fedu --graph g.npz --rounds 1 --out r")
    assert fedkin.load("r").graph == graph
    assert "ClientGraph(6 clients" in fedkin_says("graph show r").stdout


def test_algorithms_lists_parameters_with_defaults_and_ranges() -> None:
    said = fedkin_says("algorithms").stdout
    assert all(name in said for name in ("fedavg", "FedProx", "McMahan"))
    said = fedkin_says("algorithms fedprox --json a.json").stdout
    assert re.search(r"mu +0\.01 +float, ≥ 0 +strength", said)
    parameters = {entry["name"]: entry for entry in json.loads(Path("a.json").read_text())["parameters"]}
    assert parameters["lr"]["default"] == 0.05


# --- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rnu", "No such command 'rnu'"),
        ("run --dat digits", "No such option"),
        ("run --rounds many", "--rounds"),
        ("run", "no data; name a set with --data"),
        ("run --data digist", "unknown data set 'digist'; did you mean 'digits'"),
        (f"run {SMALL} --algorithm fedprx", "unknown algorithm 'fedprx'; did you mean 'fedprox'"),
        (f"run {SMALL} --set learning=1", "unknown parameter of fedavg 'learning'"),
        (f"run {SMALL} --set lr=-1", "fedavg: lr = -1 is not allowed"),
        (f"run {SMALL} --fraction 2", "run: fraction = 2.0 is not allowed"),
        (f"run {SMALL} --partition dirichelt:1", "unknown partition 'dirichelt'; did you mean 'dirichlet'"),
        (f"run {SMALL} --engine cloud", "unknown engine 'cloud'"),
        (f"run {SMALL} --algorithm fedu --graph kn:3", "unknown graph 'kn'; did you mean 'knn'"),
        ("run --data digits --model mpl", "unknown model 'mpl'; did you mean"),
        ("run --data digits --csv x.csv", "use --data or --csv, not both"),
        ("run nowhere.toml", "nowhere.toml cannot be read"),
        ("run --csv nowhere.csv --client a --target b", "nowhere.csv does not exist"),
        (f"compare {SMALL} --algorithms fedavg,fedpro --rounds 1", "unknown algorithm 'fedpro'"),
        (f"compare {SMALL} --algorithms fedavg --seeds none", "seeds is 'none'"),
        ("resume nowhere", "nowhere is not a run directory"),
        ("report nowhere", "nowhere is not a folder"),
        ("graph show nowhere.npz", "nowhere.npz"),
        ("graph build knn:2 --data digits --clients 4 --out g.txt", "must end in .csv, .parquet, .npz"),
        ("algorithms fedavgg", "unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        ("data info digist", "unknown data set 'digist'"),
        (f"run {SMALL} --rounds 1 --json .", "cannot be written"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: str, message: str) -> None:
    assert message in refusal(arguments)


def test_bad_tables_are_refused_before_training() -> None:
    run = "run --csv t.csv --client site --target y --model mlr"
    table(Path("t.csv"))
    assert "unknown client column 'sit'; did you mean 'site'" in refusal(run.replace("site", "sit"))
    assert "unknown target column 'outcome'" in refusal(run.replace("y -", "outcome -"))
    assert "which column holds the target?" in refusal("run --csv t.csv --client site")
    table(Path("t.csv"), y=[None, *["yes", "no"] * 39, "no"])
    assert "target column 'y' has 1 empty cells" in refusal(run)
    table(Path("t.csv"), b=[np.inf] * 80)
    assert "column 'b' holds infinite numbers" in refusal(run)
    table(Path("t.csv"), b=[np.nan] + [1.0] * 79)
    Path("e.toml").write_text('data = {csv = "t.csv", client = "site", target = "y", missing = "error"}')
    assert "column 'b' has 1 missing values" in refusal("run e.toml")
    Path("e.toml").write_text('data = {csv = "t.csv", client = "site", target = "y", standardize = true}')
    assert "did you mean 'standardise'" in refusal("run e.toml")


def test_an_error_is_one_line_in_a_real_process_too() -> None:
    done = subprocess.run([*FEDKIN, "run", "--data", "digist"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown data set 'digist'; did you mean 'digits', 'mnist'?\n"
