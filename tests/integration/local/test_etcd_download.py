"""A safe etcd from the machine's package source, with the real apt and a source on this disk.

Its packages hold scripts that tell a version, as `gangline.local.etcd_download` runs nothing else of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.local import etcd_download
from gangline.local.etcd_download import PINNED_VERSION, DownloadFailed, download_etcd
from gangline.local.etcd_program import read_etcd_version

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs go; the search for programs ends there too."""
    target = tmp_path / "prefix" / "share" / "etcd"
    monkeypatch.setattr(etcd_download, "download_folders", lambda: (target, tmp_path / "unused"))
    return target


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], dict[str, bytes]]:
    """Makes the one source that apt knows, with etcd's packages of a version. Returns the packages' bytes."""
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{source} ./\n")
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))

    def make(version: str, told: str) -> dict[str, bytes]:
        index, packages = "", {}
        for package, program in (("etcd-server", "etcd"), ("etcd-client", "etcdctl")):
            tree = tmp_path / "tree" / package
            (tree / "usr/bin").mkdir(parents=True)
            (tree / "DEBIAN").mkdir()
            (tree / "usr/bin" / program).write_text(f"#!/bin/sh\necho 'etcd Version: {told}'\n")
            (tree / "usr/bin" / program).chmod(0o755)
            control = f"Package: {package}\nVersion: {version}\nArchitecture: {_architecture()}\n"
            control += "Maintainer: tests\nDescription: stand-in\n"
            (tree / "DEBIAN/control").write_text(control)
            built = source / f"{package}.deb"
            subprocess.run(["dpkg-deb", "--build", tree, built], check=True, stdout=subprocess.DEVNULL)
            packages[package] = built.read_bytes()
            sha256 = subprocess.run(["sha256sum", built], capture_output=True, text=True, check=True).stdout.split()[0]
            index += f"{control}Filename: ./{built.name}\nSize: {built.stat().st_size}\nSHA256: {sha256}\n\n"
        (source / "Packages").write_text(index)
        return packages

    return make


def _architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def _leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.name != ".etcd.lock")


def test_present_version_is_taken_where_the_pinned_one_has_vanished(
    folder: Path, publish: Callable[[str, str], dict[str, bytes]]
) -> None:
    publish("3.5.16-4", "3.5.16")
    assert download_etcd() == (f"fetched etcd 3.5.16 (etcd-server 3.5.16-4) from this machine's packages into {folder}")
    assert read_etcd_version(folder / "etcd") == (3, 5, 16)
    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "etcdctl"]
    assert _leftovers(folder) == ["etcd"]
    # A second run finds it and asks no source.
    assert download_etcd() == f"etcd 3.5.16 is in {folder}"


def test_unsafe_present_version_is_refused(folder: Path, publish: Callable[[str, str], dict[str, bytes]]) -> None:
    publish("3.3.25+dfsg-7", "3.3.25")
    with pytest.raises(DownloadFailed, match=r"its etcd-server is 3\.3\.25\+dfsg-7, which is not a safe version"):
        download_etcd()
    assert _leftovers(folder) == []


def test_pinned_version_with_other_bytes_is_refused(
    folder: Path, publish: Callable[[str, str], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a source that apt trusts."""
    publish(PINNED_VERSION, "3.4.23")
    monkeypatch.setitem(etcd_download.PINNED_SHA256, ("etcd-server", _architecture()), "0" * 64)
    with pytest.raises(DownloadFailed, match="does not have the checksum that it should have"):
        download_etcd()
    assert _leftovers(folder) == []


def test_pinned_client_with_other_bytes_is_left_out(
    folder: Path, publish: Callable[[str, str], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(PINNED_VERSION, "3.4.23")
    monkeypatch.delitem(etcd_download.PINNED_SHA256, ("etcd-server", _architecture()))
    assert "fetched etcd 3.4.23" in download_etcd()
    assert [path.name for path in folder.iterdir()] == ["etcd"]


def test_source_without_etcd_is_said_in_one_line(
    folder: Path, publish: Callable[[str, str], dict[str, bytes]], tmp_path: Path
) -> None:
    publish("3.5.16-4", "3.5.16")
    (tmp_path / "source" / "Packages").write_text("")
    with pytest.raises(DownloadFailed, match="etcd-server") as caught:
        download_etcd()
    assert "\n" not in str(caught.value)
    assert _leftovers(folder) == []


def test_up_fetches_it_where_the_machine_has_only_an_unsafe_one(
    tmp_path: Path, publish: Callable[[str, str], dict[str, bytes]]
) -> None:
    """In an environment of its own, as `pip install` makes it; the unsafe one is on PATH."""
    publish("3.5.16-4", "3.5.16")
    prefix, tools = tmp_path / "prefix", tmp_path / "tools"
    tools.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != "etcd":
            (tools / program.name).symlink_to(program)
    (tools / "etcd").write_text("#!/bin/sh\necho 'etcd Version: 3.5.1'\n")
    (tools / "etcd").chmod(0o755)
    script = (
        f"import sys; sys.prefix = {str(prefix)!r}\n"
        "from gangline.local.etcd_download import provide_etcd\n"
        "from gangline.local.etcd_program import find_etcd_binary\n"
        "provide_etcd(print)\nprint(find_etcd_binary())\nprovide_etcd(print)\n"
    )
    environment = {**os.environ, "PATH": str(tools), "HOME": str(tmp_path)}
    environment.pop("GANGLINE_ETCD", None)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True, timeout=100
    )
    fetched = prefix / "share" / "gangline" / "etcd"
    assert done.stdout.splitlines() == [
        "this machine has no safe etcd; fetching one from its packages, without installing it",
        f"fetched etcd 3.5.16 (etcd-server 3.5.16-4) from this machine's packages into {fetched}",
        str(fetched / "etcd"),
    ]
