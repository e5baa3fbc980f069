"""Guessing gets what the attack gets: as many sentences as it names."""

from tiny import TEXTS

from gradleak.attacks.base import Attack, Reconstruction, Sentence
from gradleak.audits.run import AuditCase, audit_together
from gradleak.audits.spec import AuditSpec
from gradleak.data.texts import Row

ROWS = [Row(text, number % 2) for number, text in enumerate(TEXTS)]


class Talkative(Attack):
    """Names so many empty sentences."""

    name = "talkative"
    summary = "says a lot"
    count = 1

    def run(self, updates, model, context):
        sentences = [Sentence(text="", tokens=[], confidence=0.0)] * self.count
        return [Reconstruction(sentences=sentences) for _ in updates]


def control(model, count, **settings):
    attack = Talkative()
    attack.count = count
    case = AuditCase(AuditSpec(trials=1, batch_size=2, **settings), ROWS, in_memory=True)
    (results,) = audit_together([case], model, attack)
    return results.control


def test_more_sentences_named_are_more_guesses(tiny_bert):
    few, many = (control(tiny_bert, count)["best_rougeL"].mean for count in (2, 40))
    assert many > few
    # What the attacker knows is the least: saying nothing does not silence the control.
    assert control(tiny_bert, 0) == control(tiny_bert, 1) == control(tiny_bert, 2)
    # Where the number of sentences is not known, the attack's own counts.
    assert control(tiny_bert, 40, known=())["best_rougeL"].mean > control(tiny_bert, 1, known=())["best_rougeL"].mean
