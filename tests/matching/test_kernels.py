import torch

from gradleak.matching.kernels import fastest_products

CPU = torch.device("cpu")


def test_products_inside_keep_single_precision():
    a, b = torch.randn(2, 64, 300)
    with fastest_products(CPU):
        product = a @ b.T
    exact = a.double() @ b.double().T
    assert float((product - exact).norm() / exact.norm()) < 1e-5


def test_setting_is_restored_even_after_an_error():
    before = torch.get_float32_matmul_precision()
    try:
        with fastest_products(CPU):
            raise RuntimeError
    except RuntimeError:
        pass
    assert torch.get_float32_matmul_precision() == before


def test_a_library_that_lowers_precision_is_not_used(monkeypatch):
    monkeypatch.setattr("gradleak.matching.kernels.second_library_is_exact", lambda: False)
    before = torch.get_float32_matmul_precision()
    with fastest_products(CPU):
        assert torch.get_float32_matmul_precision() == before
