"""Networks, and the way between modules and rows."""

from fedkin.models.adapted import lora
from fedkin.models.layout import Layout, Slot, rows_of
from fedkin.models.mobilenet import mobilenet_v2
from fedkin.models.networks import NETWORKS, build_network, network
from fedkin.models.sequence import gru_forecaster, lstm_text
from fedkin.models.spec import ModelLike, ModelSpec
from fedkin.models.transformer import transformer_text

__all__ = [
    "NETWORKS",
    "Layout",
    "ModelLike",
    "ModelSpec",
    "Slot",
    "build_network",
    "gru_forecaster",
    "lora",
    "lstm_text",
    "mobilenet_v2",
    "network",
    "rows_of",
    "transformer_text",
]
