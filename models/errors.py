"""What can go wrong among the beliefs? One tree, each error one sentence.

ModelsError
    DatasetError    the frames cannot be trained on
    ArtifactError   a saved predictor cannot be served
    RegistryError   a version is not there, or refused
"""

from __future__ import annotations


class ModelsError(Exception):
    """Anything this room refuses."""


class DatasetError(ModelsError):
    """The frames miss a column, or hold too little to train on."""


class ArtifactError(ModelsError):
    """A saved predictor is broken or was made under other conventions."""


class RegistryError(ModelsError):
    """No such version, or none to go back to."""
