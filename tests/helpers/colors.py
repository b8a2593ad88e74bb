"""Perceived colors in CIELAB, also with color blindness."""

import numpy as np

COLOR_VISION = {
    "trichromat": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Matrices for linear RGB by kind of color vision: Machado, Oliveira, Fernandes 2009, severity 1."""


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIELAB (D65 white) of 8-bit sRGB: lightness from 0 to 100, green to red, blue to yellow."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = _linear(rgb) @ to_xyz.T / to_xyz.sum(1)
    edge = 6 / 29
    root = np.where(xyz > edge**3, np.cbrt(xyz), xyz / (3 * edge**2) + 4 / 29)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def _linear(rgb: np.ndarray) -> np.ndarray:
    """Convert 8-bit sRGB to linear RGB."""
    coded = np.asarray(rgb, np.float64) / 255
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def simulated_lab(rgb: np.ndarray, vision: str) -> np.ndarray:
    """Return CIELAB of 8-bit sRGB colors as a person with this color vision perceives them."""
    linear = np.clip(_linear(rgb) @ np.array(COLOR_VISION[vision]).T, 0, 1)
    coded = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return lab(np.round(coded * 255).astype(np.uint8))
