"""Step sizes over time."""

from gradleak.attacks.search.options import MatchingOptions
from gradleak.attacks.search.schedule import learning_rate


def test_schedules():
    step = MatchingOptions(lr=1.0, schedule="step", decay=0.5, decay_every=10)
    assert [learning_rate(step, i) for i in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    linear = MatchingOptions(lr=1.0, schedule="linear", steps=10)
    assert [learning_rate(linear, i) for i in (0, 5, 10)] == [1.0, 0.5, 0.0]
    assert learning_rate(MatchingOptions(lr=1.0, schedule="linear", steps=10, linear_over=20), 10) == 0.5
    assert learning_rate(MatchingOptions(lr=0.3, schedule="constant"), 999) == 0.3
