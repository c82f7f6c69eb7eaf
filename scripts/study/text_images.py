"""Rendered lines of text: images as PP-OCR's recogniser takes them, and what they say."""

import io
import pydoc_data.topics
import random
import string
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

HEIGHT, WIDTH = 48, 320
CHARACTERS = "".join(map(chr, range(33, 127))) + " "
_FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
# Sixteen of the faces that matplotlib ships; PIL's own, Aileron, is for tests alone.
TRAINED_FONTS = sorted(
    each
    for kind in ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*")
    for each in _FONTS.glob(kind)
    if "Display" not in each.name
)
# Words of Python's own help texts, one in five for tests alone.
_TOKENS = {word for text in pydoc_data.topics.topics.values() for word in text.split()}
_WORDS = sorted(word for word in _TOKENS if word.isascii() and len(word) < 16)
WORDS = {"test": _WORDS[::5], "train": [word for at, word in enumerate(_WORDS) if at % 5]}


def line(part: str, source: random.Random) -> str:
    """Some words, or letters, digits and signs without sense, of 3 to 24 characters."""
    length = source.randint(3, 24)
    if source.random() < 0.15:
        return "".join(source.choices(string.digits + string.ascii_letters + string.punctuation, k=length))
    text = source.choice(WORDS[part])
    while len(text) < length:
        text += " " + source.choice(WORDS[part])
    return text[:length].strip()


def render(text: str, font: str | Path | None, source: random.Random) -> np.ndarray:
    """A line of text with the accidents of a photograph, (3, 48, 320) from -1 to 1; zeros behind its end.

    `font` is a file, or None for PIL's own face.
    """
    size = source.randint(24, 40)
    face = ImageFont.load_default(size) if font is None else ImageFont.truetype(font, size)
    left, top, right, bottom = face.getbbox(text)
    ahead, above = source.randint(2, 10), source.randint(1, 8)
    paper = source.randint(120, 255)
    ink = tuple(source.randint(0, paper - 90) for _ in range(3))
    paper_rgb = tuple(min(255, paper + source.randint(-20, 20)) for _ in range(3))
    if source.random() < 0.25:
        ink, paper_rgb = paper_rgb, ink
    wide, high = int(right - left) + 2 * ahead, int(bottom - top) + 2 * above
    picture = Image.new("RGB", (wide, high), paper_rgb)
    ImageDraw.Draw(picture).text((ahead - left, above - top), text, fill=ink, font=face)
    picture = picture.rotate(source.uniform(-1.5, 1.5), Image.Resampling.BILINEAR, fillcolor=paper_rgb)
    if source.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(source.uniform(0.2, 1.4)))
    if source.random() < 0.5:
        packed = io.BytesIO()
        picture.save(packed, "JPEG", quality=source.randint(15, 80))
        picture = Image.open(packed)
    fitted = picture.resize((min(WIDTH, max(1, round(wide * HEIGHT / high))), HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted, np.float32) / 127.5 - 1
    noise = np.random.default_rng(source.getrandbits(32)).normal(0, source.uniform(0, 0.12), pixels.shape)
    image = np.zeros((3, HEIGHT, WIDTH), np.float32)
    # Channels in the order blue, green, red, as the network was trained.
    image[:, :, : fitted.width] = np.clip(pixels + noise, -1, 1).transpose(2, 0, 1)[::-1]
    return image


def lines(part: str, count: int, seed: int, fonts: list[str | Path | None]) -> tuple[np.ndarray, list[str]]:
    """Images (count, 3, 48, 320) and their texts; `part` is ``train`` or ``test``, the words to take."""
    source = random.Random(f"{part} {seed}")
    texts = [line(part, source) for _ in range(count)]
    return np.stack([render(text, source.choice(fonts), source) for text in texts]), texts
