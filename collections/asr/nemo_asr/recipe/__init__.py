"""A model's YAML into modules that fit each other. Re-exports, nothing else."""

from nemo_asr.recipe.recipe import Recipe as Recipe
from nemo_asr.recipe.recipe import load_recipe as load_recipe
from nemo_asr.recipe.recipe import recipe_from_text as recipe_from_text
