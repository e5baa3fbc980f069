"""Short attacks on images."""

from blobs import blobs
from tiny import secret_of

from gradleak import ImageClient, attack

OPTIONS = {
    "ig": {"steps": 8},
    "gi-gip": {"latent_steps": 3, "weight_steps": 3, "restarts": 2, "latent": 8, "width": 2, "epochs": 1},
    "lti": {"steps": 5, "hidden": 16, "batch": 16},
}


def attacked(model, name, pictures, defenses=(), known=("batch_size",), auxiliary=60, **more):
    updates = [ImageClient(model, known, defenses=defenses).update(one, secret_of(0)) for one in pictures]
    return attack(updates, model, name, auxiliary=blobs(auxiliary, seed=1), **{**OPTIONS[name], **more})
