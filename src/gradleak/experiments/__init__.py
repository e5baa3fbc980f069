"""Many audits: planned as cells, run by workers anywhere, kept one by one, summed up."""
