"""Messages about absent objects: one line, with the command that lists the existing ones."""

from __future__ import annotations

import pytest

from gangline.domain.id import absent


@pytest.mark.parametrize(
    ("name", "record_id", "text"),
    [
        ("experiment", 9, "there is no experiment 9; list them with: gangline experiment list"),
        ("trial", "27.9", "there is no trial 27.9; list them with: gangline experiment trials 27"),
        ("allocation", "27.9.1", "there is no allocation 27.9.1"),
    ],
)
def test_the_line_says_where_to_look(name: str, record_id: int | str, text: str) -> None:
    error = absent(name, record_id)
    assert (error.code, error.message) == (f"{name}.not_found", text)
