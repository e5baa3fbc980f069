"""Guessing gets what the attack gets: as many sentences as it names."""

from tiny import TEXTS

from gradleak.attacks.base import Attack, Reconstruction, Sentence
from gradleak.audits.run import Question, audit_together
from gradleak.data.texts import Row

ROWS = [Row(text, number % 2) for number, text in enumerate(TEXTS)]


class Talkative(Attack):
    """Names so many empty sentences."""

    name = "talkative"
    summary = "says a lot"
    told = 1

    def run(self, updates, model, context):
        said = [Sentence(text="", tokens=[], confidence=0.0)] * self.told
        return [Reconstruction(sentences=said) for _ in updates]


def control(model, told, **settings):
    attack = Talkative()
    attack.told = told
    (results,) = audit_together([Question(rows=ROWS, trials=1, batch_size=2, **settings)], model, attack)
    return results.control


def test_more_sentences_named_are_more_guesses(tiny_bert):
    few, many = (control(tiny_bert, told)["best_rougeL"].mean for told in (2, 40))
    assert many > few
    # What the update grants is the least: saying nothing does not silence the control.
    assert control(tiny_bert, 0) == control(tiny_bert, 1) == control(tiny_bert, 2)
    # Nobody told the number of sentences: then the attack's own counts.
    assert control(tiny_bert, 40, known=())["best_rougeL"].mean > control(tiny_bert, 1, known=())["best_rougeL"].mean
