from tests.pages import made_up

model, _, dataset = made_up.network()
inputs, _ = dataset.tensors
