"""Fixtures for all tests: a cache of their own, and the folder of real data sets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin import Federation

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --force-device-scale-factor=1"
)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never touch the user's cache of data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_data() -> Path:
    """The folder with the real data sets; tests that use it are skipped where there is none."""
    folder = os.environ.get("FEDKIN_DATA")
    if not folder:
        pytest.skip("set FEDKIN_DATA to a folder with the real data sets to run this test")
    return Path(folder)


@pytest.fixture
def least_squares() -> Callable[..., Federation]:
    """Makes clients that fit y = w_k·x + `shift` + noise, with three inputs, each client's longer than the last's."""

    def make(
        seed: int, clients: int, samples: int, growth: float, noise: float = 0.0, shift: float = 0.0
    ) -> Federation:
        rng, sites = np.random.default_rng(seed), {}
        for k in range(clients):
            x = rng.normal(size=(samples, 3)) * (1 + growth * k)
            y = x @ rng.normal(size=3) + shift
            sites[f"site-{k}"] = (x, y + noise * rng.normal(size=samples) if noise else y)
        return Federation.from_arrays(sites)

    return make


def _moments(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    hessians, linear = [], []
    for x, y in federation.train:
        hessians.append(2 * x.T @ x / len(x))
        linear.append(2 * x.T @ np.asarray(y).ravel() / len(x))
    return np.array(hessians), np.array(linear)


@pytest.fixture
def moments() -> Callable[[Federation], tuple[np.ndarray, np.ndarray]]:
    """H_k and b_k of the mean squared error of a linear model, written out, of a federation."""
    return _moments


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real, headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        reason = "needs Chromium and its driver: apt-get install chromium chromium-driver"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()
