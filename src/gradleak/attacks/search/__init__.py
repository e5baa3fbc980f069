"""Gradient matching: DLG, TAG, LAMP and subspace."""
