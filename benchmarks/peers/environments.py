"""The peers, and one virtual environment for each of them, made once and kept in a cache directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
CORES = len(os.sched_getaffinity(0))


class Unavailable(Exception):
    """A peer could not be installed or started; the message is pip's, or the last line of its log."""


@dataclass(frozen=True)
class Peer:
    """One framework: what pip installs, step by step, and how its worker is started."""

    title: str
    used: str
    """How it is set up for this machine's cores, and what differs from the others."""
    installs: tuple[tuple[str, ...], ...] = ()
    launch: tuple[str, ...] = ()
    """Arguments to python before the worker's file."""
    needs: tuple[int, int] = (3, 11)
    """The oldest Python it runs on."""


PEERS = {
    "fedkin": Peer("fedkin", "fedkin.train with its defaults, one thread per core, arrays in memory"),
    "flower": Peer(
        "Flower",
        f"simulation on Ray, {CORES} actors of one core; the local loop is the user's: plain, on tensors in memory",
        (("torch",), ("flwr[simulation]",)),
    ),
    "pfl": Peer(
        "pfl",
        f"{CORES} processes under torchrun; batches are not shuffled, batch-norm statistics not averaged",
        (("torch",), ("pfl",)),
        ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}"),
    ),
    "fluke": Peer(
        "fluke",
        "one process, its FastDataLoader, in memory; torchvision, unused here, is stood in for",
        (
            ("torch",),
            ("--no-deps", "fluke-fl"),
            ("numpy", "pandas", "scikit-learn", "torchmetrics", "rich", "typer", "psutil", "datasets", "matplotlib"),
            ("seaborn", "diskcache", "cerberus", "requests", "pyyaml", "omegaconf", "hydra-core"),
        ),
    ),
    "fedjax": Peer(
        "FedJAX",
        "its jit backend (pmap fails on this JAX); no running batch-norm statistics",
        (("jax<0.5", "jaxlib<0.5", "fedjax"),),
    ),
    "blazefl": Peer(
        "BlazeFL",
        f"its pool of {CORES} processes with shared memory, forked anew in every round; tensors in memory",
        (("torch",), ("blazefl==2.0.3", "numpy", "tqdm")),
        needs=(3, 12),
    ),
}


def interpreter(needs: tuple[int, int]) -> str:
    """This Python if it is new enough, else a newer one on the path or of pyenv. Raises Unavailable."""
    if sys.version_info[:2] >= needs:
        return sys.executable
    for version in (f"{needs[0]}.{minor}" for minor in range(needs[1], needs[1] + 3)):
        places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for python in filter(None, places):  # pyenv's shims may lead nowhere
            if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                return str(python)
    raise Unavailable(f"it needs Python {needs[0]}.{needs[1]}, which is not at hand")


def python_of(name: str, cache: Path, install: bool = True) -> str:
    """The interpreter of a peer's environment, which is made if missing and `install`. Raises Unavailable with the reason."""
    peer = PEERS[name]
    if not peer.installs:
        return sys.executable
    home = cache / name
    python, ready = home / "bin" / "python", home / ".ready"
    recipe = repr(peer.installs)
    if ready.exists() and ready.read_text() == recipe:
        return str(python)
    if not install:
        raise Unavailable("it has no environment yet, `make bench-peers` makes one")
    print(f"installing {peer.title} into {home} …", file=sys.stderr, flush=True)
    subprocess.run([interpreter(peer.needs), "-m", "venv", "--clear", home], check=True)
    # The tested build of torch and no other; a torchvision would ask for its own, so nothing may pull one.
    constraints = home / "constraints.txt"
    constraints.write_text(CONSTRAINTS.read_text() + "torchvision<0\n")
    for step in peer.installs:
        pip = [python, "-m", "pip", "install", "--quiet", "-c", constraints, *step]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable("; ".join(errors) or done.stderr.strip()[-300:])
    ready.write_text(recipe)
    return str(python)
