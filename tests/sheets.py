"""PNG files as other programs write them, and a small CIFAR-10 in sheets; slow and obvious."""

import struct
import zlib

import numpy as np

from gradleak.data.png import SIGNATURE


def part(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def filtered_png(pixels, filters):
    """Pixels as (height, width, channels), every line stored with the filter of that number, in two IDAT parts."""
    height, width, channels = pixels.shape
    values, raw = pixels.astype(int), bytearray()
    for y in range(height):
        raw.append(int(filters[y]))
        for x in range(width):
            for c in range(channels):
                a = values[y, x - 1, c] if x else 0
                b = values[y - 1, x, c] if y else 0
                both = values[y - 1, x - 1, c] if x and y else 0
                guess = (0, a, b, (a + b) // 2, paeth(a, b, both))[filters[y]]
                raw.append(int(values[y, x, c] - guess) % 256)
    packed = zlib.compress(bytes(raw))
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    middle = len(packed) // 2
    parts = [(b"IHDR", header), (b"tEXt", b"ignored"), (b"IDAT", packed[:middle]), (b"IDAT", packed[middle:])]
    return SIGNATURE + b"".join(part(name, content) for name, content in [*parts, (b"IEND", b"")])


def paeth(a, b, c):
    """As the format's specification words it."""
    p = a + b - c
    pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
    if pa <= pb and pa <= pc:
        return a
    return b if pb <= pc else c


def small_sheets(train=3, test=2, seed=0):
    """The files of a CIFAR-10 with so few images a sheet: their contents by name, and all images and classes."""
    random = np.random.default_rng(seed)
    files, images, classes = {}, {}, {}
    for kind, names, count, labels in (
        ("test", ["test_batch"], test, "test_lables"),
        ("train", [f"data_batch_{n}" for n in range(1, 6)], train, "train_lables"),
    ):
        images[kind] = random.integers(0, 256, (len(names) * count, 32, 32, 3), dtype=np.uint8)
        classes[kind] = random.integers(0, 10, len(names) * count).tolist()
        for number, name in enumerate(names):
            sheet = images[kind][number * count : (number + 1) * count].reshape(count, 1024, 3)
            files[f"{name}.png"] = filtered_png(sheet, [number % 5, 4, 3][:count])
        files[f"{labels}.json"] = str(classes[kind]).encode()
    return files, images, classes
