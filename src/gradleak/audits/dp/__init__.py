"""Whether an implementation of differential privacy keeps what it promises."""
