"""Checks of arguments that several modules of the collection share."""

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.manifest import Manifest


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
