from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedkin.errors import FedkinError
from fedkin.result.contenders import client_gains, find_alone, group, interval, line


def test_runs_that_differ_by_seed_are_one_method(runs):
    methods = group(runs)
    assert [(m.label, m.seeds) for m in methods] == [("Local", [0, 1]), ("FedAvg", [0, 1]), ("FedPnP", [0, 1])]
    assert np.allclose(
        methods[1].values(), np.mean([r.metrics["deployed"]["test_accuracy"] for r in runs[2:4]], axis=0)
    )


def test_same_title_gets_the_settings_that_differ(runs):
    config = {**runs[2].config, "algorithm": {**runs[2].config["algorithm"], "lr": 0.5}}
    labels = [m.label for m in group([runs[2], replace(runs[2], config=config)])]
    assert labels == [f"FedAvg (lr {runs[2].config['algorithm']['lr']})", "FedAvg (lr 0.5)"]


def test_the_rate_that_auto_found_is_no_setting(runs):
    def auto(rate, seed, chosen):
        config = {
            **runs[2].config,
            "algorithm": {"name": "auto", "lr": rate},
            "run": {**runs[2].config["run"], "seed": seed},
        }
        return replace(runs[2], config=config, facts={**runs[2].facts, "algorithm": "auto", "rate_chosen": chosen})

    assert [m.seeds for m in group([auto(0.1, 0, True), auto(0.3, 1, True)])] == [[0, 1]]
    assert [m.seeds for m in group([auto(0.1, 0, False), auto(0.3, 1, False)])] == [[0], [1]]


def test_other_clients_are_refused(runs):
    with pytest.raises(FedkinError, match="different clients"):
        group([runs[0], replace(runs[1], names=tuple("abcdefgh"))])
    with pytest.raises(FedkinError, match="at least one"):
        group([])


def test_gains_are_paired_by_data_and_seed(scored):
    alone = [scored("local", np.full(8, 0.5), seed=0), scored("local", np.full(8, 0.7), seed=1)]
    other = [scored("fedavg", np.full(8, 0.6), seed=0), scored("fedavg", np.full(8, 0.6), seed=1)]
    methods = group([*alone, *other])
    assert np.allclose(client_gains(methods[1], methods[0]), 0.0)  # +0.1 and −0.1
    seed_2 = group([*alone, scored("fedavg", np.full(8, 0.8), seed=2)])
    assert np.allclose(client_gains(seed_2[1], seed_2[0]), 0.2)  # against the mean of both
    elsewhere = group([*alone, scored("fedavg", np.full(8, 0.8), fingerprint="other")])
    assert np.isnan(client_gains(elsewhere[1], elsewhere[0])).all()


def test_interval_is_the_paired_t_interval():
    from scipy.stats import ttest_1samp

    values = np.random.default_rng(0).normal(0.02, 0.1, 40)
    found = interval(values)
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert np.allclose(found, (values.mean(), expected.low, expected.high))
    wide = interval(values, chosen_from=10)
    assert np.allclose(wide[1:], ttest_1samp(values, 0).confidence_interval(1 - 0.05 / 10))


def test_table_line(scored):
    methods = group([scored("local", np.full(8, 0.5)), scored("fedavg", [0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6])])
    assert find_alone(methods) is methods[0]
    entry = line(methods[1], methods[0])
    assert (entry.gained, entry.lost, entry.same) == (6, 1, 1)
    assert entry.gain == pytest.approx(0.0625)
    assert entry.seed_std is None, "one seed has no spread"
    assert (line(methods[1], None).gain, line(methods[1], None).gained) == (None, None)


def test_a_client_gains_if_its_gain_averaged_over_seeds_is_above_zero(scored):
    alone = [scored("local", np.full(8, 0.5), seed=seed) for seed in (0, 1)]
    first = [0.7, 0.7, 0.5, 0.4, 0.4, 0.5, 0.5, 0.6]
    other = [0.6, 0.4, 0.5, 0.5, 0.5, 0.4, 0.5, 0.4]
    methods = group([*alone, scored("fedavg", first, seed=0), scored("fedavg", other, seed=1)])
    entry = line(methods[1], methods[0])
    assert (entry.gained, entry.lost, entry.same, entry.counted) == (2, 3, 3, 8)
    assert entry.seed_std == pytest.approx(np.std([np.mean(first), np.mean(other)], ddof=1))


def test_where_seeds_draw_the_data_the_clients_of_every_draw_are_counted(scored):
    draws = [("one", 0), ("two", 1)]
    alone = [scored("local", np.full(8, 0.5), seed, drawn) for drawn, seed in draws]
    values = {"one": np.full(8, 0.6), "two": [0.4, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6]}
    methods = group([*alone, *(scored("fedavg", values[drawn], seed, drawn) for drawn, seed in draws)])
    entry = line(methods[1], methods[0])
    assert (entry.gained, entry.lost, entry.same, entry.counted) == (13, 2, 1, 16)
    assert np.allclose(client_gains(methods[1], methods[0]), 0.1), "client by client, the first draw is shown"


def test_clients_and_runs_without_a_value_are_left_out_and_counted(scored):
    nobody, some = np.full(8, np.nan), np.array([np.nan, np.nan, *np.full(6, 0.75)])
    runs = [scored("fedavg", some, 0, "one draw"), scored("fedavg", nobody, 1, "another")]
    alone = [scored("local", some - 0.25, 0, "one draw"), scored("local", nobody, 1, "another")]
    local, fedavg = group([*alone, *runs])
    found = line(fedavg, local)
    assert (found.valued, found.clients) == (6, 16)
    assert found.deployed["mean"] == pytest.approx(0.75)
    assert (found.gained, found.lost, found.counted) == (6, 0, 6)


def test_runs_with_different_headlines_are_refused(runs):
    task = replace(runs[1].task, metrics=("auroc",), headline="auroc")
    with pytest.raises(FedkinError, match="judged by auroc, Local by accuracy"):
        group([runs[0], replace(runs[1], task=task)])
