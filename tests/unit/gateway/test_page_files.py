"""What the gateway serves of the page, from a folder of files as the build makes it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from services.gateway.app import describe_api
from services.gateway.http.browser.page_files import PAGES, PageFiles
from tests.support.source import ROOT

HTML = {"accept": "text/html,*/*"}
SCRIPT = "export const text = 'the script';" * 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text('<html><head><base href="./"></head></html>')
    (tmp_path / "assets/index-1a.js").write_text(SCRIPT)
    (tmp_path / "assets/index-1a.js.gz").write_bytes(gzip.compress(SCRIPT.encode()))
    return tmp_path


@pytest.fixture
def http(folder: Path) -> httpx.AsyncClient:
    app = PageFiles(PlainTextResponse("the API"), folder)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize(
    ("path", "base"),
    [("/", "./"), ("/experiments", "./"), ("/experiments/1", "../"), ("/trials/1.2/", "../../"), ("/enter", "./")],
)
async def test_document_names_the_way_to_its_files(http: httpx.AsyncClient, path: str, base: str) -> None:
    answer = await http.get(path, headers=HTML)
    assert f'<base href="{base}">' in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    again = await http.get(path, headers={**HTML, "if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_file_is_packed_for_those_who_unpack_it_and_kept_for_ever(http: httpx.AsyncClient) -> None:
    packed = await http.get("/assets/index-1a.js", headers={"accept-encoding": "br, gzip;q=0.5"})
    assert (packed.text, packed.headers["content-encoding"]) == (SCRIPT, "gzip")
    assert int(packed.headers["content-length"]) < 200
    plain = await http.get("/assets/index-1a.js", headers={"accept-encoding": "gzip;q=0"})
    assert (plain.text, "content-encoding" in plain.headers) == (SCRIPT, False)
    assert "immutable" in plain.headers["cache-control"]
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    head = await http.head("/assets/index-1a.js", headers={"accept-encoding": "identity"})
    assert (head.content, head.headers["content-length"]) == (b"", str(len(SCRIPT)))


@pytest.mark.parametrize(
    "path",
    ["/api/v1/me", "/prom/http-sd", "/proxy/1/", "/openapi.json", "/healthz", "/metrics", "/det/interactive/1",
     "/assets/../index.html", "/assets/index-1a.js.gz", "/index.html"],
)  # fmt: skip
async def test_nothing_else_is_shadowed(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers=HTML)).text == "the API"


async def test_requests_of_programs_pass(http: httpx.AsyncClient) -> None:
    """Determined's API has paths below /experiments and /checkpoints, which its client asks for with a token."""
    for given in ({"accept": "*/*"}, {**HTML, "authorization": "Bearer x"}):
        assert (await http.get("/experiments/1/preview_gc", headers=given)).text == "the API"
    assert (await http.post("/experiments", headers=HTML)).text == "the API"


async def test_unbuilt_page_says_how_to_build_it(tmp_path: Path) -> None:
    transport = httpx.ASGITransport(PageFiles(PlainTextResponse("the API"), tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        assert "<code>make setup</code>" in (await http.get("/", headers=HTML)).text


def test_pages_are_those_of_the_front_end_and_none_is_of_the_api() -> None:
    patterns = re.findall(r'pattern: "(/[^"]*)"', (ROOT / "page/src/views.ts").read_text())
    assert len(patterns) > 3
    assert {pattern.split("/")[1] for pattern in patterns} <= PAGES
    assert {path.split("/")[1] for path in describe_api()["paths"]} & PAGES == set()
