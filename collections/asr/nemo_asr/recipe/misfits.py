"""misfits_in: the texts of a data set that do not fit the frames of a model, for ``nemo-lite data check``."""

from __future__ import annotations

from nemo_asr.data.check import Finding
from nemo_asr.recipe.feasibility import find_infeasible
from nemo_asr.recipe.recipe import Recipe
from nemo_asr.recipe.wiring import connect
from nemo_lite.errors import DataError

_KIND = "frames"


def misfits_in(recipe: Recipe, manifests: str, training: bool) -> list[Finding]:
    """What is found about texts and frames: those that never fit are a problem.

    Args:
        recipe: of the model; its labels and its stride count.
        manifests: the set; several manifests are separated by commas.
        training: whether the set is trained on: then perturbations may make audio shorter.
    """
    try:
        data_layer = recipe.data_layer(manifests, training=training, batch_size=1)
        model = recipe.model()
        log_probs = connect(model, data_layer, training=training).log_probs
        found = find_infeasible(data_layer, log_probs, model.loss, training=training)
    except DataError as error:
        return [Finding(_KIND, True, f"{manifests}: the model's data layer cannot read the set", [str(error)])]
    never = [str(each) for each in found if each.is_always]
    sometimes = [str(each) for each in found if not each.is_always]
    told = "text does not fit the model's frames"
    findings = [
        Finding(_KIND, True, f"{manifests}: {len(never)} of {len(data_layer)} utterances whose {told}", never),
        Finding(_KIND, False, f"{manifests}: {len(sometimes)} whose {told} when perturbations shorten them", sometimes),
    ]
    return [finding for finding in findings if finding.details]
