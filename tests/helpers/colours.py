"""What colours look like: CIELAB, and the colours of a terminal with 256 of them."""

import numpy as np


def lab(rgb: np.ndarray) -> np.ndarray:
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


def xterm_colours() -> np.ndarray:
    """The colours 16 to 255 of a terminal: a cube, then greys."""
    levels = (0, 95, 135, 175, 215, 255)
    cube = [(red, green, blue) for red in levels for green in levels for blue in levels]
    return np.array([*cube, *((grey, grey, grey) for grey in range(8, 239, 10))], np.uint8)
