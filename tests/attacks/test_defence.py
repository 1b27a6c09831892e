"""`robust` as a parameter: what it takes, what it leaves alone, and what it keeps attackers from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import algorithms, data
from fedkin.algorithm import State
from fedkin.attacks import Attack, attackers, study, under_attack
from fedkin.couplings import Identity
from fedkin.defence import STRENGTHS, parsed
from fedkin.errors import FedkinError
from fedkin.federation import Federation, Split
from fedkin.run import make_options
from fedkin.testing import uneven_federation
from fedkin.testing.algorithms import SCATTERED

TRAINING: dict[str, Any] = {"lr": 0.1, "steps": 5, "batch_size": 16}


@pytest.fixture(scope="module")
def digits() -> Federation:
    return data.load("digits", clients=12, partition="dirichlet:1.0", seed=0)


def test_without_a_defence_the_coupling_is_the_method_s_own() -> None:
    plain = Identity(3)
    assert State(0, {"rows": torch.zeros((3, 2))}).guarded(plain, torch.zeros((3, 2))) is plain


@pytest.mark.parametrize("robust", STRENGTHS)
@pytest.mark.parametrize("method", ["fedavg", "fedu", "dfedu"])
def test_every_defence_serves_servers_and_letters_on_any_engine(method: str, robust: str) -> None:
    federation, made = uneven_federation(), algorithms.make(method, {**TRAINING, "robust": robust})
    settings: dict[str, Any] = {"rounds": 2, "seed": 1, "dtype": "float64"}
    together = fedkin.train(federation, "mlp:6", made, **settings)
    apart = fedkin.train(federation, "mlp:6", made, engine=SCATTERED, **settings)
    assert np.isfinite(together.rows).all()
    np.testing.assert_allclose(apart.rows, together.rows, atol=1e-9)


@pytest.mark.parametrize("robust", ["clip", "median", "evidence"])
def test_dfedu_defends_itself_as_fedu_s_server_does(robust: str) -> None:
    federation = uneven_federation()
    rows = [
        fedkin.train(
            federation, "mlp:6", algorithms.make(name, {**TRAINING, "robust": robust}), rounds=2, dtype="float64"
        ).server_rows
        for name in ("fedu", "dfedu")
    ]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-9)


@pytest.mark.parametrize("method", ["fedavg", "fedu", "dfedu"])
def test_evidence_is_of_validation_samples_where_a_client_has_some(method: str) -> None:
    """Other validation samples give other rows; without any, training samples are the evidence."""
    held, options = (
        uneven_federation((24, 18, 17, 20, 30, 12)),
        {"rounds": 2, "dtype": "float64", "validation": "given"},
    )
    made = algorithms.make(method, {**TRAINING, "robust": "evidence"})
    rng = np.random.default_rng(0)
    rows = []
    for size in (0, 8, 8):
        parts = [held.train.x[:1].repeat(size, axis=0) + 3 * rng.normal(size=(size, 5)) for _ in held.names]
        y = [rng.integers(0, 3, size) for _ in held.names]
        offsets = np.arange(len(held) + 1) * size
        validation = Split(np.concatenate(parts).astype(held.train.x.dtype), np.concatenate(y), offsets)
        rows.append(fedkin.train(replace(held, validation=validation), "mlp:6", made, **options).server_rows.numpy())
    plain = fedkin.train(held, "mlp:6", made, **options).server_rows.numpy()
    np.testing.assert_array_equal(rows[0], plain)
    assert np.abs(rows[1] - rows[0]).max() > 1e-6
    assert np.abs(rows[2] - rows[1]).max() > 1e-6


def test_private_tensors_are_tried_with_the_client_s_own() -> None:
    found = fedkin.train(
        uneven_federation(), "bn-mlp:6", algorithms.make("fedbn", {**TRAINING, "robust": "evidence"}), rounds=2
    )
    assert np.isfinite(found.rows).all()


@pytest.mark.parametrize("method", ["fedavg", "fedpnp", "fedu", "fedcedar"])
def test_two_attackers_of_twelve_ruin_the_plain_method_and_not_the_guarded_one(method: str, digits: Federation) -> None:
    made, who = algorithms.make(method, {**TRAINING, "steps": 10}), attackers(digits.names, 2, 0)
    honest = np.setdiff1d(np.arange(12), who)
    options = make_options(rounds=12, eval_every=12)

    def accuracy(robust: str | None) -> float:
        used = made.model_copy(update={"robust": robust})
        try:
            result = under_attack(digits, "mlp:16", used, options, "sign-flip", who)
        except FedkinError:
            return 0.0
        return float(np.array(result.metrics["deployed"]["test_accuracy"])[honest].mean())

    clean = fedkin.train(digits, "mlp:16", made, rounds=12, eval_every=12)
    reached = float(np.array(clean.metrics["deployed"]["test_accuracy"])[honest].mean())
    assert accuracy(made.defence) > reached - 0.08
    assert accuracy(None) < reached - 0.08


def test_a_backdoor_that_takes_most_marked_samples_gets_few_past_the_guard(digits: Federation) -> None:
    made, options = algorithms.make("fedavg", {**TRAINING, "steps": 10}), make_options(rounds=20, eval_every=20)
    cell = study(digits, "mlp:16", [made], ("backdoor",), (3,), options).cells[0]
    fooled = {kind: value or 0.0 for kind, value in cell.backdoor.items()}
    assert fooled["clean"] < 0.05
    assert fooled["attacked"] > 0.6
    assert fooled["guarded"] < 0.2


def test_letters_beyond_all_measure_move_dfedu_and_hardly_guarded_dfedu(digits: Federation) -> None:
    shout = Attack(
        "shout", "", lambda sight: sight.trained - 1e3
    )  # sign-flip does not compound here: attackers stay sane

    def rows(robust: str | None, attack: Attack | None) -> np.ndarray:
        made = algorithms.make("dfedu", {**TRAINING, "robust": robust})
        who = np.array([4] if attack else [], dtype=np.int64)
        found = under_attack(digits, "mlp:16", made, make_options(rounds=3), attack or shout, who)
        return np.delete(found.rows, 4, axis=0)

    moved = {robust: np.linalg.norm(rows(robust, shout) - rows(robust, None), axis=1) for robust in (None, "clip")}
    assert moved["clip"].max() < 0.1 * moved[None].min()


def test_rows_beyond_all_measure_do_not_stop_fedcedar(digits: Federation) -> None:
    flood = Attack("flood", "", lambda sight: torch.full_like(sight.trained, 1e25))
    made = algorithms.make("fedcedar", {**TRAINING, "robust": "clip"})
    result = under_attack(digits, "mlp:16", made, make_options(rounds=3), flood, np.array([4]))
    assert np.isfinite(result.rows[np.arange(12) != 4]).all()


def test_attackers_that_are_clusters_of_their_own_have_no_more_voice_than_members(digits: Federation) -> None:
    """Reversed labels make two or three attackers a cluster or two of five: half of every model, without a defence."""
    made = algorithms.make("fedcedar", {**TRAINING, "steps": 10})
    options = make_options(rounds=20, eval_every=20)
    (told,) = study(digits, "mlp:16", [made], ("label-flip",), (3,), options).cells
    assert told.attacked is not None
    assert told.guarded is not None
    assert told.attacked < told.clean - 0.05
    assert told.guarded > told.clean - 0.03


def test_an_influence_matrix_follows_the_guarded_weights(digits: Federation) -> None:
    who = attackers(digits.names, 2, 0)
    made = algorithms.make("fedavg", {**TRAINING, "robust": "evidence"})
    result = under_attack(digits, "mlp:16", made, make_options(rounds=3), "large-norm", who)
    plain = under_attack(
        digits, "mlp:16", algorithms.make("fedavg", TRAINING), make_options(rounds=3), "large-norm", who
    )
    assert result.influence is not None
    assert plain.influence is not None
    honest = np.setdiff1d(np.arange(12), who)
    assert result.influence[honest][:, who].sum() < 0.5 * plain.influence[honest][:, who].sum()


@pytest.mark.parametrize(
    ("robust", "message"),
    [
        ("klip", "unknown defence 'klip'"),
        ("clip:x", "give a number from 0"),
        ("trimmed:0.7", "from 0 to 0.5"),
        ("median:2", "it has no strength"),
    ],
)
def test_a_wrong_defence_is_refused_in_one_line(robust: str, message: str) -> None:
    with pytest.raises(FedkinError, match=message):
        algorithms.make("fedavg", {"robust": robust})


@pytest.mark.parametrize("name", ["global", "mocha", "fedrelax"])
def test_methods_without_a_coupling_of_rows_refuse_a_defence(name: str) -> None:
    with pytest.raises(FedkinError, match="no coupling of rows to guard"):
        algorithms.make(name, {"robust": "clip"})


def test_a_denoiser_without_weights_takes_norm_bounds_only() -> None:
    federation = uneven_federation()
    with pytest.raises(FedkinError, match="use robust='norm'"):
        fedkin.train(federation, "mlp:6", algorithms.make("fedpnp", {"denoiser": "tv", "robust": "clip"}), rounds=1)
    fedkin.train(federation, "mlp:6", algorithms.make("fedpnp", {"denoiser": "tv", "robust": "norm"}), rounds=1)


def test_a_strength_is_read_from_the_name() -> None:
    assert parsed("clip:2.5") == ("clip", 2.5)
    assert parsed("trimmed") == ("trimmed", 0.25)
    assert parsed("median") == ("median", None)
