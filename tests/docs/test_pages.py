"""What the pages point to is there."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = ("", "services/pillion", "kernels/pillion", "shared/pillion", "tests/gateway")


def text(page: Path) -> str:
    """Without examples."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text(page))
    local = [target for target in targets if not target.startswith(("http:", "https:"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#+ (.*)$", text(page), flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_to_a_section_find_it(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text(page))
    lost = [(to, name) for to, name in links if name not in anchors(page.parent / to if to else page)]
    assert lost == []


def test_every_page_can_be_found() -> None:
    """From the README, over however many links."""
    seen: set[Path] = set()
    ways = [ROOT / "README.md"]
    while ways:
        page = ways.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        ways += [page.parent / target for target in re.findall(r"\]\(([^)#\s:]+)[^)]*\)", text(page))]
    assert [page.name for page in PAGES if page.resolve() not in seen] == []


def test_the_modules_and_tests_that_the_page_for_who_carries_on_names_are_there() -> None:
    page = text(ROOT / "docs/extending.md")
    named: list[str] = []
    for row in page.splitlines():
        folder = ""
        for name in re.findall(r"`([\w/.-]+)`", row):
            if not re.search(r"/|\.(py|proto)$", name) or name.startswith(("/", "ops/up", "ops/test")):
                continue
            # A bare name is beside the one before it in its row.
            path = f"{folder}{name}" if "/" not in name else name
            folder = path.rpartition("/")[0] + "/" if "/" in path else folder
            named.append(path)
    assert len(named) > 50
    assert [path for path in named if not any((ROOT / room / path).exists() for room in ROOMS)] == []
