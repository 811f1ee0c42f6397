"""Checks of arguments that several modules of the collection share."""

import pytest

from nemo_asr.run.arguments import check_least, paths_in
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import UsageError


def test_the_first_number_below_its_least_is_refused_with_its_name():
    check_least("Layer", workers=(0, 0), rate=(2, 1))
    with pytest.raises(UsageError, match=r"^Layer: rate is too small: got 0, wanted 1 or more$"):
        check_least("Layer", workers=(0, 0), rate=(0, 1), size=(-1, 0))


def test_a_comma_parts_paths_unless_it_is_in_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b,c").mkdir()
    (tmp_path / "a").mkdir()
    line = '{"audio_filepath": "x.wav", "duration": 1, "text": "a"}\n'
    for name in ("a,b,c/t.json", "u.json", "v,w.json"):
        (tmp_path / name).write_text(line)
    together = "a,b,c/t.json,u.json,v,w.json"
    assert paths_in(together) == ["a,b,c/t.json", "u.json", "v,w.json"]
    assert paths_in("u.json,v.json,") == ["u.json", "v.json", ""]
    assert paths_in("none,u.json") == ["none", "u.json"]
    assert Manifest.open("a,b,c/t.json:3,u.json").weights == (3.0, 1.0)
    assert Manifest.open(together).paths == ("a,b,c/t.json", "u.json", "v,w.json")
