"""Imports the installed libraries, for a process from which ranks are forked: no rank then waits for an import."""

from __future__ import annotations

from benchmarks.architecture.library import load_all

load_all()
