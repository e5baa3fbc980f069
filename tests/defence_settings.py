"""A setting of every defence, for tests that ask whether something works with each of them."""

SETTINGS = {
    "adaptiveclip": "adaptiveclip",
    "clip": "clip:norm=0.1", "dpsgd": "dpsgd:noise=0.1,clip=1", "frozen": "frozen", "layers": "layers:send=1",
    "localdp": "localdp:epsilon=100", "mask": "mask:ratio=0.5", "noise": "noise:sigma=0.001",
    "percentile": "percentile", "prune": "prune:ratio=0.5", "quantize": "quantize:bits=8", "sign": "sign",
    "svt": "svt", "tree": "tree:noise=0.001,round=6", "wire": "wire:format=normfloat4",
}  # fmt: skip
