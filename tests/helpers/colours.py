"""What colours look like: CIELAB."""

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
