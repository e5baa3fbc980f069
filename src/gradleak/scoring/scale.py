"""shim"""

from gradleak.verdict.scales import IMAGES, TEXT

SCALES = {"text": TEXT, "images": IMAGES}
