"""Compiles the tests as pytest would, on all cores, so that its processes need not each do it for all files.

They begin with the same file at the same time, so none finds what another has compiled; and an image may forbid Python
to keep what it compiles. pytest has no public way: without the functions used here it compiles the tests itself.
Called by scripts/test.
"""

from __future__ import annotations

import compileall
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite

ROOT = Path(__file__).parent.parent


def compile_test(path: Path) -> bool:
    """Returns whether the file was compiled. One that is no Python is left to pytest, which says so."""
    compiled = rewrite.get_cache_dir(path) / f"{path.name.removesuffix('.py')}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is not None:
        return False
    try:
        # Only plugins have a use for the configuration.
        source_hash, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]
    except SyntaxError:
        return False
    compiled.parent.mkdir(exist_ok=True)
    rewrite._write_pyc(SimpleNamespace(trace=print), code, source_hash, compiled)  # type: ignore[arg-type]
    return True


def main() -> None:
    paths = sorted(path for name in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(name))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        try:
            num_compiled = sum(pool.map(compile_test, paths, chunksize=20))
        except (AttributeError, TypeError) as error:
            print(f"the tests are not compiled beforehand, as this pytest has changed: {error}")
            return
    print(f"{num_compiled} of {len(paths)} files of tests were compiled")
    compileall.compile_dir(ROOT / "tests" / "support", quiet=1)


if __name__ == "__main__":
    main()
