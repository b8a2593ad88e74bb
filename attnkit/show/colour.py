"""Colour maps: perceptually even ones for weights, a diverging one for signed differences only.

Values are numbers from 0 to 1; colours are 8-bit sRGB `[..., 3]`.  Where a screen has no such
colours there are the nearest of its 256, and without colours shades by characters.
"""

from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray

Palette = Literal["cividis", "viridis", "difference"]
PALETTES: tuple[Palette, ...] = ("cividis", "viridis")
"""For weights; "difference" is for signed values alone: 0.5 is its neutral middle."""

CONTEXT_COLOURS = ("77aadd", "ee8866", "eedd88", "44bb99", "ffaabb", "99ddff", "bbcc33", "aaaa00")
"""Backgrounds of black text that tell contexts apart, also for the colour-blind: the light scheme
of Tol 2021, "Colour schemes" (SRON/EPS/TN/09-002), its grey left out."""

STEPS = 256
SHADES = " ░▒▓█"
SHADES_ASCII = " .:-=+*#%@"

# Step (0 to 255) and colour; linear between.  Chosen so that lightness rises at every one of the
# 256 steps, after rounding to 8 bits too, within 3/255 of the maps of these names.
# cividis: Nunez, Anderton, Renslow 2018 (PLoS ONE 13(7): e0199239); viridis: Smith, van der Walt.
_ANCHORS: dict[Palette, str] = {
    "cividis": (
        "0:00234f 20:003070 23:013270 28:11356f 44:2e416d 86:585d6d 134:82807a 151:928d77 "
        "191:bbaf6e 219:d9c75d 233:e8d44f 244:f4df40 251:ffe335 255:fce838"
    ),
    "viridis": (
        "0:440051 8:490f63 23:482273 29:482b7b 50:404188 81:30618b 120:22888c 132:20948e "
        "139:1f9b87 151:1ea883 157:25a984 166:2fb47a 177:41bb73 190:5cc864 203:77d254 "
        "233:c6de23 239:d6e21b 242:dbe31a 246:e7e416 251:f5e521 255:fde625"
    ),
    # Blue to orange (kept apart by every common colour blindness) over a light grey, both sides
    # with the same CIELAB lightness: 94, 80, 66, 52, 38.
    "difference": (
        "0:016089 32:0584bb 64:3aaae8 96:a0ccef 127.5:eeeeee 159:ebbda4 191:d98f64 223:c06228 "
        "255:973f00"
    ),
}

_GREYISH = 12  # chroma below which a colour is as good as grey
_SAME_HUE = 0.8  # cosine between hues
_STRANGE = 1e4  # more than any other gap in reach
_CUBE = (0, 95, 135, 175, 215, 255)


@cache
def table(palette: Palette = "cividis") -> UInt8[NDArray[np.uint8], "256 3"]:
    """The colours of the values 0, 1/255, ..., 1.  Not to be written to."""
    anchors = [anchor.split(":") for anchor in _ANCHORS[palette].split()]
    places = [float(place) for place, _ in anchors]
    colours = np.array([list(bytes.fromhex(colour)) for _, colour in anchors], np.float64)
    steps = np.arange(STEPS)
    channels = [np.interp(steps, places, colours[:, channel]) for channel in range(3)]
    found: NDArray[np.uint8] = np.round(np.stack(channels, -1)).astype(np.uint8)
    found.flags.writeable = False
    return found


def steps(values: Float[NDArray[np.floating], "..."]) -> UInt8[NDArray[np.uint8], "..."]:
    """Values from 0 to 1 as rows of `table`; what lies outside is brought to the nearer end."""
    return np.asarray(np.round(np.clip(values, 0, 1) * (STEPS - 1)), np.uint8)


def colours(
    values: Float[NDArray[np.floating], "..."], palette: Palette = "cividis"
) -> UInt8[NDArray[np.uint8], "... 3"]:
    """The colour of each value from 0 to 1."""
    return np.asarray(table(palette)[steps(values)])


