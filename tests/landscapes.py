"""Drawn landscapes that a person can distinguish at a glance."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SKIES = {  # above, at the horizon, and the ground
    "sunset": ((70, 50, 110), (250, 150, 90), (60, 40, 60)),
    "meadow": ((120, 180, 230), (220, 235, 245), (90, 150, 60)),
    "night": ((8, 12, 35), (40, 50, 90), (15, 20, 30)),
    "desert": ((90, 160, 220), (245, 220, 180), (215, 165, 95)),
}


def landscape(kind: str, seed: int, side: int = 160) -> Image.Image:
    """Draw a sky, hills, and the objects of the class: a sun, flowers, stars or dunes."""
    rng = np.random.default_rng([seed, *kind.encode()])
    above, horizon, ground = (np.clip(np.array(colour) + rng.integers(-12, 13, 3), 0, 255) for colour in SKIES[kind])
    level = int(side * rng.uniform(0.55, 0.72))
    blend = np.linspace(0, 1, side)[:, None, None] ** 1.3
    sky = np.broadcast_to(above * (1 - blend) + horizon * blend, (side, side, 3))
    image = Image.fromarray(sky.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    if kind in ("sunset", "night"):
        x, radius = rng.uniform(0.2, 0.8) * side, side * rng.uniform(0.06, 0.11)
        y = level - side * 0.08 if kind == "sunset" else side * rng.uniform(0.15, 0.35)
        draw.ellipse(
            (x - radius, y - radius, x + radius, y + radius), fill=(255, 215, 130) if kind == "sunset" else (235, 235, 215)
        )
    if kind == "night":
        for x, y in rng.uniform(0, [side, level], (60, 2)):
            draw.point((x, y), fill=(255, 255, 240))
    x = np.arange(side)
    for depth in range(3):
        hill = level + depth * side * 0.07 + side * 0.04 * np.sin(x / side * rng.uniform(4, 9) + rng.uniform(0, 6))
        colour = tuple(int(value) for value in np.clip(ground * (1.15 - 0.18 * depth), 0, 255))
        draw.polygon([(0, side), *zip(x.tolist(), hill.tolist(), strict=True), (side, side)], fill=colour)
    if kind == "meadow":
        for x, y in rng.uniform([0, level + 4], side, (45, 2)):
            petal = [(235, 90, 110), (250, 220, 90), (245, 245, 245)][int(rng.integers(3))]
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=petal)
    return image.filter(ImageFilter.GaussianBlur(0.6))
