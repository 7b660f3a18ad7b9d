"""Archives and configurations that cost their reader far more than they weigh, or that it cannot keep."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable

from gangline.domain.limits import MAX_FILES

CONFIG = """\
name: hostile
entrypoint: model_def:Trial
searcher: {name: single, metric: loss, max_length: 3}
"""
GRID = CONFIG.replace("single", "grid")
_END = bytes(1024)
# Of a name: 1000 times what is read of a header, and cheap to pack.
LONG_BYTES = 16 << 20


def header(name: str, kind: bytes, size: int, linkname: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, linkname
    return member.tobuf(tarfile.USTAR_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def plain(name: str = "model_def.py", content: bytes = b"x = 1") -> bytes:
    return header(name, tarfile.REGTYPE, len(content)) + padded(content)


def pax(content: bytes) -> bytes:
    return header("pax", tarfile.XHDTYPE, len(content)) + padded(content)


def record(key: str, value: str) -> bytes:
    """One record of a pax header; its length counts its own digits."""
    length = len(key) + len(value) + 3
    total = length + len(str(length))
    while len(str(total)) + length != total:
        total = len(str(total)) + length
    return f"{total} {key}={value}\n".encode()


def packed(*parts: bytes) -> bytes:
    return gzip.compress(b"".join(parts) + _END, compresslevel=1, mtime=0)


def _long_name() -> bytes:
    return packed(pax(record("path", "n" * LONG_BYTES)), plain())


def _gnu_name() -> bytes:
    return packed(header("L", tarfile.GNUTYPE_LONGNAME, LONG_BYTES), padded(b"n" * LONG_BYTES), plain())


def _sparse_map() -> bytes:
    named = record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "s")
    table = padded(b"20000000\n" + b"0\n" * 2_000_000)
    return packed(pax(named + record("GNU.sparse.realsize", "9")), header("s", tarfile.REGTYPE, len(table)), table)


def _old_sparse() -> bytes:
    member = bytearray(header("s", tarfile.GNUTYPE_SPARSE, 0))
    return packed(bytes(member), plain())


# Each with the code of its refusal and a part of the line.
ARCHIVES: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "backtracking pax header": (
        lambda: packed(pax(b"1" * 400_000), plain()),
        "code.corrupt",
        "a header has 400000 bytes",
    ),
    "pax name of 16 MB": (_long_name, "code.corrupt", f"a header has {LONG_BYTES + 15} bytes"),
    "gnu name of 16 MB": (_gnu_name, "code.corrupt", f"a header has {LONG_BYTES} bytes"),
    "too many members": (
        lambda: packed(*(header(f"f{number}", tarfile.REGTYPE, 0) for number in range(MAX_FILES + 1))),
        "code.too_big",
        f"more than {MAX_FILES} files",
    ),
    "sparse map": (_sparse_map, "code.unsafe_path", "is a sparse file"),
    "sparse map in a header": (
        lambda: packed(pax(record("GNU.sparse.map", "0,1," * 3000 + "0")), plain("s")),
        "code.unsafe_path",
        "is a sparse file",
    ),
    "old sparse file": (_old_sparse, "code.unsafe_path", "neither a file nor a folder"),
    "chain of headers": (lambda: packed(pax(record("a", "b")) * 5000, plain()), "code.corrupt", "recursion"),
    "negative size": (lambda: packed(pax(record("size", "-5")), plain()), "code.corrupt", "has the size -5"),
    "link inside": (
        lambda: packed(plain(), header("b.py", tarfile.SYMTYPE, 0, "model_def.py")),
        "code.unsafe_path",
        "is a link; pack what it points to",
    ),
    "hard link inside": (
        lambda: packed(plain(), header("b.py", tarfile.LNKTYPE, 0, "model_def.py")),
        "code.unsafe_path",
        "is a link; pack what it points to",
    ),
    "file as folder": (
        lambda: packed(plain("a"), plain("a/b")),
        "code.unsafe_path",
        "'a/b', which is there as a file and as a folder",
    ),
    "long part": (
        lambda: packed(pax(record("path", "n" * 300)), plain()),
        "code.unsafe_path",
        "has a name of more than 255 bytes",
    ),
    "long path": (
        lambda: packed(pax(record("path", "d/" * 600 + "n")), plain()),
        "code.unsafe_path",
        "has a path of more than 1024 bytes",
    ),
    "NUL in a name": (lambda: packed(pax(record("path", "a\0b")), plain()), "code.unsafe_path", "the character NUL"),
}


def aliases(levels: int) -> str:
    """Each level is nine times the one before it when it is written out."""
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return CONFIG + "data:\n" + "\n".join(lines) + "\n"


def grid(count: int) -> str:
    return f"{GRID}hyperparameters: {{lr: {{type: double, minval: 0, maxval: 1, count: {count}}}}}\n"


# Each with the code of its refusal and a part of the line.
CONFIGS: dict[str, tuple[str, str, str]] = {
    "grid of a billion": (
        grid(1_000_000_000),
        "config.invalid_value",
        "has 1000000000 points, and a search has at most 10000 trials; lower a count",
    ),
    "grid beyond any number": (
        GRID
        + "hyperparameters:\n"
        + "".join(
            f"  h{number}: {{type: double, minval: 0, maxval: 1, count: 9000000000000000000}}\n"
            for number in range(1500)
        ),
        "config.invalid_value",
        "has about 10^28431 points",
    ),
    "aliases": (aliases(8), "config.too_large", "once its aliases are written out"),
    "aliases of merges": (
        CONFIG
        + "data:\n  a0: &a0 {x: 1}\n"
        + "".join(f"  a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10)),
        "config.too_large",
        "once its aliases are written out",
    ),
    "alias inside of itself": (CONFIG + "data: &a [*a]\n", "config.syntax", "an alias stands inside of its own anchor"),
    "nested lists": (CONFIG + f"data: {{x: {'[' * 5000}{']' * 5000}}}\n", "config.too_large", "more than 32 deep"),
    "long text": (CONFIG + f"description: {'x' * 300_000}\n", "config.too_large", "at most 131072 (128 KiB)"),
    "many values": (CONFIG + f"data: {{x: [{'1,' * 30_000}]}}\n", "config.too_large", "at most 20000 are allowed"),
    "long name": (CONFIG.replace("hostile", "x" * 300), "config.invalid_value", "at most 256 characters"),
    "long key": (CONFIG + f"data: {{{'k' * 300}: 1}}\n", "config.invalid_value", "at most 256 characters"),
    "5000 digits": (CONFIG + f"data: {{x: {'9' * 5000}}}\n", "config.syntax", "line 4, column 11: "),
    "5000 hexadecimal digits": (CONFIG + f"data: {{x: 0x{'f' * 5000}}}\n", "config.syntax", "beyond 64 bits"),
    "beyond 64 bits": (CONFIG + f"max_restarts: {2**63}\n", "config.invalid_value", "beyond 64 bits"),
    "no date": (CONFIG + "data: {x: 2024-99-99}\n", "config.syntax", "'2024-99-99' is no date"),
    "wrong tag": (CONFIG + "data: {x: !!bool maybe}\n", "config.syntax", "'maybe' is neither true nor false"),
    "bytes": (CONFIG + "data: {x: !!binary aGVsbG8=}\n", "config.invalid_value", "of the YAML type bytes"),
    "infinity": (CONFIG + "data: {x: .inf}\n", "config.invalid_value", "no finite number"),
    "half a surrogate pair": (CONFIG + 'data: {x: "\\ud800"}\n', "config.invalid_value", "half of a Unicode surrogate"),
    "NUL": (CONFIG + 'data: {x: "\\0"}\n', "config.invalid_value", "the character NUL"),
    "range beyond a float": (
        CONFIG + "hyperparameters: {x: {type: log, minval: 0, maxval: 400}}\n",
        "config.invalid_value",
        "beyond a float",
    ),
    "counted classes": (
        CONFIG + "log_policies: [{pattern: '\\pL{400}'}]\n",
        "config.invalid_value",
        "pattern too large",
    ),
    "a long pattern": (
        CONFIG + f"log_policies: [{{pattern: '{'[a-z]' * 300}'}}]\n",
        "config.invalid_value",
        "has 1500 characters, at most 1000 are allowed",
    ),
    "many patterns": (
        CONFIG + f"log_policies: [{', '.join(['{pattern: x}'] * 33)}]\n",
        "config.invalid_value",
        "has 33 patterns, at most 32 are allowed",
    ),
    "many long patterns": (
        CONFIG + f"log_policies: [{', '.join(['{pattern: ' + 'x' * 700 + '}'] * 3)}]\n",
        "config.invalid_value",
        "more than 2000 characters together",
    ),
    "too many ranges": (
        CONFIG + "hyperparameters:\n" + "".join(f"  h{n}: {{type: int, minval: 0, maxval: 9}}\n" for n in range(201)),
        "config.invalid_value",
        "at most 200",
    ),
}
