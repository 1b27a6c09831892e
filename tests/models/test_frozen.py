"""Frozen parts: out of the rows, once per process, with patterns of names; and the front whose features are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.models import Layout, ModelSpec
from fedkin.models.front import Front, front_of
from fedkin.models.frozen import carrying, freeze, frozen_hash, matching, with_frozen
from fedkin.streams import Streams
from fedkin.task import Task

TASK = Task("classification", (6,), classes=(0, 1, 2))
TEXT = Task("classification", (5,), classes=tuple("abcdefg"), tokens=True)


class Backboned(nn.Module):
    """A backbone and a head, as users write them; `skip` lets the head see the input, too."""

    def __init__(self, dropout: float = 0.0, skip: bool = False, tokens: bool = False) -> None:
        super().__init__()
        first = [nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 5)] if tokens else [nn.Linear(6, 5)]
        self.backbone = nn.Sequential(*first, nn.ReLU(inplace=True), nn.Dropout(dropout))
        self.skip, self.head = skip, nn.Linear(5 + 6 * skip, 7 if tokens else 3)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.flatten(self.backbone(x), 1)
        out: Tensor = self.head(torch.cat([features, x], dim=1) if self.skip else features)
        return out


def spec_of(model: object = Backboned, task: Task = TASK, frozen: str = "backbone.*") -> ModelSpec:
    return freeze(ModelSpec.of(model, task, torch.float64), [frozen] if frozen else []).settled(Streams(4))  # type: ignore[arg-type]


def test_frozen_parameters_have_no_column_and_one_memory() -> None:
    spec = spec_of()
    assert [slot.name for slot in spec.layout.slots] == ["head.weight", "head.bias"]
    assert spec.layout.frozen == ("backbone.0.weight", "backbone.0.bias") == tuple(spec.frozen)
    row = spec.initial_row(Streams(4))
    modules = [spec.module(row), spec.template(), spec.module(2 * row)]
    assert len({module.backbone[0].weight.data_ptr() for module in modules}) == 1  # type: ignore[union-attr, index]
    torch.testing.assert_close(modules[2].head.bias, 2 * modules[0].head.bias)  # type: ignore[union-attr]


def test_the_frozen_values_are_those_that_rows_used_to_carry() -> None:
    spec = spec_of()
    old = carrying(spec_of())
    row = old.initial_row(Streams(4))
    carried = {slot.name: slot.view(row[None])[0] for slot in old.layout.slots}
    assert old.layout.width == sum(p.numel() for p in Backboned().parameters())
    for name, value in spec.frozen.items():
        torch.testing.assert_close(value, carried[name], rtol=0, atol=0)
    x = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(spec.module(spec.initial_row(Streams(4)))(x), old.module(row)(x), rtol=0, atol=0)


def test_patterns_mean_tensors_and_modules() -> None:
    names = ["backbone.0.weight", "backbone.1.weight", "head.weight", "head.bias", "a.lora_B.default.weight"]
    assert matching(["backbone.*"], names, "frozen") == tuple(names[:2])
    assert matching(["head"], names, "frozen") == tuple(names[2:4])
    assert matching(["*.lora_B", "*.bias"], names, "private") == (names[3], names[4])
    assert matching(["head"], [f"inner.{name}" for name in names], "frozen") == ("inner.head.weight", "inner.head.bias")
    with pytest.raises(FedkinError, match="unknown tensor or module of the model for frozen 'bakbone'; did you mean"):
        matching(["head", "bakbone"], ["backbone", "head"], "frozen")


def test_nothing_left_to_train_is_refused_in_one_line() -> None:
    with pytest.raises(FedkinError, match="every parameter of the model is frozen"):
        spec_of(frozen="*")
    with pytest.raises(FedkinError, match="every parameter of the model is frozen"):
        ModelSpec.of(nn.Linear(6, 3).requires_grad_(False), TASK)


def test_batch_norm_with_frozen_statistics_stays_as_it_is() -> None:
    spec = spec_of("bn-mlp:4", frozen="features")
    assert not spec.layout.counters
    assert {slot.name for slot in spec.layout.slots} == {"classifier.weight", "classifier.bias"}
    module, x = spec.template().train(), torch.randn(8, 6, dtype=torch.float64)
    outputs = module(x)
    torch.testing.assert_close(outputs, module.eval()(x), rtol=0, atol=0)
    assert int(module.features[2].num_batches_tracked) == 0  # type: ignore[union-attr, index]
    moves = ModelSpec.of(lambda: _weights_frozen(), TASK)
    assert len(moves.layout.buffers) == 2, "without a pattern running statistics move, in every client's row"


def _weights_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net[:2].requires_grad_(False)
    return net


def test_the_hash_knows_names_shapes_types_and_values() -> None:
    plain = {"a": torch.ones(2, 3), "b": torch.arange(4)}
    others = [
        {"a": torch.ones(3, 2), "b": torch.arange(4)},
        {"a": torch.ones(2, 3).double(), "b": torch.arange(4)},
        {"c": torch.ones(2, 3), "b": torch.arange(4)},
        {"a": torch.ones(2, 3), "b": torch.arange(4).flip(0)},
    ]
    assert frozen_hash(dict(reversed(plain.items()))) == frozen_hash(plain)
    assert len({frozen_hash(each) for each in [plain, *others]}) == 5
    assert frozen_hash({}) == ""


def test_frozen_values_of_another_model_are_refused() -> None:
    spec = spec_of()
    with pytest.raises(FedkinError, match=r"'backbone.0.bias' is frozen in one and not in the other"):
        with_frozen(spec, {"backbone.0.weight": spec.frozen["backbone.0.weight"]}, "the file")
    with pytest.raises(FedkinError, match=r"'backbone.0.weight' is \(2, 2\) torch.float64, not \(5, 6\)"):
        with_frozen(spec, {**spec.frozen, "backbone.0.weight": torch.zeros(2, 2, dtype=torch.float64)}, "the file")


def test_narrower_layouts_and_other_names() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    narrow = layout.without(["0.weight", "1.running_mean"])
    assert [(s.name, s.start, s.stop) for s in narrow.slots] == [
        ("0.bias", 0, 2), ("1.weight", 2, 4), ("1.bias", 4, 6), ("1.running_var", 6, 8),
    ]  # fmt: skip
    assert layout.renamed("x.{}".format).norms[0] == "x.1.weight"
    assert layout.renamed("x.{}".format).width == layout.width


# --- the front --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [False, True])
def test_the_rest_makes_of_features_what_the_model_makes_of_inputs(tokens: bool) -> None:
    task = TEXT if tokens else TASK
    spec = spec_of(lambda: Backboned(tokens=tokens), task)
    front = front_of(spec, task)
    assert isinstance(front, Front)
    x = torch.randint(0, 7, (300, 5)) if tokens else torch.randn(300, 6, dtype=torch.float64)
    kept, row = x.clone(), spec.initial_row(Streams(1))
    features = front.features(x)
    assert torch.equal(x, kept), "inputs are left alone, although the first layers work in place"
    torch.testing.assert_close(front.rest().module(row)(features), spec.module(row)(x), rtol=1e-12, atol=1e-12)
    assert front.rest().layout.slots == spec.layout.slots
    assert front.task(task).input_shape == features.shape[1:]


def test_a_chain_has_its_first_layers_as_front() -> None:
    spec = spec_of("mlp:5,4", frozen="features.1")
    front = front_of(spec, TASK)
    assert isinstance(front, Front)
    assert front.layers == ("features.0", "features.1", "features.2")
    assert front.shape == (5,)


@pytest.mark.parametrize(
    ("model", "frozen", "why"),
    [
        (Backboned, "", "nothing is frozen"),
        (Backboned, "head.weight", "does not come first"),
        (lambda: Backboned(skip=True), "backbone.*", "by another path"),
        (_weights_frozen, "", None),
    ],
)
def test_models_without_a_front(model: object, frozen: str, why: str | None) -> None:
    found = front_of(spec_of(model, frozen=frozen), TASK)
    if why is None:  # batch norm that moves ends the front before it
        assert isinstance(found, Front)
        assert found.layers == ("0",)
    else:
        assert isinstance(found, str)
        assert why in found


def test_dropout_ends_the_front() -> None:
    found = front_of(spec_of(lambda: Backboned(dropout=0.5)), TASK)
    assert isinstance(found, Front)
    assert found.layers == ("backbone.0", "backbone.1")