def lab(rgb: UInt8[NDArray[np.uint8], "... 3"]) -> Float[NDArray[np.float64], "... 3"]:
    """CIELAB (D65 white) of 8-bit sRGB: lightness from 0 to 100, green to red, blue to yellow."""
    coded = np.asarray(rgb, np.float64) / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = linear @ to_xyz.T / to_xyz.sum(1)
    edge = 6 / 29
    root = np.where(xyz > edge**3, np.cbrt(xyz), xyz / (3 * edge**2) + 4 / 29)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


@cache
def xterm_colours() -> UInt8[NDArray[np.uint8], "240 3"]:
    """The colours 16 to 255 of a 256-colour terminal: a cube, then greys.  Not to be written to.

    The first 16 are left out, since users choose what those look like.
    """
    cube = [(red, green, blue) for red in _CUBE for green in _CUBE for blue in _CUBE]
    greys = [(grey, grey, grey) for grey in range(8, 239, 10)]
    found = np.array(cube + greys, np.uint8)
    found.flags.writeable = False
    return found


def nearest_xterm(rgb: UInt8[NDArray[np.uint8], "... 3"]) -> Int[NDArray[np.int64], "..."]:
    """The number (16 to 255) of the terminal colour that looks most alike, by CIELAB."""
    return np.asarray(_gaps(rgb).argmin(-1) + 16, np.int64)


@cache
def xterm_table(palette: Palette = "cividis") -> Int[NDArray[np.int64], "256"]:
    """`table` for a terminal with 256 colours: their numbers.  Not to be written to.

    The nearest ones by themselves would go up and down in lightness, so these are the nearest
    among those that never get darker (a difference: than those nearer to its middle).
    """
    rgb = table(palette)
    if palette == "difference":
        half = STEPS // 2
        found = np.concatenate([_rising(rgb[:half]), _rising(rgb[half:][::-1])[::-1]])
    else:
        found = _rising(rgb)
    found.flags.writeable = False
    return found


def _gaps(rgb: UInt8[NDArray[np.uint8], "... 3"]) -> Float[NDArray[np.float64], "... 240"]:
    """Squared distances to the terminal's colours.

    Lightness, by which a map is read, counts double and purity little, and a colour is no other
    colour or grey: the dark colours of a terminal are few, and the nearest to blue is purple.
    """
    ours, theirs = lab(rgb)[..., None, :], lab(xterm_colours())
    pure, others = np.hypot(ours[..., 1], ours[..., 2]), np.hypot(theirs[:, 1], theirs[:, 2])
    cosine = (ours[..., 1] * theirs[:, 1] + ours[..., 2] * theirs[:, 2]) / np.maximum(
        pure * others, 1e-9
    )
    light, purity = 2 * (ours[..., 0] - theirs[:, 0]), 0.3 * (pure - others)
    hue = 2 * pure * others * (1 - cosine)
    strange = (pure > _GREYISH) & ((others < _GREYISH) | (cosine < _SAME_HUE))
    return np.asarray(light**2 + purity**2 + hue + _STRANGE * strange)


def _rising(rgb: UInt8[NDArray[np.uint8], "N 3"]) -> Int[NDArray[np.int64], " N"]:
    """Terminal colours of no falling lightness with the least sum of squared distances."""
    order = np.argsort(lab(xterm_colours())[:, 0], kind="stable")
    gaps = _gaps(rgb)[:, order]
    total = np.zeros(len(order))
    before = []
    for gap in gaps:
        # The best end at or below each lightness, then this step on top of it.
        best = np.minimum.accumulate(total)
        at = np.where(total == best, np.arange(len(order)), 0)
        before.append(np.maximum.accumulate(at))
        total = best + gap
    place = int(total.argmin())
    path = []
    for origin in reversed(before):
        path.append(order[place] + 16)
        place = int(origin[place])
    return np.array(path[::-1], np.int64)


def shades(values: Float[NDArray[np.floating], "..."], ascii_only: bool) -> NDArray[np.str_]:
    """A character for each value from 0 to 1, the denser the higher; equal shares of the range."""
    ramp = np.array(list(SHADES_ASCII if ascii_only else SHADES))
    places = np.clip(np.asarray(values, np.float64), 0, 1) * len(ramp)
    return ramp[np.minimum(places.astype(np.int64), len(ramp) - 1)]
