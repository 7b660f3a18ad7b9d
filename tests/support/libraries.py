"""Installs the libraries of others that some tests run with, so that no test waits for them. Called by .ci/run beside
other work; elsewhere the first test that needs a library installs it."""

from __future__ import annotations

from tests.support.determined_client import install_determined
from tests.support.frameworks import install_frameworks

if __name__ == "__main__":
    install_frameworks()
    install_determined()
