"""What readers with full and with reduced colour vision see of colours."""

import dataclasses
import math

# The severest forms of the three deficiencies by Machado, Oliveira and Fernandes (2009), on linear RGB.
VISIONS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "without green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "without blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
# The hues in OKLCH, in degrees, from cyan to magenta: neither red, amber nor green.
COLD_HUES = (200, 340)
# The chroma in OKLCH below which a colour is grey.
GREY_CHROMA = 0.03


@dataclasses.dataclass(frozen=True)
class Colour:
    """A colour in linear RGB."""

    rgb: tuple

    @classmethod
    def of(cls, text):
        """The colour of `#rrggbb`."""
        values = [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        return cls(tuple(one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in values))

    def seen(self, vision):
        sums = (sum(part * one for part, one in zip(row, self.rgb)) for row in VISIONS[vision])
        return Colour(tuple(min(max(one, 0), 1) for one in sums))

    def luminance(self):
        return sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), self.rgb))

    def contrast(self, other):
        """The contrast ratio of WCAG."""
        darker, lighter = sorted((self.luminance(), other.luminance()))
        return (lighter + 0.05) / (darker + 0.05)

    def oklab(self):
        red, green, blue = self.rgb
        long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
        medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
        short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
        return (
            0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
            1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
            0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
        )

    def distance(self, other, vision):
        """The distance in OKLab that a reader sees. Black and white are 1 apart."""
        return math.dist(self.seen(vision).oklab(), other.seen(vision).oklab())

    def is_cold_or_grey(self):
        _, green_red, blue_yellow = self.oklab()
        hue = math.degrees(math.atan2(blue_yellow, green_red)) % 360
        return math.hypot(green_red, blue_yellow) < GREY_CHROMA or COLD_HUES[0] <= hue <= COLD_HUES[1]
