"""The federation of the contract tests."""

from __future__ import annotations

import pytest

from fedkin.federation import Federation
from fedkin.testing import uneven_federation


@pytest.fixture
def federation() -> Federation:
    return uneven_federation()
