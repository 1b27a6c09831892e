"""fedkin: `fedkin.train` with its defaults; a callback waits for the driver between rounds.

Samples are handed over as arrays in memory, as users do, which counts as fedkin's memory: of arrays in a mapped file it reads each batch anew.
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import work

import fedkin
from fedkin.algorithms.fedavg import FedAvg
from fedkin.federation import Federation
from fedkin.models import ModelSpec
from fedkin.result.history import Record
from fedkin.run import Run
from fedkin.run.callbacks import Callback
from fedkin.streams import Streams

MODELS = {"mlr": "mlr", "mlp": "mlp:100,100", "cnn": "fedpnp-mnist"}
SEED = 0


def initial_parameters(model: str) -> list[np.ndarray]:
    """The parameters fedkin starts from, layer after layer; the driver gives them to the peers."""
    sample = {"c0": (np.zeros((work.CLASSES, *work.SHAPE), np.float32), np.arange(work.CLASSES))}
    task = Federation.from_arrays(sample, classes=list(range(work.CLASSES)), test_fraction=0).task
    spec = ModelSpec.of(MODELS[model], task)
    row = spec.initial_row(Streams(SEED))[None]
    return [slot.view(row)[0].numpy() for slot in spec.layout.parameters]


class Wait(Callback):
    def __init__(self, initial: list[np.ndarray]) -> None:
        self.turns = work.Turns(("fedkin", "torch", "numpy"), initial)

    def on_start(self, run: Run) -> None:
        self.turns.begin()

    def on_round(self, run: Run, record: Record) -> None:
        self.turns.end([run.state.rows[0, : run.setting.spec.layout.n_parameters].numpy()])
        self.turns.begin()


def main() -> None:
    job = work.read_job(sys.argv[1:])
    federation = Federation.from_arrays(
        {f"c{k}": (np.array(job.images[k]), np.array(job.labels[k])) for k in range(job.clients)},
        classes=list(range(work.CLASSES)),
        test_fraction=0,
    )
    method = FedAvg(lr=work.LR, batch_size=work.BATCH, epochs=1)
    with contextlib.suppress(work.Stop):
        fedkin.train(
            federation,
            MODELS[job.model],
            method,
            rounds=work.FOREVER,
            seed=SEED,
            eval_every=work.FOREVER,
            callbacks=[Wait(job.initial)],
        )


if __name__ == "__main__":
    main()
