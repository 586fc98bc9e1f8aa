"""The pages: what is served, under which policy, and the switch that leaves it out."""

import re
from importlib.resources import files
from typing import Any

import pytest

from pillion.gateway import page

FOLDER = files(page)


@pytest.mark.parametrize("path", page.FILES)
async def test_each_file_is_served_without_a_key_and_once(start: Any, path: str) -> None:
    stack = await start(api_key=("one",))
    name, kind = page.FILES[path]
    async with stack.session.get(stack.url + path) as response:
        assert response.status == 200 and await response.read() == FOLDER.joinpath(name).read_bytes()
        headers = response.headers
    assert headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-cache"
    assert "Access-Control-Allow-Origin" not in headers and "Set-Cookie" not in headers
    tag = headers["ETag"]
    for known, status in ((tag, 304), (f'"other", W/{tag}', 304), ("*", 304), ('"other"', 200)):
        got, body, sent = await stack.fetch("GET", path, headers={"If-None-Match": known})
        assert (got, bool(body), sent["ETag"]) == (status, status == 200, tag), known
        assert sent["Content-Security-Policy"] == headers["Content-Security-Policy"]
    got, body, sent = await stack.fetch("HEAD", path)
    assert (got, body, int(sent["Content-Length"])) == (200, "", len(FOLDER.joinpath(name).read_bytes()))
    assert (await stack.fetch("POST", path, json={}))[0] == 405


async def test_the_policy_lets_nothing_in_but_its_own_files(start: Any) -> None:
    stack = await start()
    _, _, headers = await stack.fetch("GET", "/")
    policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert policy.pop("require-trusted-types-for") == "'script'"  # no text becomes HTML
    own = {kind for kind, sources in policy.items() if sources == "'self'"}
    assert own == {"script-src", "style-src", "img-src", "connect-src"}
    assert {policy[kind] for kind in policy.keys() - own} == {"'none'"}
    assert {"default-src", "base-uri", "form-action", "frame-ancestors"} <= policy.keys()


@pytest.mark.parametrize(("name", "other"), [("index", "status"), ("status", "./")])
def test_a_page_asks_for_its_own_files_only(name: str, other: str) -> None:
    """Relative, so that it also works below a proxy's path; and nothing is inline."""
    text = FOLDER.joinpath(f"{name}.html").read_text()
    files = "chat" if name == "index" else name
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {
        "icon.svg", f"{files}.css", f"{files}.js", other,
    }  # fmt: skip
    assert not re.findall(r"<style|<script(?! src=)|\sstyle=|\son\w+=", text)
    script = FOLDER.joinpath(f"{files}.js").read_text().replace("http://www.w3.org/2000/svg", "")  # a name
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|https?:", script
    )
    ids = set(re.findall(r'id="(\w+)"', text))
    used = set(re.findall(r'\bat\("(\w+)"\)', script))
    assert len(used) > 8 and used <= ids


async def test_a_slash_too_many_leads_to_the_page(start: Any) -> None:
    """Its files are named from where it is."""
    stack = await start()
    async with stack.session.get(f"{stack.url}/status/") as response:
        assert (response.status, response.url.path) == (200, "/status")


async def test_it_can_be_left_out(start: Any) -> None:
    stack = await start(page=False)
    for path in page.FILES:
        assert (await stack.fetch("GET", path))[0] == 404
    _, document, _ = await stack.fetch("GET", "/openapi.json")
    assert not document["paths"].keys() & page.FILES.keys()
    assert (await stack.fetch("GET", "/v1/models"))[0] == 200
