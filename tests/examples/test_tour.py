"""The notebook: its cells run in their order, and end with what they promise."""

import ast
import json

import pytest
from toys.tone_corpus import ASR

NOTEBOOK = ASR / "tour.ipynb"


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run(source, namespace):
    """Run a cell; what its last line shows, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "tour.ipynb", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), namespace) if last else None


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_trains_a_model_that_transcribes(capfd):
    namespace = {"__name__": "notebook"}
    shown = [run("".join(cell["source"]), namespace) for cell in cells() if cell["cell_type"] == "code"]
    pictures = [each._repr_html_() for each in shown if hasattr(each, "_repr_html_")]
    assert [picture[:4] for picture in pictures] == ["<svg"]
    out = capfd.readouterr().out
    assert "dev at step 0: wer 1" in out
    assert "word error rate after training: 0%" in out
    assert "baca [('baca', " in out


def test_the_notebook_is_stored_without_outputs():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
