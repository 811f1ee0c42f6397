"""What the tests of the scripts share."""

import pytest
from toys.tone_corpus import make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Do not write here."""
    return make_corpus(tmp_path_factory.mktemp("tones"))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
