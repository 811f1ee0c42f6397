"""Settings of the site for Sphinx; ``make site`` builds it, once for each language: ``-t en`` and ``-t zh``.

The pages are plain Markdown, as they are read in the repository: no page has words of Sphinx in it. What a site needs
beside them is made here: the list of pages, links that leave the site, and a search that finds Chinese words.
"""

import os
import re
from itertools import pairwise
from pathlib import Path

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[1]
FRONT = {"en": "README", "zh": "README.zh"}
ABOUT_THE_CODE = ["CONTRIBUTING", "CHANGELOG", "SECURITY", "tests/faults/README"]  # in English only
PAGES = {code: [f"docs/{code}/{path.stem}" for path in sorted(ROOT.glob(f"docs/{code}/*.md"))] for code in FRONT}
PAGES["en"] += ABOUT_THE_CODE
LANGUAGE, OTHER = ("zh", "en") if tags.has("zh") else ("en", "zh")  # noqa: F821 - Sphinx gives it

project = html_title = "nemo_lite"
language = {"en": "en", "zh": "zh_CN"}[LANGUAGE]
root_doc = FRONT[LANGUAGE]
include_patterns = [f"{name}.md" for name in [root_doc, *PAGES[LANGUAGE]]]
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]  # <img src="..."> of the READMEs
html_theme = "furo"
html_use_index = html_copy_source = html_show_copyright = html_show_sphinx = False
html_search_language = "words_and_pairs"


class WordsAndPairs(SearchEnglish):
    """English words by their stems; Chinese, which has no spaces, by pairs of characters that stand side by side."""

    lang = "words_and_pairs"
    js_splitter_code = r"""
function splitQuery(query) {
  return query.split(/([\u3400-\u9fff]+)/).flatMap((part) =>
    /[\u3400-\u9fff]/.test(part)
      ? part.length < 2 ? [part] : Array.from(part).slice(1).map((last, at) => part[at] + last)
      : part.split(/[^\p{Letter}\p{Number}_]+/gu).filter((word) => word));
}
"""

    def split(self, text: str) -> list[str]:
        """The terms of a text that a search finds; ``splitQuery`` does the same to what is searched."""
        parts = re.findall(r"[\u3400-\u9fff]+|[^\W\u3400-\u9fff]+", text)
        return [term for part in parts for term in (_pairs(part) if "\u3400" <= part[0] <= "\u9fff" else [part])]

    def word_filter(self, stemmed_word: str) -> bool:
        return bool(re.match("[\u3400-\u9fff]", stemmed_word)) or super().word_filter(stemmed_word)


def _pairs(part: str) -> list[str]:
    return [part] if len(part) < 2 else [first + last for first, last in pairwise(part)]


class LinksThatLeaveTheSite(SphinxTransform):
    """Links to pages in the other language lead to its site; links to the source become text, as it is on neither."""

    default_priority = 10

    def apply(self) -> None:
        links = [node for node in self.document.findall(nodes.Element) if node.get("reftype") == "myst"]
        for link in links:
            if link["refdomain"] == "doc":
                name, heading, is_there = link["reftarget"], link["reftargetid"], True
            else:
                file, _, heading = link["reftarget"].partition("#")
                name = os.path.normpath(Path(self.env.docname).parent / file)
                is_there = bool(file) and (ROOT / name).exists()
            if name in [FRONT[OTHER], *PAGES[OTHER]]:
                address = "../" * len(Path(self.env.docname).parts) + f"{OTHER}/{name}.html"
                link.replace_self(
                    nodes.reference("", "", *link.children, refuri=f"{address}#{heading or ''}".rstrip("#"))
                )
            elif name not in self.env.found_docs and is_there:
                link.replace_self(link.children)
            # Of a link that leads nowhere Sphinx warns.


def list_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Beside the text stand the pages in the order of the front page's table, and then the others."""
    if docname == root_doc:
        rows = "\n".join(re.findall(r"^\| \[.*", source[0], re.MULTILINE))
        shown = [name for name in re.findall(r"\]\(([\w/]+)\.md", rows) if name in PAGES[LANGUAGE]]
        pages = [*shown, *PAGES[LANGUAGE]]
        source[0] += "\n```{toctree}\n:hidden:\n:titlesonly:\n\n" + "\n".join(dict.fromkeys(pages)) + "\n```\n"


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.add_search_language(WordsAndPairs)
    app.add_lexer("mermaid", TextLexer)
    app.add_transform(LinksThatLeaveTheSite)
    app.connect("source-read", list_pages)
