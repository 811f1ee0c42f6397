"""Short names of evaluation sets."""

import pytest

from nemo_asr.run.options import unique_tags


@pytest.mark.parametrize(
    ("manifests", "tags"),
    [
        ([], []),
        (["/d/dev-clean.json"], ["dev-clean"]),
        (["a/dev.json", "b/dev.json"], ["a_dev", "b_dev"]),
        (["x/a/dev.json", "y/a/dev.json", "x/b/test.json"], ["x_a_dev", "y_a_dev", "x_b_test"]),
        (["/dev.json", "/a/dev.json"], ["_dev", "a_dev"]),
        (["dev.json,test.json"], ["dev+test"]),
        (["dev.json", "dev.json"], ["dev_1", "dev_2"]),
        (["dev.json", "dev.json", "dev_1.json"], ["dev_2", "dev_3", "dev_1"]),
        (["dev.v1.json", "dev.v2.json"], ["dev.v1", "dev.v2"]),
        (["", "dev.json,"], ["", "dev+"]),
        (["d/dev\udcfe.json", "d/dev\udcff.json"], ["d_dev?_1", "d_dev?_2"]),
    ],
)
def test_every_set_gets_a_tag_of_its_own(manifests, tags):
    assert unique_tags(manifests) == tags
