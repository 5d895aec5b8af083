"""The networks that Mammoth lacks, those of the SBS paper among them: the embedded host's files, registered there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from mammoth_sbs.host import EMBEDDED

FILES = {"ResNetBlock": ("small_resnet18", "tiny_resnet18"), "vgg": ("vgg16",)}


def register_networks() -> None:
    """Make them known to the Mammoth in use, if it has none of the name."""
    theirs: Any = importlib.import_module("backbone")

    class Embedding(theirs.MammothBackbone):
        """A network of the embedded host, which says what its classifier sees (`embed`), as one of Mammoth's."""

        def forward(self, x: Any, returnt: str = "out") -> Any:
            features = self.embed(x)
            if returnt == "features":
                return features
            out = self.classifier(features)
            return out if returnt == "out" else (out, features)

    for file, names in FILES.items():
        module = load(file, Embedding)
        for name in names:
            if name.replace("_", "-") not in theirs.REGISTERED_BACKBONES:
                theirs.register_backbone(name)(with_flags(getattr(module, name)))


def load(file: str, base: type) -> ModuleType:
    """A file of the embedded host's networks, with `base` as the class that they extend."""
    stand_in: Any = ModuleType("backbone")
    stand_in.MammothBackbone, stand_in.register_backbone = base, lambda name: lambda build: build
    spec = importlib.util.spec_from_file_location(f"mammoth_sbs_{file}", EMBEDDED / "backbone" / f"{file}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept, sys.modules["backbone"] = sys.modules["backbone"], stand_in
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules["backbone"] = kept
    return module


def with_flags(build: Any) -> Any:
    """As Mammoth reads flags from a signature: their types, and no input shape."""
    width = build.__defaults__[0]

    def made(num_classes, num_filters=width):  # type: ignore[no-untyped-def]
        return build(num_classes, num_filters)

    made.__annotations__ = {"num_classes": int, "num_filters": int}
    made.__name__ = build.__name__
    return made
