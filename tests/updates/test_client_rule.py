"""Client rules as texts."""

import pytest

from gradleak import GradleakError
from gradleak.updates.client_rule import ClientRule


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedprox", "client 'fedprox': name"),
        ("fedavg:epoch=2", "unknown key 'epoch'; did you mean 'epochs'"),
        ("fedavg:lr=0", "client 'fedavg': lr"),
        ("fedavg:lr", "not of the form key=value"),
        ("fedsgd:epochs=3", "belong to fedavg"),
    ],
)
def test_bad_rules_are_refused(spec, message):
    with pytest.raises(GradleakError, match=message):
        ClientRule.parse(spec)
