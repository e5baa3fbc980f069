"""Files that are written tensor by tensor are those that the library reads."""

import io
import json

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from gradleak.core.tensor_writer import TYPE_NAMES, TensorWriter

_NAMES = st.lists(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"), unique=True, max_size=6
)


@settings(deadline=None, max_examples=60)
@given(_NAMES, st.data())
def test_any_tensors_in_any_order_come_back(names, data):
    stream = io.BytesIO()
    writer = TensorWriter(stream, names)
    sent = {}
    for name in data.draw(st.permutations(names)):
        if data.draw(st.booleans()):
            continue
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
        kind = data.draw(st.sampled_from(list(TYPE_NAMES)))
        sent[name] = torch.randint(0, 2, shape).to(kind)
        writer.add(name, sent[name].T if len(shape) == 2 else sent[name])
        sent[name] = sent[name].T if len(shape) == 2 else sent[name]
    writer.finish()
    read = load(stream.getvalue())
    assert set(read) == set(sent)
    assert writer.written == len(sent)
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in sent.items())
    length = int.from_bytes(stream.getvalue()[:8], "little")
    assert list(json.loads(stream.getvalue()[8 : 8 + length])) == [name for name in names if name in sent]
