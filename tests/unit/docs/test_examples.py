"""The digits example alone trains on the numbers of its experiment files, as its README says."""

from __future__ import annotations

import re

import yaml

from tests.support.source import ROOT

DIGITS = ROOT / "examples" / "digits"


def test_the_example_alone_has_the_seed_and_the_hyperparameters_of_its_experiments() -> None:
    program = (DIGITS / "model_def.py").read_text()
    [seed] = re.findall(r"exp_conf = (\{.*\})", program)
    [hyperparameters] = re.findall(r"hparams = (\{.*\})", program)
    for name in ("const.yaml", "distributed.yaml"):
        config = yaml.safe_load((DIGITS / name).read_text())
        assert yaml.safe_load(seed) == {"reproducibility": config["reproducibility"]}
        assert yaml.safe_load(hyperparameters) == config["hyperparameters"]
