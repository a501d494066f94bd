"""What `tensorfold serve` refuses at its door, before anything slow is loaded."""

from __future__ import annotations

import re

import pytest

from tensorfold.core.errors import StartError
from tensorfold.tools.serve import Stopping, serve


@pytest.mark.parametrize(
    "origin", ["banana", "https://", "https://a.example/", "https://a.example\nX: 1", "null", " *"]
)
def test_an_origin_that_no_page_has_is_refused(origin: str) -> None:
    words = re.escape(f"--cors is {origin!r}, and an origin is")
    with pytest.raises(StartError, match=words):
        serve("", {"port": "0"}, {"TF_CORS": origin}, Stopping())


@pytest.mark.parametrize(
    "origin", ["", "*", "https://app.example", "http://127.0.0.1:3000", "http://[::1]:3000"]
)
def test_an_origin_that_a_page_has_is_taken(origin: str) -> None:
    with pytest.raises(StartError, match="no backend 'none'"):
        serve("", {"port": "0", "backend": "none"}, {"TF_CORS": origin}, Stopping())


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(StartError, match="--host is empty"):
        serve("", {"port": "0"}, {"TF_HOST": ""}, Stopping())
