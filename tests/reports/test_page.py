from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import torch

from fedkin.graphs import similarity
from fedkin.reports.page import embedded, write_report
from fedkin.reports.wording import human_bytes
from fedkin.result.history import History

from .conftest import HOSTILE


class Elements(HTMLParser):
    """Counts elements and collects what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.links = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.scripts += tag == "script"
        self.links += [value for name, value in attributes if name in ("src", "href")]


def test_page_stands_alone_and_escapes_names(runs, tmp_path):
    page = write_report(runs, tmp_path / "deep" / "report.html").read_text()
    found = Elements(page)
    assert found.scripts == 2  # the data and the program: the hostile name made no third
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert HOSTILE not in page
    assert "a note &lt;b&gt;on&lt;/b&gt; the data" in page
    assert "default-src 'none'" in page


def test_embedded_json_cannot_end_its_element():
    assert "<" not in embedded({"a": "</script><!--"})
    assert embedded([1, None, "ü"]) == '[1,null,"ü"]'


def test_one_run_and_regression(tmp_path):
    import fedkin

    rng = np.random.default_rng(0)
    clients = {f"s{k}": (rng.normal(size=(20, 2)), rng.normal(size=20)) for k in range(4)}
    result = fedkin.train(fedkin.Federation.from_arrays(clients), "linear", "fedavg", rounds=2)
    page = result.report(tmp_path / "one.html").read_text()
    assert "FedAvg reaches" in page
    assert "cannot be said" in page


def test_under_three_megabytes_for_100_clients_and_20_methods(runs, tmp_path):
    rng, clients, rounds = np.random.default_rng(0), 100, 100
    names = tuple(f"client-{k:02d}" for k in range(clients))
    graph = similarity.knn(rng.normal(size=(clients, 4)), 8, names)

    def metrics():
        return {"test_accuracy": rng.uniform(size=clients).tolist(), "test_loss": rng.uniform(size=clients).tolist()}

    def made(method):
        records = [
            {"round": t, "pre": metrics(), "post": metrics(), "log": {"total_variation": float(rng.uniform())}}
            for t in range(1, rounds + 1)
        ]
        return replace(
            runs[4], names=names, graph=graph, sizes=rng.integers(10, 99, clients), choice=("trained",) * clients,
            raw_influence=torch.from_numpy(rng.uniform(size=(clients, clients))), server_rows=torch.rand(clients, 50),
            label_counts=rng.integers(0, 50, (clients, 10)), history=History(names, records),
            metrics={when: metrics() for when in ("pre", "post", "deployed")},
            config={**runs[4].config, "algorithm": {"name": "local" if method == 0 else f"method-{method}"}},
            facts={**runs[4].facts, "title": f"Method {method}", "test_sizes": np.ones(clients)},
            extras={"roc": torch.rand(clients, 22), "calibration": torch.rand(clients, 3, 10)},
        )  # fmt: skip

    page = write_report([made(k) for k in range(20)], tmp_path / "large.html")
    assert page.stat().st_size < 3_000_000


def test_bytes_for_people():
    assert [human_bytes(n) for n in (0, 999, 12_345, 4.2e9, float("nan"))] == [
        "0 B",
        "999 B",
        "12.3 kB",
        "4.2 GB",
        "unknown",
    ]
