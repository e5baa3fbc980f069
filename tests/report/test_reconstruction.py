"""A reconstruction in the terminal."""

from rich.console import Console

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.report.reconstruction import print_reconstruction


def test_a_confidence_is_not_shown_as_a_proof(capsys):
    for certified in (True, False):
        sentence = Sentence(text="words", tokens=[1], confidence=1.0, certified=certified)
        print_reconstruction(Reconstruction(sentences=[sentence]), Console())
        assert ("Only what is certified is proved" in capsys.readouterr().out) == (not certified)
