"""The first state of a model, and the extractor that it gets: at once, or with the first images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from amgc.core.privacy import Privacy
from amgc.core.statistics import Form
from amgc.features.extractor import Extractor
from amgc.model import extractors
from amgc.model.choice import choose, look, private_choice
from amgc.model.manifest import FUNCTION, VECTORS, Manifest
from amgc.model.pictures import Picture
from amgc.model.state import State
from amgc.model.vectors import Function, Vectors, measured, name_of

LARGEST_SIDE = 2048  # maximum image size in pixels; a batch of 16 such images takes 0.8 GB


def new_state(
    features: str | os.PathLike[str] | Function | None,
    size: int | None,
    seed: int,
    covariance: Form | None,
    privacy: Privacy | None,
    fewest: int,
    options: dict[str, Any],
) -> State:
    """Check the arguments of `Model.create` and return the state of a model without classes."""
    if not fewest >= 1 or (fewest > 1 and privacy is not None):
        raise ValueError(f"fewest must be at least 1, and 1 for private models, which need no more; not {fewest}.")
    if privacy is not None:
        features, covariance = private_choice(features, covariance, options)
    if isinstance(features, str | os.PathLike) or features is None:
        function, given, scale = None, None if features is None else os.fspath(features), extractors.scale_of(features)
        name, chosen = extractors.resolve(features, options)
    else:
        function, given, scale = features, name_of(features), None
        name, chosen = FUNCTION, options
    if name in (VECTORS, FUNCTION) and (chosen or size is not None):
        settings = ", ".join([*chosen, *(["size"] if size is not None else [])])
        raise ValueError(f"amgc does not compute these features, so it has no {settings} for them.")
    if size is not None and not 8 <= size <= LARGEST_SIDE:
        raise ValueError(f"size must be from 8 to {LARGEST_SIDE} pixels, not {size}.")
    extractor = None
    if name not in ("", "patches", VECTORS, FUNCTION):
        extractor = extractors.create(name, chosen, size, seed)
        name = extractor.name
    made: dict[str, Any] = {"by": "create", "seed": seed, "covariance": covariance}
    if privacy is not None:
        made["privacy"] = {field: value for field, value in asdict(privacy).items() if field != "centre"}
        made["centre"] = privacy.centre
    if fewest > 1:
        made["fewest"] = fewest
    about = {"name": name, "options": chosen, "given": given, "dim": None}
    image = {"size": size, "scale": scale}
    state = State(Manifest(made, about, image), function=function)
    return state if extractor is None else with_extractor(state, extractor)


def fitted(state: State, first: Sequence[Picture]) -> State:
    """Return the state with an extractor. If there is none yet, it is chosen for these images or fitted on them."""
    if state.extractor is not None:
        return state
    features, size, seed = state.manifest.features, state.manifest.image["size"], int(state.manifest.made["seed"])
    if features["name"] in (VECTORS, FUNCTION):
        return with_extractor(state, measured(features["name"], state.function, first))
    name, options, seen = features["name"], features["options"], look(first)
    if not name:
        name, why = choose(seen, size)
        options = extractors.defaults(name)
        chosen = features | {"name": name, "options": options, "why": why}
        state = replace(state, manifest=replace(state.manifest, features=chosen))
    if name == "patches":
        options, size = extractors.adapt(options, size, seen)
    extractor = extractors.create(name, options, size, seed)
    ready = with_extractor(state, extractor)
    if extractor.needs_fit:
        extractors.fit(extractor, ready.frame, first, seed)
    return ready


def with_extractor(state: State, extractor: Extractor | Vectors) -> State:
    """Return the state with an extractor, and the image size and classifier parameters that follow from it."""
    manifest = state.manifest
    form = manifest.made["covariance"] or extractors.default_covariance(extractor)
    size = extractor.image_shape[1] if isinstance(extractor, Extractor) else None
    image: dict[str, int | None] = {**manifest.image, "size": size}
    made = manifest.made | {"classifier": {"covariance": form}}
    if privacy := made.get("privacy"):
        centre = made.pop("centre")
        if centre is None and isinstance(extractor, Extractor):
            centre = extractors.public_centre(extractor)
        made["classifier"] |= privacy | {"centre": centre}
    return replace(state, extractor=extractor, manifest=replace(manifest, image=image, made=made))
