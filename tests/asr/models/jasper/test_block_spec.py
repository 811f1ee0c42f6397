"""Keys of a block: what each means, and what is wrong with them, by place."""

import pytest

from nemo_asr.models.jasper import read_blocks
from nemo_lite.base.config import load_config
from nemo_lite.base.errors import ConfigError

BLOCK = {"filters": 8, "repeat": 2, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"filters": "many"}, r'jasper\[1\]\.filters is "many", wanted int'),
        ({"residual_mode": "ad"}, r'jasper\[1\]\.residual_mode is "ad", wanted .*\(did you mean add\?\)'),
        ({"repeat": 0}, r"jasper\[1\]\.repeat is 0, wanted int from 1 to 100"),
        (
            {"kernel": [3, 5]},
            r"jasper\[1\]\.kernel is \[3, 5\], wanted int .* or a list of 1: int",
        ),
        ({"dropout": 1.0}, r"jasper\[1\]\.dropout is 1.0, wanted float from 0, below 1"),
        ({"kernel_size_factor": 0.0}, r"kernel_size_factor is 0.0, wanted float above 0, up to 100"),
        ({"residual": False, "residual_dense": True}, r"residual_dense is true, which needs residual: true"),
        ({"future_context": 3}, r"future_context is 3, wanted at most 2, half of the kernel"),
        ({"heads": 4}, r"heads is 4, wanted -1, or separable: true"),
        ({"se": True, "se_reduction_ratio": 16}, r"se_reduction_ratio is 16, wanted at most filters \(8\)"),
    ],
)
def test_a_wrong_block_is_told_by_place_key_and_remedy(keys, message):
    with pytest.raises(ConfigError, match=message):
        read_blocks([BLOCK, {**BLOCK, **keys}])


def test_everything_wrong_with_all_blocks_is_told_at_once():
    short = {key: value for key, value in BLOCK.items() if key != "repeat"}
    with pytest.raises(ConfigError) as error:
        read_blocks([short, {**BLOCK, "residual": 2, "groups": "a"}])
    assert [problem.split(": ", 1)[1] for problem in error.value.problems] == [
        "jasper[0].repeat is missing",
        "jasper[1].residual is 2, wanted bool",
        'jasper[1].groups is "a", wanted int from 1 to 65536',
    ]


def test_unknown_keys_of_a_script_are_left_out_with_the_nearest_name(capsys):
    assert read_blocks([{**BLOCK, "seperable": True, "filterz": 9}]) == read_blocks([BLOCK])
    told = capsys.readouterr().err
    assert "JasperEncoder: jasper[0].seperable is not a key (did you mean separable?); it is left out" in told
    assert "jasper[0].filterz is not a key (did you mean filters?)" in told


def test_numbers_of_a_script_are_taken_as_nemo_takes_them():
    loose = {"residual": 0, "se": 1, "kernel": [4.0], "stride": [2.0], "repeat": 2.0, "dropout": 0, "groups": 1.0}
    (block,) = read_blocks([{**BLOCK, **loose}])
    assert (block.residual, block.se, block.kernel_size, block.strides("add")) == (False, True, 5, [2, 2])
    (block,) = read_blocks([{**BLOCK, "kernel": 6.7}])
    assert block.kernel_size == 7
    with pytest.raises(ConfigError, match=r"jasper\[0\]\.repeat is 1\.5, wanted int"):
        read_blocks([{**BLOCK, "repeat": 1.5}])


def test_a_block_from_a_file_is_told_with_line_and_column(tmp_path):
    path = tmp_path / "jasper.yaml"
    keys = "".join(f"      {key}: {str(value).lower()}\n" for key, value in BLOCK.items())
    path.write_text(f"JasperEncoder:\n  jasper:\n    -\n{keys}      residul: true\n")
    wanted = r"jasper\.yaml:11:7: JasperEncoder\.jasper\[0\]\.residul is not a key \(did you mean residual\?\)$"
    with pytest.raises(ConfigError, match=wanted):
        read_blocks(load_config(path)["JasperEncoder"]["jasper"])


def test_an_encoder_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="jasper has no blocks"):
        read_blocks([])
