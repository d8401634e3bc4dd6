"""Contrast between colors."""


def contrast(one: str, other: str) -> float:
    """Return the contrast between two colors "rgb(r, g, b)", following the Web Content Accessibility Guidelines."""
    light = sorted((luminance(one), luminance(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(color: str) -> float:
    channels = [int(channel) / 255 for channel in color[4:-1].split(",")]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
