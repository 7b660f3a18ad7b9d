"""Objects that ranks may exchange, how they arrive, and that foreign bytes execute nothing."""

from __future__ import annotations

import json
import pickle
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gangline.core.encoding import decode, encode
from gangline.domain.storage.manifest import StoredFile
from gangline.errors import GanglineError

_HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
_ANY = st.recursive(
    _HASHABLE | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(_HASHABLE, inner, max_size=4)
        | st.sets(_HASHABLE, max_size=4)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return repr(left) == repr(right) or (left == right and type(left) is type(right))


@given(_ANY)
def test_plain_objects_arrive_as_they_were(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        -0.0,
        2**200,
        "\ud800",
        {"dict": [["tuple"], [1]]},
        {1: "a", "1": "b", None: "c", (1, 2): "d"},
        OrderedDict(b=1, a=(2,)),
        Counter("abca"),
        bytearray(b"ab"),
        Path("/a/b"),
        np.float64(0.5),
        np.str_("x"),
        torch.Size([2, 3]),
        torch.bfloat16,
        StoredFile(3, "ab"),
    ],
    ids=repr,
)
def test_types_survive(value: Any) -> None:
    decoded = decode(encode([value]))[0]
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value)


def test_default_dictionary_keeps_its_default() -> None:
    decoded = decode(encode(defaultdict(list, a=[1])))
    assert decoded["a"] == [1]
    assert decoded["b"] == []


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.array(1.5),
        np.zeros((0, 3)),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
    ids=repr,
)
def test_arrays_arrive_with_type_and_shape(array: Any) -> None:
    decoded = decode(encode({"x": array}))["x"]
    assert type(decoded) is np.ndarray
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    assert np.array_equal(decoded, array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros((0, 3)),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([True, False]),
    ],
    ids=repr,
)
def test_tensors_arrive_on_the_cpu_and_can_be_written_to(tensor: torch.Tensor) -> None:
    decoded = decode(encode((tensor, b"x")))[0]
    assert (decoded.dtype, decoded.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(decoded, tensor.detach())
    decoded.zero_()


@dataclass
class Own:
    x: int = 0


class Text(str):
    __slots__ = ()


_LOOP: list[Any] = []
_LOOP.append(_LOOP)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Own(), "a tests.unit.core.test_encoding.Own"),
        ({"a": [object()]}, "a object"),
        (ValueError("x"), "a ValueError"),
        (lambda: 0, "a function"),
        (Text("x"), "a tests.unit.core.test_encoding.Text"),
        (defaultdict(Own), "a defaultdict of Own"),
        (np.array([None]), "a numpy array of dtype object"),
        (torch.eye(2).to_sparse(), "a torch.Tensor that is no plain dense tensor"),
        (_LOOP, "an object that contains itself, or is nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_travel_is_one_line(value: Any, what: str) -> None:
    with pytest.raises(GanglineError) as caught:
        encode(value)
    assert caught.value.code == "core.cannot_travel"
    assert caught.value.message.startswith(f"ranks cannot exchange {what}; they exchange numbers, strings, ")
    assert "\n" not in caught.value.message


class Bomb:
    """Its pickle makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def _document(tree: Any, blob: bytes = b"") -> bytes:
    text = json.dumps(tree).encode()
    return len(text).to_bytes(8, "big") + text + blob


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "ran"
    bomb = pickle.dumps(Bomb(path))
    array = np.empty(1, dtype=object)
    array[0] = Bomb(path)
    np.save(tmp_path / "bomb.npy", array, allow_pickle=True)
    content = (tmp_path / "bomb.npy").read_bytes()
    for payload in (bomb, _document({"array": [0, len(content)]}, content), _document({"bytes": [0, 3]}) + bomb[:1]):
        with pytest.raises(GanglineError) as caught:
            decode(payload)
        assert caught.value.code == "core.foreign_data"
    assert not path.exists()


@pytest.mark.parametrize(
    "tree",
    [
        {"record": ["Own", [["x"], [1]]]},
        {"record": ["Path", [["x"], [1]]]},
        {"enum": ["StoredFile", "x"]},
        {"torch": "load"},
        {"torch": "os"},
        {"default": ["eval", [[], []]]},
        {"call": "print"},
        {"dict": [[1], []]},
        {"set": [[1]]},
        {"tensor": ["float32", [2, 2], 0, 4]},
        {"tuple": [], "list": []},
    ],
    ids=json.dumps,
)
def test_foreign_documents_are_refused(tree: Any) -> None:
    with pytest.raises(GanglineError) as caught:
        decode(_document(tree))
    assert caught.value.code == "core.foreign_data"


@given(st.binary(max_size=64))
def test_random_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(GanglineError) as caught:
        decode(payload)
    assert caught.value.code == "core.foreign_data"
