"""FedJAX: its federated averaging; clients are stepped through by its jit or pmap backend.

The networks are written as functions of a list of parameters, in JAX's own layouts (NHWC images, HWIO kernels, in × out
matrices). FedJAX's models have no state, so batch norm keeps no running statistics, which training does not read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

import work

BACKEND = os.environ.get("FEDJAX_BACKEND", "jit")
os.environ["JAX_PLATFORMS"] = "cpu"
if BACKEND == "pmap":  # one device per core, as JAX advises for parallel work on a CPU
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}"

import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

Parameters = list[jax.Array]


def _mlr(p: Parameters, x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1) @ p[0] + p[1]


def _mlp(p: Parameters, x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x.reshape(len(x), -1) @ p[0] + p[1])
    hidden = jax.nn.relu(hidden @ p[2] + p[3])
    return hidden @ p[4] + p[5]


def _cnn(p: Parameters, x: jax.Array) -> jax.Array:
    x = _pool(jnp.tanh(_norm(_convolve(x, p[0], p[1], padding=2), p[2], p[3])))
    x = _pool(jnp.tanh(_norm(_convolve(x, p[4], p[5], padding=0), p[6], p[7])))
    x = jnp.tanh(_norm(x.reshape(len(x), -1) @ p[8] + p[9], p[10], p[11]))
    return x @ p[12] + p[13]


def _convolve(x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: int) -> jax.Array:
    sides = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), sides, dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias


def _pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) * jax.lax.rsqrt(x.var(axes) + 1e-5) * scale + shift


FORWARD: dict[str, Callable[[Parameters, jax.Array], jax.Array]] = {"mlr": _mlr, "mlp": _mlp, "cnn": _cnn}


def own_layout(value: np.ndarray) -> np.ndarray:
    """PyTorch's OIHW kernels and out × in matrices in JAX's order; 512 inputs of a matrix are 32 channels of 4 × 4."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if value.ndim == 2 and value.shape[1] == 512:
        return value.reshape(-1, 32, 4, 4).transpose(2, 3, 1, 0).reshape(512, -1)
    return value.T


def main() -> None:
    job = work.read_job(sys.argv[1:])
    fedjax.set_for_each_client_backend(BACKEND)
    forward = FORWARD[job.model]

    def loss(params: Parameters, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(forward(params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], axis=1).mean()

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.BATCH, num_epochs=1),
    )
    images = job.images.transpose(0, 1, 3, 4, 2)
    datasets = [fedjax.ClientDataset({"x": images[k], "y": job.labels[k]}) for k in range(job.clients)]
    state = algorithm.init([jnp.asarray(own_layout(value)) for value in job.initial])
    turns = work.Turns(("fedjax", "jax", "jaxlib", "numpy"), state.params)
    with contextlib.suppress(work.Stop):
        for number in range(work.FOREVER):
            turns.begin()
            keys = jax.random.split(jax.random.PRNGKey(number), job.clients)
            state, _ = algorithm.apply(state, list(zip(range(job.clients), datasets, keys)))
            jax.block_until_ready(state.params)
            turns.end(state.params)


if __name__ == "__main__":
    main()
