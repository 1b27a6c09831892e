"""`fedkin deploy init`: a complete Flower app in a folder, with certificates, keys, and one folder per site."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

from fedkin.errors import FedkinError
from fedkin.files import whole, whole_folder, write_atomic
from fedkin.files.archive import write_archive

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Deployment:
    """What a new federation looks like."""

    folder: Path
    sites: Sequence[str]
    address: str = "127.0.0.1"
    port: int = 9092
    model: str = "mlr"
    algorithm: str = "fedavg"
    rounds: int = 10
    target: str = "y"
    """The column to predict, in the sites' tables."""
    example: bool = False
    """Give every site a share of scikit-learn's digits, to try it out."""

    def check(self) -> None:
        from fedkin import algorithms

        if self.folder.exists() and any(self.folder.iterdir()):
            raise FedkinError(f"{self.folder} is not empty; choose another folder")
        if not self.sites or len({site.lower() for site in self.sites}) < len(self.sites):
            raise FedkinError("give at least one site, each name once: --sites north,south")
        for site in self.sites:
            if not NAME.fullmatch(site):
                raise FedkinError(f"site {site!r}: use letters, digits, - and _ only; it becomes a folder")
        algorithms.get(self.algorithm)

    def write(self) -> list[Path]:
        """Write everything, or nothing; the folders of the sites are given back."""
        self.check()
        folder = self.folder.absolute()
        with whole_folder(folder) as fresh:
            self._write_app(fresh)
        return [folder / "sites" / site for site in self.sites]

    def _write_app(self, folder: Path) -> None:
        from fedkin.deployment.credentials import make_certificates

        self._fill("pyproject.toml", folder / "pyproject.toml")
        self._fill("README.md", folder / "README.md", register=self._register(), start=self._start())
        for name in ("server_app", "client_app"):
            self._fill(f"{name}.py", folder / "fedkin_app" / f"{name}.py")
        write_atomic(folder / "fedkin_app" / "__init__.py", b"")
        server = folder / "server"
        self._fill("federation.toml", server / "federation.toml")
        self._fill("start-superlink.sh", server / "start.sh")
        self._fill("nginx.conf", server / "nginx.conf")
        self._fill("superlink.service", server / "fedkin-superlink.service")
        make_certificates(server / "certificates", list(dict.fromkeys([self.address, "127.0.0.1", "localhost"])))
        self._fill("flwr.toml", server / "flwr.toml")
        for number, site in enumerate(self.sites):
            self.write_site(site, self.port + 1 + number, folder / "sites" / site, folder)
        if self.example:
            self._write_example(folder)

    def write_site(self, site: str, own_port: int, own: Path, app: Path) -> None:
        """Fill the folder of one site of an app: settings, start script, unit, the authority's certificate, a new key."""
        from fedkin.deployment.credentials import make_key

        self._fill("site.toml", own / "site.toml", site=site, data="data.npz" if self.example else "data.csv")
        self._fill("start-supernode.sh", own / "start.sh", own_port=own_port)
        self._fill("supernode.service", own / f"fedkin-{site}.service", site=site)
        write_atomic(own / "ca.pem", (app / "server" / "certificates" / "ca.pem").read_bytes())
        make_key(own / "key")

    def _fill(self, template: str, path: Path, **more: object) -> None:
        text = (files("fedkin.deployment") / "templates" / template).read_text()
        facts = {
            "count": len(self.sites),
            "model": self.model,
            "algorithm": self.algorithm,
            "rounds": self.rounds,
            "address": self.address,
            "bind": "127.0.0.1" if self.address in ("127.0.0.1", "localhost") else "0.0.0.0",
            "port": self.port,
            "inner": self.port - 1,
            "target": json.dumps(self.target, ensure_ascii=False),
            **more,
        }
        write_atomic(path, Template(text).substitute(facts).encode())
        if path.suffix == ".sh":
            path.chmod(0o755)

    def _register(self) -> str:
        return "\n".join(f"    flwr supernode register sites/{site}/key.pub" for site in self.sites)

    def _start(self) -> str:
        return "\n".join(f"    sites/{site}/start.sh &" for site in self.sites)

    def _write_example(self, folder: Path) -> None:
        from fedkin import data

        federation = data.load("digits", clients=len(self.sites), partition="dirichlet:0.3", seed=0)
        for k, site in enumerate(self.sites):
            parts = (federation.train[k], federation.test[k])
            x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            with whole(folder / "sites" / site / "data.npz") as file:
                write_archive(file, {"x": x, "y": y}, compress=False)
