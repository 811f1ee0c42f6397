"""The site of the pages: no warnings, searchable in both languages, asking no other host; wrong links end its build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from toys.browser import CHROMIUM, opened
from toys.sources import ROOT

pytest.importorskip("sphinx", reason="Sphinx is not installed; make site installs it")
pytest.importorskip("myst_parser", reason="MyST is not installed; make site installs it")
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("site")]
FRONT = {"en": "README.html", "zh": "README.zh.html"}
SEARCHED = {"en": ("word error rates", "report.html"), "zh": ("错误率", "report.html")}


def build(source, language, out):
    """Run what ``make site`` runs for a language."""
    line = re.search(r"-m sphinx (.*) -t \$\$language -c docs ", (ROOT / "Makefile").read_text(encoding="utf-8"))
    options = [*line[1].split(), "-t", language, "-c", source / "docs", "-d", out.parent / f"read_{language}"]
    command = map(str, [sys.executable, "-m", "sphinx", *options, source, out])
    return subprocess.run(list(command), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for language in FRONT:
        built = build(ROOT, language, folder / language)
        assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize("language", FRONT)
def test_every_page_is_on_the_site_and_listed_beside_its_front_page(site, language):
    front = (site / language / FRONT[language]).read_text(encoding="utf-8")
    pages = [f"docs/{language}/{path.stem}.html" for path in (ROOT / "docs" / language).glob("*.md")]
    assert len(pages) > 10
    assert [page for page in pages if not (site / language / page).is_file()] == []
    assert [page for page in pages if f'class="reference internal" href="{page}"' not in front] == []


def test_pages_ask_no_other_host_and_links_between_the_languages_lead_to_pages(site):
    pages = [*site.glob("*/*.html"), *site.glob("*/docs/*/*.html")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    asked = r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)|<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]*)'
    assert [found for text in texts.values() for found in re.findall(asked, text)] == []
    across = [(page, link) for page, text in texts.items() for link in re.findall(r'href="(\.\./[^"#]*/?\.html)', text)]
    across += [
        (page, link) for page, text in texts.items() for link in re.findall(r'href="([./]*/(?:en|zh)/[^"#]+)', text)
    ]
    assert len(across) > 3
    assert [(page, link) for page, link in across if not (page.parent / link).is_file()] == []


def test_a_link_to_a_heading_or_page_that_is_not_there_ends_the_build(tmp_path):
    source = tmp_path / "source"
    (source / "docs/en").mkdir(parents=True)
    for name in ("docs/conf.py", "docs/en/report.md"):
        shutil.copy(ROOT / name, source / name)
    (source / "README.md").write_text(
        "# Front\n\n| [report](docs/en/report.md#no-such-heading) |\n|---|\n\n[lost](docs/en/lost.md)\n"
    )
    built = build(source, "en", tmp_path / "out")
    assert built.returncode != 0
    assert "no-such-heading" in built.stderr
    assert "docs/en/lost.md" in built.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_search_finds_words_of_both_languages(site, tmp_path):
    pytest.importorskip("websockets", reason="websockets is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with opened(tmp_path) as page:
            for language, (words, wanted) in SEARCHED.items():
                page.open(f"http://127.0.0.1:{server.server_port}/{language}/search.html?q={words}")
                page.wait(f"!!document.querySelector('#search-results a[href*=\"{wanted}\"]')")
    finally:
        server.shutdown()
        server.server_close()
